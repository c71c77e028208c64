"""What a training run is made of, as YAML: the sections `data`, `model`, `training`, `gpu_augmentation`, `metrics`,
`logging`. Reading, overriding and checking a file is file.py's; making things of it is build.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Auto = Literal["auto"]
Whole = Annotated[int, Field(ge=1)]
WholeOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Size = Whole | tuple[Whole, Whole]
AugmentationPreset = Literal["default", "minimal", "strong", "progressive"]

OPTIMIZERS = ("adamw", "adam", "sgd", "rmsprop")
SCHEDULERS = ("cosine", "step", "onecycle", "linear", "plateau")
LOSSES = ("cross_entropy", "bce_with_logits", "mse", "l1", "smooth_l1")
MODELS = ("mlp", "small_cnn", "small_unet")


class Section(BaseModel):
    """Keys and types are taken at their word: nothing unknown, no text where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _lists_are_tuples(cls, value: Any) -> Any:
        """YAML has lists only."""
        return tuple(value) if isinstance(value, list) else value


class VideoConfig(Section):
    """How clips are taken from videos; `size`, `quality`, `cache` and `on_error` are those of the section around it."""

    length: Whole
    """Frames of a clip."""
    stride: Whole = 1
    """From one frame of a clip to the next: 2 takes every second one."""
    clips: Whole = 1
    """Clips taken from one video, each from its own part of it."""
    jitter: bool = True
    """Draw the start of a clip within its part, anew in every epoch; otherwise take the middle of the part."""
    temporal: bool = False
    """Rows of a CSV are segments (path, label, start, end), and clips have a label for every frame."""
    together: Whole = 1
    """Number of clips of a video that follow each other and are decoded in one pass."""
    threads: Whole | Auto = "auto"
    """Threads of each decoder."""


class DataConfig(Section):
    """Where samples come from and how they are made into batches."""

    source: str | None = None
    """A folder of images (one subfolder per class), a CSV (path, and label or mask), or package.module:callable."""
    args: dict[str, Any] = {}
    """Keywords for the callable."""
    masks: str | None = None
    """A folder with a mask of the same name for each image."""
    val_source: str | None = None
    """What to validate on; as `source`."""
    val_args: dict[str, Any] = {}
    """Keywords for the callable of `val_source`. Where that is `source`, those in `args` hold, too."""
    val_masks: str | None = None
    """As `masks`, for `val_source`."""
    val_share: Share | None = None
    """Without `val_source`: set aside this share of the samples, the same ones for the same seed."""
    batch_size: Whole | Auto = 32
    """Samples in a batch, for each process; auto: first find the size that trains fastest."""
    val_batch_size: Whole | None = None
    """None: as `batch_size`."""
    num_workers: WholeOrZero | Auto = "auto"
    """Decoders of image files, workers of a data set; auto: the number is found while training runs."""
    prefetch: Whole | Auto = "auto"
    """Batches held in host memory ahead of the step; of a data set, for each worker."""
    size: Size | None = None
    """Height and width of images from files."""
    channels: Literal[1, 3] = 3
    """Of image files: 1 (grey) or 3 (RGB)."""
    shuffle: bool = True
    """Training samples, anew in every epoch."""
    drop_last: bool = False
    """Leave out an epoch's last batch, where it is not full."""
    cache: str | None = None
    """A folder made by `fulltilt cache build`, or `fulltilt video cache`."""
    quality: Literal["exact", "fast"] = "exact"
    """fast: JPEG by a quicker transform, videos without smoothing; pixels differ slightly."""
    features: str | None = None
    """package.module:callable that turns an image file's pixels into a row of numbers: one more input of the model."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do with a file that can't be decoded: stop with an error that names it, or leave it out."""
    video: VideoConfig | None = None
    """The folder or CSV is one of videos."""
    val_video: VideoConfig | None = None
    """Of `val_source`; None: as `video`, without jitter."""

    @property
    def full_val_args(self) -> dict[str, Any]:
        """What the callable of `val_source` is called with."""
        return full_val_args(self.source, self.args, self.val_source, self.val_args)


def full_val_args(
    source: object, args: Mapping[str, Any], val_source: object, val_args: Mapping[str, Any]
) -> dict[str, Any]:
    """Of one callable both parts are cut in the same way, but for what is said of validation: else they overlap."""
    return {**args, **val_args} if val_source == source else dict(val_args)


class ModelConfig(Section):
    """The model."""

    name: str = "small_cnn"
    """A built-in (mlp, small_cnn, small_unet) or package.module:factory."""
    args: dict[str, Any] = {}
    """Keywords for it."""


