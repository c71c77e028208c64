"""`fulltilt train`: train what a configuration file describes."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fulltilt.errors import FulltiltError, InputError
from fulltilt.machine.ranks import told_local_rank, told_world
from fulltilt.words import clock, many

if TYPE_CHECKING:
    from fulltilt.train.config.config import Config
    from fulltilt.train.loop import Trainer

_SIGNAL = 128
"""A run that a signal ended, after it was saved, exits with this plus the signal's number, as shells count."""
_FIRST_SECONDS = 10.0
"""How long a rank waits for the first one to say what is wrong; torchrun ends it as soon as that one has left."""


def _shorthand(name: str, key: str) -> Any:
    """An option that means an override. Its value is text, which is checked where all of the file is."""
    return typer.Option(f"--{name}", metavar="N", help=f"Short for {key}=N.", show_default=False)


def train(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Overrides, such as training.lr=0.01.", show_default=False),
    ] = None,
    *,
    num_workers: Annotated[str | None, _shorthand("num_workers", "data.num_workers")] = None,
    batch_size: Annotated[str | None, _shorthand("batch_size", "data.batch_size")] = None,
    eval_interval: Annotated[str | None, _shorthand("eval_interval", "training.eval_interval")] = None,
    checkpoint_interval: Annotated[
        str | None, _shorthand("checkpoint_interval", "training.checkpoint_interval")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the newest good checkpoint of the output folder, if any.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the complete configuration that would be used, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, in one line.")] = False,
) -> None:
    """Train what a configuration file describes.

    SIGTERM and Ctrl-C save and leave, with status 143 and 130; --resume continues from there, with the same losses.
    """
    from fulltilt.train.config.file import dump_config, in_full, parse_config, read_config

    if config is None:
        if not print_config:
            raise InputError("CONFIG is missing: name a YAML file; `fulltilt train --print-config` shows its keys")
        print(dump_config(parse_config("")), end="")
        return
    short = {
        "data.num_workers": num_workers,
        "data.batch_size": batch_size,
        "training.eval_interval": eval_interval,
        "training.checkpoint_interval": checkpoint_interval,
    }
    given = [*(overrides or []), *(f"{key}={value}" for key, value in short.items() if value is not None)]
    with _said_once():
        settings = _with_output(read_config(config, given, look_up=not print_config), config)
        if print_config:
            print(dump_config(in_full(settings)), end="")
            return
        ended = _trained(settings, resume=resume)
    stopped = ended.trainer.history.stopped_by
    if ended.trainer.is_main:
        _print(ended, as_json=as_json)
        if stopped is not None:
            print(f"fulltilt: to resume: {_going_on(config, given)}", file=sys.stderr, flush=True)
    if stopped is not None:
        raise typer.Exit(_SIGNAL + stopped)


@contextmanager
def _said_once() -> Iterator[None]:
    """Under torchrun what is wrong is mostly wrong for all ranks: the machine's first one says it.

    The others must not leave before it has: torchrun would end it, and nobody would have said anything. One that is
    still there after a while has a fault of its own, which it says.
    """
    try:
        yield
    except FulltiltError as error:
        if told_local_rank():
            status = error.exit_status
            signal.signal(signal.SIGTERM, lambda *_: os._exit(status))
            time.sleep(_FIRST_SECONDS)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A run that is over."""

    trainer: Trainer
    output: str
    first_step: int
    """Steps that were made before it, by the run that it went on with."""
    first_epoch: int
    seconds: float


def _going_on(config: Path, overrides: list[str]) -> str:
    """The command that goes on with this run."""
    if told_world() > 1:
        return "the same torchrun command with --resume at its end"  # which was not ours to see
    return shlex.join(["fulltilt", "train", str(config), *overrides, "--resume"])


def _with_output(settings: Config, path: Path) -> Config:
    """Without a word about it, a run's files go to runs/ and the configuration's name."""
    if settings.training.output is not None:
        return settings
    training = settings.training.model_copy(update={"output": str(Path("runs") / path.stem)})
    return settings.model_copy(update={"training": training})


def _with_batch_size(settings: Config, output: Path, *, resumes: bool) -> Config:
    """`batch_size: auto` as a number: that of the run which goes on, or the one found here."""
    if settings.data.batch_size != "auto":
        return settings
    if not resumes:
        from fulltilt.tune import settle_batch_size

        return settle_batch_size(settings)
    from fulltilt.train.config.file import read_config

    earlier = read_config(output / "config.yaml").data.batch_size
    return settings.model_copy(update={"data": settings.data.model_copy(update={"batch_size": earlier})})


def _trained(settings: Config, *, resume: bool) -> _Ended:
    from fulltilt.train.ranks.group import process_group

    with process_group():  # under torchrun
        return _trained_together(settings, resume=resume)


def _trained_together(settings: Config, *, resume: bool) -> _Ended:
    from fulltilt.machine.files import write_whole
    from fulltilt.train.build import make_trainer
    from fulltilt.train.config.file import dump_config
    from fulltilt.train.ranks.group import restarted
    from fulltilt.train.ranks.together import largest

    assert settings.training.output is not None
    output = Path(settings.training.output)
    saved = largest(len(list((output / "checkpoints").glob("checkpoint-*"))))
    wanted = settings.training.resume
    if saved and not (resume or (restarted() if wanted == "auto" else wanted)):
        raise InputError(
            f"{output} holds {many(saved, 'checkpoint')} of an earlier run: add --resume to go on with it, "
            "or name another folder with training.output=…"
        )
    settings = _with_batch_size(settings, output, resumes=bool(saved))
    trainer = make_trainer(settings)
    if saved:
        step = trainer.resume()
        if trainer.is_main:
            print(f"fulltilt: resuming from step {step} (epoch {trainer.epoch + 1})", file=sys.stderr, flush=True)
    if trainer.is_main:
        write_whole(output / "config.yaml", dump_config(settings))
    first_step, first_epoch = trainer.step, trainer.epoch
    began = time.perf_counter()
    trainer.fit()
    return _Ended(
        trainer=trainer,
        output=str(output),
        first_step=first_step,
        first_epoch=first_epoch,
        seconds=time.perf_counter() - began,
    )


def _print(ended: _Ended, *, as_json: bool) -> None:
    from fulltilt.train.report.logs import json_line

    trainer, history = ended.trainer, ended.trainer.history
    stopped = history.stopped_by
    if as_json:
        result = {
            "steps": history.steps,
            "epochs": trainer.epoch,
            "steps_of_this_run": history.steps - ended.first_step,
            "epochs_of_this_run": trainer.epoch - ended.first_epoch,
            "seconds_of_this_run": ended.seconds,
            "monitor": history.monitored,
            "best": history.best,
            "stopped_by": None if stopped is None else stopped.name,
            "output": ended.output,
            "last": history.last,
        }
        print(json_line(result))
        return
    best = "" if history.best is None else f", best {history.monitored} {history.best:.4g}"
    word = "finished" if stopped is None else "stopped"
    after = f"{word} after {many(history.steps, 'step')} in {clock(ended.seconds)}{best}"
    print(f"{after}; checkpoints and log in {ended.output}", flush=True)
