"""What the ranks of a process group tell each other about checkpoints. Without a group there is one rank, alone.

Messages go through a gloo group of their own: the thread that writes must not come between training's collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fulltilt.errors import CheckpointError, FulltiltError
from fulltilt.machine.ranks import grouped, rank, world
from fulltilt.train.ranks.own_group import own_group

T = TypeVar("T")


class Team:
    """The ranks that save together; every call is made by all of them."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.group, self.rank, self.size = group, rank, size

    def share(self, value: T) -> list[T]:
        """Everybody's value, by rank."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value, group=self.group)
        except RuntimeError as error:  # what gloo raises when a connection is closed, or nobody answers
            raise FulltiltError(
                f"another rank has ended or does not answer; the checkpoint is given up ({error})"
            ) from None
        return values

    def together(self, work: Callable[[], T]) -> list[T]:
        """Everybody does its work; when one fails, all raise, and nobody waits for it."""
        outcome, error = None, None
        try:
            outcome = work()
        except Exception as raised:
            error = raised
        reports = self.share((outcome, None if error is None else (isinstance(error, CheckpointError), str(error))))
        if error is not None:
            raise error
        for other, (_, problem) in enumerate(reports):
            if problem is not None:
                raise (CheckpointError if problem[0] else FulltiltError)(f"{problem[1]} (on rank {other})")
        return [value for value, _ in reports]  # type: ignore[misc]

    def from_first(self, work: Callable[[], T]) -> T:
        """What rank 0 finds out, or the error that it meets."""
        return self.together(work if self.rank == 0 else lambda: None)[0]  # type: ignore[return-value]


def team() -> Team:
    """All ranks, connected by gloo."""
    return Team(own_group("checkpoints"), rank(), world()) if grouped() else Team(None, 0, 1)
