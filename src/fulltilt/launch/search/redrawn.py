"""Random draws that are others in the run itself: what is exact then, and what has to be said. Pure.

torch seeds worker n with a base seed plus n; without workers, samples draw from the training's own generator. So with
another number of workers every draw is another one, as with another seed. For the comparison of losses each sample's
draws are fixed, in both runs; in the run itself they are not. Another number of workers is therefore exact only for
loaders whose samples draw nothing, and at level exact it is put upon those alone: `loader.undrawn` names them. A loader
that was never seen, such as one of an evaluation that comes later, is not among them, and keeps the workers it has.

Draws within the model, for dropout most often, are tied to the seed in the same way, where settings would change them:
those of torch, which the run itself has, are others once it is compiled, in half precision or channels last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fulltilt.diagnose.finding import Level
from fulltilt.launch.search.candidates import LEVELS, level_of
from fulltilt.launch.search.plan import Plan
from fulltilt.launch.settings import Settings, loader_name
from fulltilt.measure.observation import Loader, Observation

_DRAWS_OTHERS = ("compile", "autocast", "channels_last")
_WITHIN = (
    "random draws within the model were tied to the seed, in the run itself they may be others, as with another seed"
)
_DRAWS = "its samples draw random numbers, which would be others"
_MAY_DRAW = "whether its samples draw random numbers, which would be others, could not be seen"


def name_of(loader: Loader) -> str:
    return loader_name(loader.place, loader.dataset, loader.samples)


def undrawn(observation: Observation) -> tuple[str, ...]:
    """Loaders whose samples draw nothing, by name; of two that have the same name, both have to."""
    drawing = {name_of(one) for one in observation.loaders if one.draws is not False}
    return tuple(dict.fromkeys(name for one in observation.loaders if (name := name_of(one)) not in drawing))


def bound(settings: Mapping[str, Any], undrawn: Sequence[str] | None) -> Settings:
    """The settings, another number of workers for these loaders alone; None binds nothing."""
    if undrawn is None or "loader.num_workers" not in settings:
        return dict(settings)
    return {**settings, "loader.undrawn": list(undrawn)}


def level_in_run(settings: Mapping[str, Any]) -> Level:
    """What the run itself keeps to: losses that are the same with each sample's draws fixed are not the run's."""
    own = level_of(settings)
    redraws = "loader.num_workers" in settings and "loader.undrawn" not in settings
    return max(own, "numeric", key=LEVELS.index) if redraws else own


def draws_others(settings: Mapping[str, Any]) -> bool:
    """Whether a model draws other numbers with them, from the same seed: drops other elements, say."""
    return any(name in settings for name in _DRAWS_OTHERS)


def told(reason: str, settings: Mapping[str, Any], observation: Observation, *, draws: bool = False) -> str:
    """What a comparison of losses came to, and what it does not say about the run. With `draws` the model drew, in runs
    in which that was tied to the seed."""
    others = draws and draws_others(settings)
    return _of_samples(reason, settings, observation) + (f"; {_WITHIN}" if others else "")


def draws_anew(settings: Mapping[str, Any], observation: Observation) -> bool:
    """Whether samples' draws are others in the run itself, or may be: then that is told."""
    redraws = "loader.num_workers" in settings and "loader.undrawn" not in settings
    return redraws and any(one.draws is not False for one in observation.loaders)


def _of_samples(reason: str, settings: Mapping[str, Any], observation: Observation) -> str:
    if not draws_anew(settings, observation):
        return reason
    if_any = "" if any(one.draws for one in observation.loaders) else ", if there are any,"
    return (
        f"{reason}, with each sample's random draws fixed; in the run itself they{if_any} are drawn anew, as with any "
        "other num_workers"
    )


def left_out(observation: Observation) -> str:
    """Why another number of workers is not tried at level exact."""
    loader = observation.train_loader
    why = _DRAWS if loader is not None and loader.draws else _MAY_DRAW
    return f"another number of workers is left out at level exact: {why} (--level numeric tries it)"


def after_all(plan: Plan, seen: Observation) -> tuple[str, ...]:
    """Loaders that drew in the run itself, whose workers are not the script's own, where nobody has said so."""
    if "loader.num_workers" not in plan.settings or plan.draws_anew:
        return ()
    drawing = [one for one in seen.loaders if one.draws and one.num_workers and not one.keeps_workers]
    names = dict.fromkeys(name_of(one) for one in drawing)
    known = plan.settings.get("loader.undrawn")
    return tuple(name for name in names if known is None or name in known)


def without(plan: Plan, names: Sequence[str]) -> Plan:
    """A plan that leaves the workers of these loaders alone."""
    left = [name for name in plan.settings.get("loader.undrawn", ()) if name not in names]
    settings = {name: value for name, value in plan.settings.items() if name != "loader.undrawn"}
    if left:
        settings["loader.undrawn"] = left
    else:
        del settings["loader.num_workers"]
    return replace(plan, settings=settings, after=None)
