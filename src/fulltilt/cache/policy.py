"""Whether keeping anything pays, and what: from measured rates to a decision. Pure.

What is kept is a cut through source → bytes → pixels → smaller pixels: what lies before it is saved in every epoch.

    nothing        read, decode                    limited by the decoders, which do one after the other
    ram-encoded            decode                  … the decoders alone
    ram-decoded                    copy            … memory
    disk-decoded   read pixels,    copy            … the cache's disk: pixels are several times larger than JPEG
    disk-resized   read fewer,     copy            … the same disk, fewer bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fulltilt.errors import InputError
from fulltilt.machine.decision import Decision
from fulltilt.words import disk_size

LEAST_GAIN: Final = 0.02
"""What does not pay by so much is not done."""
RAM_SHARE: Final = 0.5
"""Of the free memory; the rest is for training, and for what the estimate leaves out."""
DISK_SHARE: Final = 0.9


class Keep(StrEnum):
    """What is kept, the cheapest first."""

    NOTHING = "nothing"
    RAM_ENCODED = "ram-encoded"
    RAM_DECODED = "ram-decoded"
    DISK_DECODED = "disk-decoded"
    DISK_RESIZED = "disk-resized"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was measured. None: not measured, and whatever needs it is not chosen."""

    samples: int
    """In an epoch."""
    step_rate: float
    """Samples per second that training takes with its batch on the device."""
    decode_rate: float
    """Samples per second of all decoders together, bytes in memory."""
    encoded_bytes: float
    """Of a sample, as all the following."""
    decoded_bytes: float
    resized_bytes: float | None = None
    """At the size that was asked for. None when none was: smaller pixels are not the same data."""
    source_bytes_per_second: float | None = None
    """Read from where the files are, by all decoders together if they did nothing else; files in the page cache cost
    nothing. None: reading does not limit."""
    cache_bytes_per_second: float | None = None
    """Read from the cache's disk."""
    copy_bytes_per_second: float | None = None
    """Memory to memory, all decoders together."""
    free_ram_bytes: int | None = None
    free_disk_bytes: int | None = None
    wait_share: float | None = None
    """Of its time, as training is now: what it does not wait for can't be saved."""
    epochs: float | None = None
    """Still to come; a build must pay within them. None: many."""

    def __post_init__(self) -> None:
        for name in ("samples", "step_rate", "decode_rate", "encoded_bytes", "decoded_bytes"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)!r}; it must be more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    keep: Keep
    needs_bytes: float
    room_bytes: float | None
    rate: float | None
    """Samples per second that it can give; None when a figure for it is missing."""

    @property
    def is_possible(self) -> bool:
        return self.rate is not None and self.room_bytes is not None and self.needs_bytes <= self.room_bytes


def decide(rates: Rates, *, cache: Keep | str = "auto") -> Decision[Keep]:
    """The option with the shortest time for the epochs to come; among equals (within 2 %) the cheapest."""
    options = _options(rates)
    if cache != "auto":
        return _asked(cache, options, rates)
    if rates.wait_share is not None and rates.wait_share <= LEAST_GAIN:
        reason = f"training waits for its feed for {rates.wait_share:.1%} of its time: there is nothing to gain"
        return Decision(value=Keep.NOTHING, reason=reason, evidence=_evidence(options, rates))
    possible = [option for option in options if option.is_possible]
    seconds = {option.keep: _seconds(option, rates) for option in possible}
    chosen = options[0]
    for option in possible[1:]:
        if seconds[option.keep] < seconds[chosen.keep] * (1 - LEAST_GAIN):
            chosen = option
    return Decision(value=chosen.keep, reason=_reason(chosen, options, rates), evidence=_evidence(options, rates))


