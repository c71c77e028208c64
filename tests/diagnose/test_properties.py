"""Whatever was seen: no negative gain, no gain beyond the limit by feeding, and one order for one set of findings."""

from __future__ import annotations

import math
import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fulltilt.diagnose import Finding
from fulltilt.diagnose.diagnosis import rank
from fulltilt.diagnose.figures import Figures
from fulltilt.diagnose.thresholds import CAUSES, THRESHOLDS
from fulltilt.measure.observation import Copy, Sync

MS = st.floats(0, 500)
PHASES = st.dictionaries(
    st.sampled_from(
        ["data wait", "copy", "forward", "backward", "optimizer", "sync", "epoch start", "logging", "other"]
    ),
    MS,
)
LOADERS = st.fixed_dictionaries(
    {
        "num_workers": st.integers(0, 100),
        "persistent_workers": st.booleans(),
        "pin_memory": st.booleans(),
        "in_memory": st.booleans(),
        "samples": st.none() | st.integers(0, 10**7),
        "batch_bytes": st.none() | st.integers(0, 10**9),
        "prefetch_factor": st.none() | st.integers(1, 16),
        "starts": st.integers(0, 50),
        "start_seconds": st.none() | st.floats(0, 30),
    }
)
STAGES = st.dictionaries(
    st.sampled_from(["read", "decode", "collate", "item", "Warp", "RandomCrop", "hand over"]),
    MS | st.tuples(MS, MS),
)
TRAININGS = st.fixed_dictionaries(
    {
        "device": st.sampled_from(["cpu", "cuda:0"]),
        "autocast": st.none() | st.just("torch.bfloat16"),
        "images": st.booleans(),
        "tf32": st.booleans(),
        "channels_last": st.booleans(),
        "compiled": st.booleans(),
        "fused": st.booleans(),
        "foreach": st.booleans(),
        "launches": st.none() | st.integers(0, 10**5),
        "threads": st.integers(1, 256),
    }
)
SURROUNDINGS = st.fixed_dictionaries(
    {
        "cores": st.integers(1, 256),
        "gpu_share": st.none() | st.floats(0, 1),
        "shm_bytes": st.none() | st.integers(0, 2**38),
        "memory_bytes": st.lists(st.integers(0, 2**40), max_size=30).map(tuple),
    }
)
COPIES = st.lists(
    st.builds(
        Copy,
        place=st.none(),
        count=st.integers(1, 1000),
        seconds=st.floats(0, 10),
        bytes=st.integers(0, 10**12),
        pinned=st.booleans(),
        non_blocking=st.booleans(),
    ),
    max_size=3,
).map(tuple)
SYNCS = st.lists(
    st.builds(Sync, place=st.none(), kind=st.just("item"), count=st.integers(1, 10**4), seconds=st.floats(0, 100)),
    max_size=3,
).map(tuple)
OUTSIDE = st.dictionaries(st.sampled_from(["eval", "checkpoint", "epoch start"]), st.floats(0, 100))


@settings(max_examples=300, deadline=None)
@given(
    phases=PHASES,
    loader=LOADERS,
    stages=STAGES,
    training=TRAININGS,
    surroundings=SURROUNDINGS,
    copies=COPIES,
    syncs=SYNCS,
    outside=OUTSIDE,
    limit=st.none() | st.floats(0.01, 1000),
    loader_rate=st.none() | st.floats(0.1, 1e6),
)
def test_gains_stay_within_reason(planted, limit, **given):
    found = planted(limit=limit, **given).diagnose()
    for finding in found.findings:
        assert finding.cause in CAUSES
        if finding.gain is not None:
            assert finding.gain >= 0
            assert math.isfinite(finding.gain)
        if finding.gain is not None and finding.about == "feeding" and found.headroom is not None:
            # All that feeding can win: the step at its limit, and no start of an epoch between the steps.
            figures = Figures(observation=found.observation, limits=found.limits)
            rest = figures.whole - figures.fed_step
            best = figures.fed_step * (1 - found.headroom) + rest
            assert best * (1 + finding.gain) <= figures.whole * 1.001
    gains = [finding.gain for finding in found.findings if finding.gain is not None]
    assert all(later <= earlier + THRESHOLDS.least_gain for earlier, later in pairwise(gains))
    assert found.verdict.endswith(".")


@given(st.lists(st.tuples(st.sampled_from(list(CAUSES)), st.none() | st.floats(0, 5)), max_size=12), st.randoms())
def test_the_order_does_not_depend_on_who_found_what_first(pairs, rng: random.Random):
    findings = [
        Finding(cause=cause, title=cause, evidence=(), gain=gain, fix="") for cause, gain in dict(pairs).items()
    ]
    shuffled = findings.copy()
    rng.shuffle(shuffled)
    ranked = rank(findings)
    assert rank(shuffled) == ranked
    assert [finding.gain is None for finding in ranked] == sorted(finding.gain is None for finding in ranked)
