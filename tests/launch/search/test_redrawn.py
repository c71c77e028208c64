"""Samples that draw, and another number of workers: what is exact, and what is said."""

from __future__ import annotations

from typing import Any

from fulltilt.launch.search import redrawn
from fulltilt.launch.search.plan import Key, Plan
from fulltilt.measure.observation import Loader, Observation, Place

WORKERS = {"loader.num_workers": 4}
ANEW = (
    "the same, with each sample's random draws fixed; in the run itself they are drawn anew, as with any other "
    "num_workers"
)


def loader(line: int, draws: bool | None, role: Any = "train", **changes: Any) -> Loader:
    return Loader(
        role=role, place=Place(file="/home/me/train.py", line=line), dataset="Photos", samples=100, batch_size=8,
        prefetch_factor=None, persistent_workers=False, pin_memory=False, batch_bytes=1, draws=draws,
        **{"num_workers": 4, **changes},
    )  # fmt: skip


def seen(*loaders: Loader) -> Observation:
    return Observation(command=("train.py",), ended="steps", seconds=1.0, loaders=loaders)


def plan(settings: dict[str, Any], *, draws_anew: bool = False) -> Plan:
    key = Key(command=("train.py",), content="", hardware="", versions={})
    return Plan(key=key, level="exact", settings=settings, draws_anew=draws_anew, after=9.0)


def test_only_loaders_that_were_seen_to_draw_nothing_are_given_other_workers() -> None:
    several = seen(loader(3, False), loader(5, True, "eval"), loader(7, None, "eval"), loader(9, False, "eval"))
    assert redrawn.undrawn(several) == ("train.py:3 Photos 100", "train.py:9 Photos 100")
    twins = seen(loader(3, False), loader(3, True, "eval"))
    assert redrawn.undrawn(twins) == (), "they can't be told apart"
    assert redrawn.bound(WORKERS, ("a",)) == {**WORKERS, "loader.undrawn": ["a"]}
    assert redrawn.bound(WORKERS, None) == WORKERS
    assert redrawn.bound({"loader.pin_memory": True}, ("a",)) == {"loader.pin_memory": True}


def test_a_plan_is_exact_where_the_run_itself_is() -> None:
    assert redrawn.level_in_run(WORKERS) == "numeric"
    assert redrawn.level_in_run(redrawn.bound(WORKERS, ("a",))) == "exact"
    assert redrawn.level_in_run({"loader.persistent_workers": True}) == "exact"
    assert redrawn.level_in_run({**WORKERS, "augment": True}) == "semantic"


def test_what_is_said_of_the_losses_is_true_of_the_run() -> None:
    assert redrawn.told("the same", WORKERS, seen(loader(3, False))) == "the same"
    assert redrawn.told("the same", WORKERS, seen(loader(3, True))) == ANEW
    assert redrawn.told("the same", WORKERS, seen(loader(3, False), loader(5, True, "eval"))) == ANEW
    assert ", if there are any, are drawn anew" in redrawn.told("the same", WORKERS, seen(loader(3, None)))
    assert redrawn.draws_anew(WORKERS, seen(loader(3, None)))
    assert not redrawn.draws_anew(WORKERS, seen(loader(3, False)))
    assert not redrawn.draws_anew({}, seen(loader(3, True)))
    assert redrawn.told("the same", {"fused": True}, seen(loader(3, True))) == "the same"
    bound = redrawn.bound(WORKERS, ("train.py:3 Photos 100",))
    assert redrawn.told("the same", bound, seen(loader(3, False), loader(5, True, "eval"))) == "the same"


def test_that_the_model_draws_others_is_said_where_it_may() -> None:
    others = (
        "; random draws within the model were tied to the seed, in the run itself they may be others, as with another "
        "seed"
    )
    still, drawing = seen(loader(3, False)), seen(loader(3, True))
    for name, value in (("compile", True), ("autocast", "bfloat16"), ("channels_last", True)):
        assert redrawn.told("the same", {name: value}, still, draws=True) == f"the same{others}"
        assert redrawn.told("the same", {name: value}, still) == "the same", "nothing was drawn"
    assert redrawn.told("the same", {"tf32": True, **WORKERS}, still, draws=True) == "the same"
    both = redrawn.told("the same", {"compile": True, **WORKERS}, drawing, draws=True)
    assert both == f"{ANEW}{others}"


def test_what_is_left_out_is_said_with_its_reason() -> None:
    assert "its samples draw random numbers" in redrawn.left_out(seen(loader(3, True)))
    assert "could not be seen" in redrawn.left_out(seen(loader(3, None)))
    assert "--level numeric tries it" in redrawn.left_out(seen(loader(3, None)))


def test_samples_that_draw_only_in_the_run_itself_are_told() -> None:
    run = seen(loader(3, False), loader(5, True, "eval"), loader(7, True, "eval", num_workers=0))
    assert redrawn.after_all(plan(WORKERS), run) == ("train.py:5 Photos 100",)
    assert redrawn.after_all(plan(WORKERS, draws_anew=True), run) == (), "it was said"
    assert redrawn.after_all(plan({"fused": True}), run) == ()
    names = ("train.py:3 Photos 100", "train.py:5 Photos 100")
    exact = plan(redrawn.bound({**WORKERS, "loader.pin_memory": True}, names))
    assert redrawn.after_all(exact, run) == names[1:]
    assert redrawn.after_all(plan(redrawn.bound(WORKERS, names[:1])), run) == (), "its workers are its own"
    one = redrawn.without(exact, names[1:])
    assert one.settings == {**WORKERS, "loader.pin_memory": True, "loader.undrawn": [names[0]]}
    assert one.after is None
    assert redrawn.without(one, names[:1]).settings == {"loader.pin_memory": True}