def _options(rates: Rates) -> tuple[_Option, ...]:
    """The cheapest first."""
    ram = None if rates.free_ram_bytes is None else rates.free_ram_bytes * RAM_SHARE
    disk = None if rates.free_disk_bytes is None else rates.free_disk_bytes * DISK_SHARE
    read = _rate(rates.source_bytes_per_second, rates.encoded_bytes)
    copied = _rate(rates.copy_bytes_per_second, rates.decoded_bytes)

    def from_disk(size: float | None) -> float | None:
        loaded, moved = _rate(rates.cache_bytes_per_second, size), _rate(rates.copy_bytes_per_second, size)
        if loaded is None or moved is None or size is None:
            return None
        fits = rates.free_ram_bytes is not None and rates.samples * size <= rates.free_ram_bytes * RAM_SHARE
        return moved if fits else min(loaded, moved)  # mapped files that fit in memory are read once

    resized = rates.resized_bytes
    kept = rates.samples
    return (
        _Option(
            keep=Keep.NOTHING,
            needs_bytes=0,
            room_bytes=0,
            # A decoder reads, then decodes: the times of both add up.
            rate=rates.decode_rate if read is None else 1 / (1 / read + 1 / rates.decode_rate),
        ),
        _Option(keep=Keep.RAM_ENCODED, needs_bytes=kept * rates.encoded_bytes, room_bytes=ram, rate=rates.decode_rate),
        _Option(keep=Keep.RAM_DECODED, needs_bytes=kept * rates.decoded_bytes, room_bytes=ram, rate=copied),
        _Option(
            keep=Keep.DISK_DECODED,
            needs_bytes=kept * rates.decoded_bytes,
            room_bytes=disk,
            rate=from_disk(rates.decoded_bytes),
        ),
        _Option(keep=Keep.DISK_RESIZED, needs_bytes=kept * (resized or 0), room_bytes=disk, rate=from_disk(resized)),
    )


def _rate(bytes_per_second: float | None, size: float | None) -> float | None:
    return None if bytes_per_second is None or not size else bytes_per_second / size


def _seconds(option: _Option, rates: Rates) -> float:
    """Per epoch, what making it costs spread over those to come."""
    assert option.rate is not None
    epoch = rates.samples / min(option.rate, rates.step_rate)
    if rates.epochs is None or option.keep is Keep.NOTHING:
        return epoch
    plain = _options(rates)[0].rate
    assert plain is not None
    if option.keep in (Keep.RAM_ENCODED, Keep.RAM_DECODED):  # filled by the first epoch, at that epoch's usual speed
        first = rates.samples / min(plain, rates.step_rate)
        return (first + epoch * max(0.0, rates.epochs - 1)) / max(rates.epochs, 1)
    return rates.samples / plain / max(rates.epochs, 1e-9) + epoch


def _reason(chosen: _Option, options: tuple[_Option, ...], rates: Rates) -> str:
    plain = options[0]
    assert plain.rate is not None
    assert chosen.rate is not None
    if chosen is plain:
        if plain.rate >= rates.step_rate * (1 - LEAST_GAIN):
            return f"the feed gives {plain.rate:,.0f} samples/s without a cache, training takes {rates.step_rate:,.0f}"
        missing = [_why_not(option) for option in options[1:] if not option.is_possible]
        small = f"nothing that can be kept is {LEAST_GAIN:.0%} faster than {plain.rate:,.0f} samples/s"
        return "; ".join([small, *missing])
    before, after = min(plain.rate, rates.step_rate), min(chosen.rate, rates.step_rate)
    return f"{after:,.0f} samples/s instead of {before:,.0f} for {disk_size(chosen.needs_bytes)}" + (
        f", the cost of making it included over {rates.epochs:g} epochs" if rates.epochs is not None else ""
    )


def _why_not(option: _Option) -> str:
    if option.rate is None or option.room_bytes is None:
        return f"{option.keep} was not measured"
    return f"{option.keep} needs {disk_size(option.needs_bytes)} of {disk_size(option.room_bytes)}"


def _asked(cache: str, options: tuple[_Option, ...], rates: Rates) -> Decision[Keep]:
    try:
        wanted = Keep(cache)
    except ValueError:
        raise InputError(f"cache is {cache!r}; allowed: auto, {', '.join(Keep)}") from None
    option = next(one for one in options if one.keep is wanted)
    if option.room_bytes is not None and option.needs_bytes > option.room_bytes:
        raise InputError(f"cache={wanted}: {_why_not(option)}; choose another, or auto")
    if wanted is Keep.DISK_RESIZED and rates.resized_bytes is None:
        raise InputError(f"cache={wanted} needs a size to resize to")
    return Decision(value=wanted, reason="asked for", evidence=_evidence(options, rates))


def _evidence(options: tuple[_Option, ...], rates: Rates) -> dict[str, float]:
    """Rates of all options that were measured, and the bytes that they need."""
    found: dict[str, float] = {"step samples/s": rates.step_rate}
    for option in options:
        if option.rate is not None:
            found[f"{option.keep} samples/s"] = option.rate
            found[f"{option.keep} bytes"] = option.needs_bytes
    return found
