"""Configuration files: every problem at once, with its path; what is printed reads back as the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fulltilt.errors import InputError, UnavailableError
from fulltilt.train.config.config import Config, TrainingConfig
from fulltilt.train.config.file import dump_config, make_config, make_training, parse_config, read_config

BROKEN = """
data:
  source: images
  batch_size: 0
  num_wokers: 4
  size: [32, no]
model: {name: resnt}
training:
  epochs: "ten"
  lr: -1e-3
  precision: fp8
  ema_decay: 2
  scheduler: cosin
  use_amp: maybe
gpu_augmentation:
  horizontal_flip_prb: 0.5
  rotation_degrees: 999
  preset: heavy
metrics:
  accuracy: {nam: MulticlassAccuracy}
logging: {perf_interval: 0}
trainin: {}
"""


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_config(text, overrides, source="run.yaml")
    first, *rest = str(caught.value).split("\n  ")
    assert first == f"run.yaml: {len(rest)} problem{'s' * (len(rest) > 1)}"
    return rest


def test_a_broken_file_lists_every_problem_at_once():
    found = problems(BROKEN)
    assert found == [
        "data.batch_size: found 0; allowed: a whole number ≥ 1 or auto",
        "data.size: found [32, False]; allowed: a whole number ≥ 1 or [height, width] or null",
        "data.num_wokers: not a key; did you mean num_workers?",
        "training.epochs: found 'ten'; allowed: a whole number ≥ 1",
        "training.lr: found -0.001; allowed: a number > 0",
        "training.use_amp: found 'maybe'; allowed: true or false or null",
        "training.precision: found 'fp8'; allowed: one of auto, fp32, tf32, bf16, fp16",
        "training.ema_decay: found 2; allowed: a number > 0 and < 1 or null",
        "gpu_augmentation.preset: found 'heavy'; allowed: one of default, minimal, strong, progressive",
        "metrics.accuracy.name: missing; give text",
        "metrics.accuracy.nam: not a key; did you mean name?",
        "logging.perf_interval: found 0; allowed: a whole number ≥ 1",
        "trainin: not a key; did you mean training?",
        *[line for line in found if line.startswith("gpu_augmentation.horizontal_flip_prb is not an option")],
        "gpu_augmentation.rotation_degrees=999 must be a number from 0 to 360 or a pair (low, high) within -360 to 360",
        "model.name: found 'resnt'; allowed: mlp, small_cnn, small_unet or package.module:callable",
        "training.scheduler: found 'cosin' (did you mean cosine?); allowed: cosine, step, onecycle, linear, plateau "
        "or package.module:callable",
    ]
    assert len(found) == 17


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("training: {lr: .nan}", "training.lr: found nan; allowed: a number > 0"),
        ("training: {lr: .inf}", "training.lr: found inf; allowed: a number > 0"),
        ("training: {epochs: 2.5}", "training.epochs: found 2.5; allowed: a whole number ≥ 1"),
        ("training: {epochs: true}", "training.epochs: found True; allowed: a whole number ≥ 1"),
        ("training: {compile: maybe}", "training.compile: found 'maybe'; allowed: true or false or auto"),
        ("training: [1, 2]", "training: found [1, 2]; allowed: a section with keys of its own"),
        ("gpu_augmentation: 5", "gpu_augmentation: found 5; allowed: a section with keys of its own or null"),
        ("data: {args: 3}", "data.args: found 3; allowed: a section with keys of its own"),
        ("metrics: {a: 3}", "metrics.a: found 3; allowed: a section with keys of its own"),
        ("data: {channels: 2}", "data.channels: found 2; allowed: 1 or 3"),
        ("data: {unheard_of: 1}", "data.unheard_of: not a key; allowed: source, args, masks,"),
        ("training: {use_amp: false, precision: bf16}", "training.precision: found 'bf16' with use_amp: false"),
        ("data: {val_source: a, val_share: 0.1}", "data.val_share: samples are set aside only without"),
        ("data: {val_masks: a}", "data.val_masks: needs data.val_source"),
        ("gpu_augmentation: {switch_epoch: 3}", "gpu_augmentation.switch_epoch: needs preset: progressive"),
        ("training: {lr: 1, lr: 2}", "training.lr: given twice, in lines 1 and 1; leave one of them out"),
    ],
)
def test_one_problem(text, says):
    (found,) = problems(text)
    assert found.startswith(says)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("training.lr=fast", "training.lr: found 'fast'; allowed: a number > 0"),
        ("lr=3", "lr: not a key; did you mean training.lr?"),
        ("training.lr", "'training.lr': expected section.key=value, such as training.lr=0.01"),
        ("=3", "'=3': expected section.key=value"),
        ("training.epochz=3", "training.epochz: not a key; did you mean epochs?"),
        ("batchsize=3", "batchsize: not a key; did you mean data.batch_size?"),
        ("training.optimizer=AdamW", "training.optimizer: found 'AdamW' (did you mean adamw?)"),
    ],
)
def test_an_override_that_is_wrong(override, says):
    (found,) = problems("", override)
    assert found.startswith(says)


def test_overrides_win_and_have_the_types_of_yaml():
    config = parse_config(
        "training: {lr: 1, epochs: 2}",
        ["training.lr=5e-4", "data.size=[24, 48]", "training.scheduler=null", "gpu_augmentation.hue=0.1"],
    )
    assert (config.training.lr, config.training.epochs) == (5e-4, 2)
    assert config.data.size == (24, 48)
    assert config.gpu_augmentation is not None
    assert config.gpu_augmentation.options == {"hue": 0.1}
    assert config.augments


def test_numbers_written_as_people_write_them():
    """YAML 1.1 takes 1e-3 for text."""
    assert parse_config("training: {lr: 1e-3}").training.lr == 1e-3
    assert parse_config("training: {lr: 1}").training.lr == 1.0


def test_the_guides_presets_are_read_as_they_stand():
    best = parse_config(
        "data: {batch_size: 32, num_workers: 4}\n"
        "training: {use_gpu_augmentation: true, use_amp: true}\n"
        "gpu_augmentation: {horizontal_flip_prob: 0.5, rotation_degrees: 15, brightness: 0.2, contrast: 0.2}\n"
    )
    assert best.augments
    assert best.training.use_amp
    debugging = parse_config("data: {num_workers: 0}\ntraining: {use_gpu_augmentation: false, use_amp: false}")
    assert not debugging.augments


def test_a_section_of_comments_is_empty():
    assert parse_config("training:\n  # nothing\ndata:\n") == Config()


def test_what_is_printed_is_complete_and_reads_back_as_the_same():
    config = parse_config(
        "data: {source: a, size: [3, 4], args: {n: 1}}\n"
        "gpu_augmentation: {preset: strong, scale: [0.9, 1.1]}\n"
        "metrics: {iou: {name: BinaryJaccardIndex}}\n"
    )
    text = dump_config(config)
    assert parse_config(text) == config
    for name in TrainingConfig.model_fields:
        assert f"\n  {name}: " in text


def test_a_file_that_is_not_yaml_names_the_place(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("training:\n  lr: [1, 2\n")
    with pytest.raises(InputError, match=r"run\.yaml:3:1: not YAML"):
        read_config(path)
    path.write_text("- 1\n")
    with pytest.raises(InputError, match="expected the sections data, model, training"):
        read_config(path)
    with pytest.raises(InputError, match=r"nothing\.yaml: can't be read \(No such file or directory\)"):
        read_config(tmp_path / "nothing.yaml")
    path.write_bytes("training: {loss: größer}".encode("latin-1"))
    with pytest.raises(InputError, match=r"can't be read .*; save it in UTF-8"):
        read_config(path)


def test_mappings_from_python_are_checked_alike():
    assert make_training({"epochs": 3}).epochs == 3
    assert make_config({"data": {"size": [1, 2]}}).data.size == (1, 2)
    with pytest.raises(InputError, match=r"training\.epochs: found 0"):
        make_training({"epochs": 0})


def test_folders_from_python_may_be_paths():
    config = make_config({"data": {"source": Path("photos")}, "training": {"output": Path("runs") / "first"}})
    assert (config.data.source, config.training.output) == ("photos", "runs/first")
    assert make_training({"output": Path("here")}).output == "here"


def test_the_example_is_valid():
    read_config(Path(__file__).parents[3] / "examples" / "train.yaml")


NAMES = """
data:
  source: no_such_folder
  args: {n: 3}
  val_source: no_such_module:val
  batch_size: 0
