"""Where metrics are computed: on the CPU, which is free, or on the GPU, if the CPU can't keep up. Policy only."""

from __future__ import annotations

from collections.abc import Mapping, Set

from fulltilt.machine.decision import Decision

FULL = 0.8
"""Of its workers' time, a lane takes so much; what is beyond it goes to the device."""
ROOMY = 0.5
"""A metric comes back when all that is here would then take less than this: so that none goes to and fro."""


def metrics_on_device(
    seconds_per_batch: Mapping[str, float], *, batches_per_second: float, workers: int, there: Set[str] = frozenset()
) -> Decision[frozenset[str]]:
    """Which metrics are better computed on the device.

    Args:
        seconds_per_batch: of one worker, for each metric that was measured.
        batches_per_second: as the loop would go if it waited for no metric.
        there: those on the device now.
    """
    shares = {name: seconds * batches_per_second / workers for name, seconds in seconds_per_batch.items()}
    found = set(there) & shares.keys()
    staying = sorted(shares.keys() - found, key=shares.__getitem__)
    while staying and sum(shares[name] for name in staying) > FULL:
        found.add(staying.pop())
    load = sum(shares[name] for name in staying)
    for name in sorted(found & set(there), key=shares.__getitem__):
        if load + shares[name] > ROOMY:
            break
        found.discard(name)
        load += shares[name]
    evidence = {"shares": shares, "batches_per_second": batches_per_second, "workers": workers}
    if not found:
        reason = f"{workers} workers spend {load:.0%} of their time on them"
    else:
        sent = ", ".join(f"{name} {shares[name]:.0%}" for name in sorted(found))
        reason = f"of the time of {workers} workers they would take too much: {sent}; what is left takes {load:.0%}"
    return Decision(value=frozenset(found), reason=reason, evidence=evidence)
