"""A target: what is wanted of a figure, what was found, whether it was met. One shape in code, in JSON and in print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

_WHOLE = 999.5
"""From there on three digits and no more would be said as `1e+03`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure and how far it has to go, or may."""

    figure: str
    """Its name, as beside it in the JSON where it stands there."""
    wanted: float | None
    """None where what it would be compared with was not measured."""
    found: float | None = None
    """None where it was not measured."""
    at_most: bool = False
    what: str = ""
    """Of the figure, before it: `GPU`."""
    unit: str = ""
    """After it, with the blank before it: ` ms`."""
    percent: bool = False
    """A fraction of 1 that is said in percent; the unit comes after the sign."""

    @property
    def met(self) -> bool | None:
        """None where it was not measured: that is neither met nor missed."""
        if self.found is None or self.wanted is None:
            return None
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted

    def given(self, found: float | None) -> Self:
        return replace(self, found=found)

    def say(self, value: float, *, digits: int = 3) -> str:
        """A value of the figure, with its unit."""
        shown, sign = (100 * value, " %") if self.percent else (value, "")
        number = f"{shown:,.0f}" if abs(shown) >= _WHOLE else f"{shown:.{digits}g}"
        return f"{number}{sign}{self.unit}"

    def __str__(self) -> str:
        if self.wanted is None:
            return self.what
        return f"{self.what} {'≤' if self.at_most else '≥'} {self.say(self.wanted)}".lstrip()

    def to_json(self) -> dict[str, Any]:
        bound = "at_most" if self.at_most else "at_least"
        return {"figure": self.figure, "words": str(self), bound: self.wanted, "found": self.found, "met": self.met}


Titled = tuple[str, Target]
"""With what it is a target of."""


def in_json(targets: Iterable[Target]) -> list[dict[str, Any]] | None:
    """None where there are none."""
    return [target.to_json() for target in targets] or None


def target_lines(targets: Iterable[Titled]) -> list[str]:
    """A line for each, and how many were met."""
    listed = list(targets)
    said = []
    for title, target in listed:
        word = {True: "met", False: "missed", None: "not measured"}[target.met]
        found = "" if target.found is None else f", found {target.say(target.found, digits=4)}"
        said.append(f"{word}: {title}: {target}{found}")
    met = sum(target.met is True for _, target in listed)
    return [*said, f"{met} of {len(listed)} targets met"] if said else []
