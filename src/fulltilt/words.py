"""Figures in words: `31 %`, `12.4 ms`, `1,240 samples/s`, `64 MiB` of memory, `1.5 GB` of a disk, `3rd`."""

from __future__ import annotations

from collections.abc import Sequence

GIB = 2**30


def percent(share: float) -> str:
    shown = 100 * share
    return f"{shown:.0f} %" if shown >= 9.95 or shown < 0.05 else f"{shown:.1f} %"


def gain(value: float | None) -> str:
    """`+31 %`, `3.4×` from a doubling on; `not predicted` for None."""
    if value is None:
        return "not predicted"
    return f"{value + 1:.1f}×" if value >= 1 else f"+{100 * value:.0f} %"


def seconds(value: float) -> str:
    if value >= 100:
        return f"{value:.0f} s"
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 1e-3:
        return f"{value * 1e3:.3g} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"
    return f"{value * 1e6:.0f} µs"


def milliseconds(value: float) -> str:
    """Of seconds: one unit, so that figures that stand together can be compared."""
    return f"{amount(1e3 * value)} ms"


def duration(value: float) -> str:
    """`5 s`, `1 min 12 s`, `3 h 5 min`."""
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def clock(value: float) -> str:
    """`00:07`, `12:34`, `3:05:09`: what is drawn again and again doesn't move."""
    minutes, left = divmod(max(0, round(value)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes:02}:{left:02}"


def rate(value: float | None, unit: str = "samples") -> str:
    if value is None:
        return "not measured"
    return f"{amount(value)} {unit}/s"


def amount(value: float) -> str:
    """Three digits, thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def memory_size(count: float) -> str:
    """`64 MiB`, `1.5 GiB`: binary, as memory is."""
    return _size(count, 1024, ("bytes", "KiB", "MiB", "GiB", "TiB"))


def disk_size(count: float) -> str:
    """`64 MB`, `1.5 GB`: decimal, as disks are sold."""
    return _size(count, 1000, ("bytes", "kB", "MB", "GB", "TB"))


def gib(count: float) -> str:
    """`6.0`, where the unit is said once for several, or stands beside it."""
    return f"{count / GIB:.1f}"


def _size(count: float, step: int, units: Sequence[str]) -> str:
    at = 0
    while count >= step and at < len(units) - 1:
        count, at = count / step, at + 1
    return f"{f'{count:.1f}'.removesuffix('.0') if count < 100 and at else f'{count:.0f}'} {units[at]}"


def parameters(count: int) -> str:
    """`25.6 M parameters`."""
    value, unit = (count / 1e9, " B") if count >= 1e9 else (count / 1e6, " M") if count >= 1e6 else (float(count), "")
    return f"{value:.3g}{unit} parameters" if unit else f"{count:,} parameters"


def many(count: int, one: str, more: str = "") -> str:
    """`1 worker`, `8 workers`; `more` is the plural, where it is no mere s behind it."""
    return f"{count} {one if count == 1 else more or f'{one}s'}"


def some(items: Sequence[object], most: int) -> str:
    """`a, b and 3 more`."""
    rest = len(items) - most
    return ", ".join(map(str, items[:most])) + (f" and {rest} more" if rest > 0 else "")


def ordinal(number: int) -> str:
    """`2nd`, `3rd`, `11th`."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else last}"