model: {name: tests.train.config.test_config:Modl}
training:
  device: gpu
  optimizer: sgd
  optimizer_args: {momentun: 0.9}
  scheduler: step
  scheduler_args: {step: 3}
  loss: torch.nn.functional:mse_los
  monitor: val_acuracy
metrics:
  accuracy: {name: MulticlasAccuracy, args: {num_classes: 3}}
  iou: {name: BinaryJaccardIndex, args: {treshold: 0.5}}
"""


def test_names_that_lead_nowhere_are_listed_with_all_other_problems():
    with pytest.raises(InputError) as caught:
        parse_config(NAMES, source="run.yaml", look_up=True)
    first, *found = str(caught.value).split("\n  ")
    expected = [
        "data.batch_size: found 0; allowed: a whole number ≥ 1 or auto",
        "data.source: no_such_folder is read as a folder or .csv file, which takes no args (n)",
        "data.source: no_such_folder does not exist (looked in ",
        "data.val_source: there is no module 'no_such_module'",
        "model.name: tests.train.config.test_config has no 'Modl'; did you mean Model?",
        "training.optimizer: SGD(lr=0.001, momentun=0.9) failed: got an unexpected keyword argument 'momentun'",
        "training.scheduler: StepLR(step=3) failed: got an unexpected keyword argument 'step'",
        "training.loss: torch.nn.functional has no 'mse_los'; did you mean mse_loss?",
        "training.device: device='gpu' is unknown; allowed: 'auto', 'cpu', 'cuda', 'cuda:0', …",
        "metrics.accuracy.name: torchmetrics has no 'MulticlasAccuracy'; did you mean MulticlassAccuracy?",
        "metrics.iou: BinaryJaccardIndex(treshold=0.5) failed: ",
        "training.monitor: found 'val_acuracy' (did you mean val_accuracy?); there are ",
    ]
    assert first == f"run.yaml: {len(expected)} problems"
    for line, begins in zip(found, expected, strict=True):
        assert line.startswith(begins), line


Model = None


def test_a_file_whose_names_lead_somewhere_is_fine(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    (tmp_path / "breaks_when_imported.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    good = "data: {source: images, val_share: 0.1, size: 32}\nmodel: {args: {classes: 3}}\ntraining: {device: cpu}\n"
    assert parse_config(good, look_up=True) == parse_config(good)
    for override, says in (
        ("model.args={}", r"model: SmallCnn\(\) failed: missing a required argument: 'classes'"),
        ("data.masks=nowhere", "data.source: the masks' folder nowhere does not exist"),
        ("data.cache=nowhere", "data.cache: nowhere does not exist"),
        ("data.source=null", "data.source: missing; give a folder"),
        ("data.size=null", "data.size: missing; image files may differ in size, so give a whole number or"),
        ("data.features=likeness", "data.features: found 'likeness'; allowed: package.module:callable"),
        ("data.features=torch:no_such", "data.features: torch has no 'no_such'"),
        ("training.loss=breaks_when_imported:loss", "training.loss can't be imported: RuntimeError: no licence"),
    ):
        with pytest.raises(InputError, match=f"configuration: 1 problem\n  {says}"):
            parse_config(good, [override], look_up=True)
    for key in ("size", "random_crop"):
        assert parse_config(good, ["data.size=null", f"gpu_augmentation.{key}=32"], look_up=True)
    # The file is right, and the machine has no such device: that is another exit status.
    if not torch.cuda.is_available():
        with pytest.raises(UnavailableError, match=r"training\.device: .*torch sees no NVIDIA GPU"):
            parse_config(good, ["training.device=cuda"], look_up=True)
