"""What a configuration names, looked up before anything is loaded or built: sources, models, devices, metrics, and
whether callables take the arguments that they are given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from fulltilt.errors import FulltiltError, InputError
from fulltilt.machine.device import named_device
from fulltilt.train import build
from fulltilt.train.config.config import MetricConfig, full_val_args
from fulltilt.train.config.data import source_problems
from fulltilt.train.config.references import failed, found, is_reference
from fulltilt.train.report.monitored import Monitored
from fulltilt.train.step.precision import Precision, formats_for


def name_problems(content: Mapping[str, Any]) -> list[FulltiltError]:
    """All of them, of a file's content in which other things may be wrong, too."""
    names = _Names(content)
    names.sources()
    names.parts()
    names.device()
    names.figures()
    return names.problems


class _Names:
    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self.problems: list[FulltiltError] = []

    def sources(self) -> None:
        if self._at("data", "source") is None:
            what = "give a folder of images, a .csv file or package.module:callable"
            self.problems.append(InputError(f"data.source: missing; {what}"))
        for prefix in ("", "val_"):
            name, masks = (self._at("data", f"{prefix}{key}") for key in ("source", "masks"))
            if not isinstance(name, str):
                continue
            path, args = f"data.{prefix}source", _mapping(self._at("data", "args"))
            if prefix:
                args = full_val_args(self._at("data", "source"), args, name, _mapping(self._at("data", "val_args")))
            found_wrong = source_problems(path, name, args, masks if isinstance(masks, str) else None)
            self.problems += map(InputError, found_wrong)
            if not (prefix or found_wrong or is_reference(name) or self._sized()):
                what = "image files may differ in size, so give a whole number or [height, width]"
                self.problems.append(InputError(f"data.size: missing; {what}"))
            if is_reference(name):
                self._callable(path, name, {}, args)
        self._callable("data.features", self._at("data", "features"), {}, None)
        cache = self._at("data", "cache")
        if isinstance(cache, str) and cache != "auto" and not Path(cache).is_dir():
            self.problems.append(InputError(f"data.cache: {cache} does not exist; `fulltilt cache build` makes one"))

    def parts(self) -> None:
        """Model, optimizer, scheduler and loss."""
        model = self._at("model", "name") or "small_cnn"
        self._callable("model.name", model, build.MODELS, _mapping(self._at("model", "args")))
        training = _mapping(self._at("training"))
        args = _mapping(training.get("optimizer_args"))
        args = {"lr": training.get("lr", 1e-3), **args}
        self._callable("training.optimizer", training.get("optimizer", "adamw"), build.OPTIMIZERS, args, [])
        args = _mapping(training.get("scheduler_args"))
        self._callable("training.scheduler", training.get("scheduler"), build.SCHEDULERS, args, None, whole=False)
        self._callable("training.loss", training.get("loss"), build.LOSSES, None)

    def device(self) -> None:
        name, precision = self._at("training", "device") or "auto", self._at("training", "precision") or "auto"
        device = None
        with self._noting("training.device"):
            device = named_device(name)
        if device is not None and precision in get_args(Precision):
            with self._noting("training.precision"):
                formats_for(precision, device, ())

    def figures(self) -> None:
        """Metrics, and the one that is monitored."""
        metrics = _mapping(self._at("metrics"))
        for name, metric in metrics.items():
            kind, args = _mapping(metric).get("name"), _mapping(_mapping(metric).get("args"))
            if isinstance(kind, str):
                with self._noting():
                    build.make_metric(f"metrics.{name}", MetricConfig(name=kind, args=dict(args)))
        monitor = self._at("training", "monitor")
        if isinstance(monitor, str):
            validates = any(self._at("data", key) is not None for key in ("val_source", "val_share"))
            with self._noting():
                Monitored(monitor, None, metrics=metrics, validates=validates)

    def _callable(
        self,
        path: str,
        name: Any,
        known: Mapping[str, Callable[..., Any]],
        args: Mapping[str, Any] | None,
        *first: Any,
        whole: bool = True,
    ) -> None:
        """
        Args:
            args: those that it will be called with, after `first`; None: not known.
            whole: that these are all; otherwise more are added.
        """
        if not isinstance(name, str) or (name not in known and not is_reference(name)):
            return  # its form is for others to judge
        make = known.get(name)
        with self._noting(path):
            make = make or found(path, name)
        if make is None or args is None:
            return
        try:
            signature = inspect.signature(make)
            (signature.bind if whole else signature.bind_partial)(*first, **args)
        except TypeError as error:
            self.problems.append(failed(path.removesuffix(".name"), make, args, error))
        except ValueError:
            return  # one of those in C that don't tell what they take

    def _sized(self) -> bool:
        """Whether something gives images from files one size; clips are asked for theirs elsewhere."""
        augments = any(self._at("gpu_augmentation", key) is not None for key in ("size", "random_crop"))
        return augments or any(self._at("data", key) is not None for key in ("size", "video"))

    def _at(self, section: str, key: str | None = None) -> Any:
        found = self._content.get(section)
        return found if key is None else _mapping(found).get(key)

    @contextmanager
    def _noting(self, path: str | None = None) -> Iterator[None]:
        try:
            yield
        except FulltiltError as error:
            told = str(error)
            self.problems.append(error if path is None or told.startswith(path) else type(error)(f"{path}: {told}"))
        except Exception as error:  # a module of the user's, which may raise anything when it is imported
            said = f"{type(error).__name__}: {error}"
            self.problems.append(InputError(f"{path or 'a module that is named'} can't be imported: {said}"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
