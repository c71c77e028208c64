"""What stands in a data set's place of a Compose, and passes for it."""

from __future__ import annotations

from typing import Any


class StandIn:
    """Asked for its class, copied, or sent to another process, it is the Compose; so are all its other attributes."""

    def __init__(self, compose: Any) -> None:
        self._compose = compose

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._compose)

    def __reduce__(self) -> Any:
        return _itself, (self._compose,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by pickle and copy
            raise AttributeError(name)
        return getattr(self._compose, name)


def _itself(compose: Any) -> Any:
    return compose