class TrainingConfig(Section):
    """The loop and its step."""

    epochs: Whole = 10
    """Passes over the training data."""
    max_steps: Whole | None = None
    """Stop after this many steps, whatever the epochs."""
    lr: Positive = 1e-3
    """The optimizer's learning rate; a scheduler begins with it."""
    optimizer: str = "adamw"
    """adamw, adam, sgd, rmsprop or package.module:callable, which is called with the parameters, lr and the args."""
    optimizer_args: dict[str, Any] = {}
    """More keywords for it, such as weight_decay."""
    scheduler: str | None = None
    """cosine, step, onecycle, linear, plateau or package.module:callable, which is called with the optimizer."""
    scheduler_args: dict[str, Any] = {}
    """Keywords for it; its length is that of the run, unless they say otherwise."""
    scheduler_interval: Literal["epoch", "step"] | None = None
    """When the scheduler steps; None: each step for onecycle, each epoch for the others."""
    loss: str | None = None
    """cross_entropy, bce_with_logits, mse, l1, smooth_l1 or package.module:callable; None: what fits the target."""
    device: str = "auto"
    """auto (a GPU, where there is one), cpu, cuda or cuda:1."""
    use_amp: bool | None = None
    """The guides' switch: true is precision auto, false is fp32."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """auto: tried on the model, kept where it pays."""
    compile: bool | Auto = "auto"
    """torch.compile; auto: kept where trials show that it pays, as with the next three."""
    channels_last: bool | Auto = "auto"
    """The memory format of convolutions."""
    cuda_graph: bool | Auto = "auto"
    """Replay the step as a CUDA graph."""
    fused: bool | Auto = "auto"
    """The optimizer's fused form."""
    accumulate: Whole = 1
    """Batches to one optimizer step."""
    clip_norm: Positive | None = None
    """Largest norm of all gradients together; None: they are not clipped."""
    ema_decay: Share | None = None
    """Keep an average of the weights and validate with it; 0.999 keeps that share of the average at each step."""
    eval_interval: Whole = 5
    """Validate every N epochs, and after the last."""
    checkpoint_interval: Whole = 5
    """Save every N epochs, and after the last."""
    checkpoint_every_steps: Whole | None = None
    """Also save every N steps."""
    keep_last: Whole = 3
    """Number of newest checkpoints to keep."""
    keep_best: WholeOrZero = 1
    """Number of best checkpoints, by `monitor`, to keep as well."""
    monitor: str = "val_loss"
    """The figure that says which checkpoint is best, and that plateau watches."""
    monitor_mode: Literal["min", "max"] | None = None
    """None: as the torchmetrics metric says of itself; of others, min for losses and errors, max for the rest."""
    nan_policy: Literal["raise", "skip", "rollback"] = "raise"
    """When a loss is not a number: stop with an error, skip the update, or go back to a checkpoint."""
    use_gpu_augmentation: bool | None = None
    """None: on if the section `gpu_augmentation` is there."""
    train_metrics: bool = True
    """Metrics of the training batches, too, not of validation alone."""
    seed: WholeOrZero | None = None
    """None: random numbers go on from where they are; the data are then shuffled with seed 0."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """Under torchrun: each process with a copy of the model (ddp) or a part of it (fsdp); auto: ddp where it fits."""
    sync_batchnorm: bool = False
    """Under torchrun: batch statistics over all processes' samples; otherwise each has its own."""
    resume: bool | Auto = "auto"
    """Go on from the newest good checkpoint, if any; auto: when torchrun has started the processes again."""
    output: str | None = None
    """Folder for checkpoints and logs; None: nothing is written (the command takes runs/ and the file's name)."""


class AugmentationConfig(BaseModel):
    """`preset`, and any keyword of `GPUAugmentation`, which checks them."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    preset: AugmentationPreset = "default"
    """The class whose settings the keywords change: GPUAugmentation, or the one of that name."""

    @property
    def options(self) -> dict[str, Any]:
        """The keywords."""
        given = self.model_extra or {}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


class MetricConfig(Section):
    """One torchmetrics metric."""

    name: str
    """package.module:Class; a bare name is looked for in torchmetrics.classification and torchmetrics."""
    args: dict[str, Any] = {}
    """Keywords for it."""


class LoggingConfig(Section):
    """What is logged, and where."""

    progress: bool | Auto = "auto"
    """The bar; auto: where stderr is a terminal."""
    perf_interval: Whole = 100
    """Batches between two [perf] lines."""
    jsonl: bool = True
    """log.jsonl in the output folder."""
    tensorboard: bool | Auto = "auto"
    """auto: where it is installed and there is an output folder."""


class Config(Section):
    """The whole file."""

    data: DataConfig = DataConfig()
    """Samples and batches."""
    model: ModelConfig = ModelConfig()
    """What is trained."""
    training: TrainingConfig = TrainingConfig()
    """The loop and its step."""
    gpu_augmentation: AugmentationConfig | None = None
    """Augmentation of training images on the device; None: none."""
    metrics: dict[str, MetricConfig] = {}
    """Metrics, by the names that they get in the log."""
    logging: LoggingConfig = LoggingConfig()
    """What is logged, and where."""

    @field_validator("data", "model", "training", "logging", "metrics", mode="before")
    @classmethod
    def _nothing_is_empty(cls, value: Any) -> Any:
        """A section with nothing but comments in it."""
        return {} if value is None else value

    @property
    def augments(self) -> bool:
        """Whether training images are augmented on the device."""
        wanted = self.training.use_gpu_augmentation
        return self.gpu_augmentation is not None if wanted is None else wanted
