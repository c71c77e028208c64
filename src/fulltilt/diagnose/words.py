"""Figures in words: `31 %`, `12.4 ms`, `1,240 samples/s`, `64 MiB`, `3rd`."""

from __future__ import annotations

from pathlib import Path

from fulltilt.measure.observation import Place


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


def rate(value: float | None, unit: str = "samples") -> str:
    if value is None:
        return "not measured"
    return f"{amount(value)} {unit}/s"


def amount(value: float) -> str:
    """Three digits, thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size(count: int | float) -> str:
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if value >= 10 or unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def parameters(count: int) -> str:
    """`25.6 M parameters`."""
    value, unit = (count / 1e9, " B") if count >= 1e9 else (count / 1e6, " M") if count >= 1e6 else (float(count), "")
    return f"{value:.3g}{unit} parameters" if unit else f"{count:,} parameters"


def ordinal(number: int) -> str:
    """`2nd`, `3rd`, `11th`."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else last}"


def place(found: Place | None) -> str | None:
    """`train.py:31`."""
    return None if found is None else f"{Path(found.file).name}:{found.line}"
