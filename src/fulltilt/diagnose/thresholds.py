"""Every threshold and every assumption of a diagnosis, and the causes that it knows: one table each.

A share is of the step's time on the host's clock, from 0 to 1. A factor says how many times faster a piece of work
becomes when its fix is made; each names where it comes from, and each is only a forecast: `fulltilt run` measures.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    # What is worth a word.
    no_headroom: float = 0.05
    """Below it there is nothing to win by feeding better: two runs of one script differ by as much."""
    unsettled: float = 0.15
    """Share of the time by which a limit lies beyond what was seen to be in the step's way: from there on the machine
    was so much busier while the script was watched that what was seen then does not count."""
    near_limit: float = 0.9
    """Share of the limit from which nothing has to be said about the rest."""
    least_gain: float = 0.03
    """A fix that is predicted to give less is not named."""
    least_steps: int = 3
    """Fewer steps than that say nothing about a rate."""

    # Feeding.
    explains: float = 1 / 3
    """Share of the headroom that a fix has to win, or it is said to be a part of it."""
    data_wait: float = 0.05
    """Share of the step in which the loop waits for its loader."""
    dominant_stage: float = 0.45
    """Share of a loader's work from which one stage is its cause."""
    dominant_over_next: float = 1.8
    """So many times the next stage, or it stands out from nothing."""
    waiting_read: float = 0.5
    """Share of reading that no core worked for: the disk or the network is waited for."""
    waiting_read_when_busy: float = 0.9
    """The same where all cores are busy: then everything waits, for a core."""
    shm_share: float = 0.8
    """Share of /dev/shm that batches on their way may fill."""
    worker_reserve: float = 0.85
    """Workers are counted so that the loader needs this share of the step's time: rates vary."""
    hand_over_seconds: float = 0.8e-3
    """What a batch costs on its way from a worker to the training process, measured on two cores."""
    hand_over_bytes_per_second: float = 2e9
    resident_seconds: float = 0.15e-3
    """A batch cut out of tensors by one index operation each."""
    transform_factor: float = 20.0
    """A loop over pixels in Python made of array operations; measured ones lie from 8 to several hundred, that of the
    planted script at 18."""
    decode_factor: float = 2.0
    """simplejpeg instead of Pillow, per core, on photographs of 500 × 375."""
    cache_factor: float = 12.0
    """A decoded sample read from a memory-mapped shard instead of decoded."""
    collate_factor: float = 15.0
    """Arrays stacked in one call: instead of lists turned into tensors 5, instead of a loop over numbers 40."""
    gpu_augmentation_factor: float = 20.0
    """Recognised transforms taken out of the workers: what is left is handing over bytes."""
    gpu_augmentation: float = 0.3
    """Share of the workers' time in transforms that the GPU could do."""

    # Between the host and the device.
    copy: float = 0.03
    sync: float = 0.02
    sync_count: float = 0.5
    """Waits for the GPU per step."""

    # In the way of the steps: shares of the whole time.
    epoch_start: float = 0.04
    evaluation: float = 0.15
    checkpoint: float = 0.05
    logging: float = 0.03
    kept_evaluation: float = 0.05
    """What evaluation may cost once it is done less often; checkpoints likewise."""
    other: float = 0.3
    """Share of the step in the script's own code that is no known phase."""

    # The step itself.
    launch_seconds: float = 8e-6
    """The host's time for one kernel of an eager step: Python, dispatch, autograd and launch."""
    slow_launch_seconds: float = 50e-6
    """The same on the slowest of hosts (30 were seen): what takes longer is something else than launching."""
    launch_bound: float = 0.7
    """Share of the step that launching takes."""
    idle_gpu: float = 0.75
    """Utilisation below which a step that waits for no data is bound by its launches."""
    optimizer: float = 0.06
    fused_factor: float = 3.0
    """Adam fused instead of foreach."""
    fused_from_loop_factor: float = 5.0
    """Adam fused instead of a loop over parameters: AdamW of 120 small tensors on a CPU, by the processor's time."""
    fused_sgd_factor: float = 1.3
    """SGD has one operation for each parameter, which fusing can only put together; on a CPU it gains nothing."""
    tf32_factor: float = 3.0
    """Matrix products of a float32 transformer or perceptron; convolutions use TF32 without being told."""
    precision_factor: float = 1.8
    """bf16 instead of TF32 on tensor cores, the step's other work included."""
    precision_from_fp32_factor: float = 3.5
    """bf16 instead of float32 without TF32."""
    channels_last_factor: float = 1.4
    """Convolutions in half precision in the layout that tensor cores want."""
    channels_last_fp32_factor: float = 1.08
    """The same in TF32."""
    compile_factor: float = 1.35
    """Element-wise work fused: bf16 ResNet-50 on an H200 gained 1.43. Where kernels were not counted."""
    fused_kernels_factor: float = 3.0
    """Of the kernels that the compiler puts together; a chain of nothing else gained 3.6 on an H200."""
    compiled_launch_factor: float = 2.5
    """A step that is bound by its launches, compiled: a fraction of the launches, and hardly any Python."""
    graphed_factor: float = 2.5
    """The same as CUDA graphs, where kernels were not counted."""
    graphed_gap_seconds: float = 1.5e-6
    """In a graph, from a kernel's end to the next one's begin."""
    graphed_weight_seconds: float = 12e-6
    """The host's time to hand one weight's gradient over, where a graph has made them all: 10 to 13 on an H200's."""

    # The machine.
    busy_cpu: float = 0.9
    """Share of the usable cores that are busy: there is none left to give."""
    others_cores: float = 0.25
    """Share of the usable cores that others keep busy, from which that is said."""
    contention: float = 1.15
    """So many times longer the step's own work takes while the loader works than alone."""
    memory_growth: float = 0.1
    """Growth over the second half of the time watched, of what was used in its middle."""
    memory_growth_bytes: int = 100 * 2**20
    slow_rank: float = 0.1
    """Share of the step by which one rank is later than the middle one."""


THRESHOLDS = Thresholds()

CAUSES: dict[str, str] = {
    # Each with a few words for a table. Of equal gain the more exact one comes first: the order of this table.
    "in-memory": "samples in memory, fetched one by one",
    "slow-transform": "one slow transform",
    "slow-disk": "slow disk",
    "slow-collate": "slow collate",
    "small-shm": "small /dev/shm",
    "too-many-workers": "too many workers",
    "too-many-threads": "too many threads",
    "single-process": "loader in the training process",
    "too-few-workers": "too few workers",
    "slow-decode": "slow decoding",
    "cacheable": "decoding the same files each epoch",
    "gpu-augmentation": "augmentation on the CPU",
    "restarted-workers": "workers restarted each epoch",
    "blocking-copies": "copies that hold the loop up",
    "hidden-sync": "hidden waits for the GPU",
    "evaluation": "evaluation in the way",
    "checkpoints": "checkpoints in the way",
    "logging": "logging in the way",
    "slow-rank": "one slow rank",
    "small-batch": "bound by kernel launches",
    "tf32": "TF32 is off",
    "precision": "full precision",
    "channels-last": "memory layout",
    "compile": "not compiled",
    "unfused-optimizer": "unfused optimizer",
    "own-code": "the script's own code",
    "throttled": "clocks held down",
    "shared-gpu": "shared GPU",
    "memory-growth": "growing memory",
}
