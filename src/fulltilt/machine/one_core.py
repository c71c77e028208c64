"""Threads that compute with one core each: torch would give every one of them a team of its own."""

from __future__ import annotations

import threading

_counting = threading.Lock()


def compute_with_one_core() -> None:
    """Have torch compute with this thread alone.

    torch also notes the number for threads that it will see later (autograd's, for one), so it is set back by a thread
    that does nothing else. One thread at a time: the next would take the number between the two for the one to keep.
    """
    import torch

    with _counting:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        other = threading.Thread(target=torch.set_num_threads, args=(before,), daemon=True)
        other.start()
        other.join()
