"""Plans: written, read again, noticed when they are damaged or of another time."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.errors import FulltiltError, InputError
from fulltilt.launch.command import parse
from fulltilt.launch.search import plan as plans
from fulltilt.launch.search.plan import Key, Plan


def made(key: Key | None = None, **more: object) -> Plan:
    key = key or Key(
        command=("train.py", "--lr", '0.1 "quoted"\n'), content="abc", hardware="no GPU, 2 cores",
        versions={"python": "3.11.7", "torch": "2.13.0", "fulltilt": "1"},
    )  # fmt: skip
    settings = {"loader.num_workers": 4, "loader.persistent_workers": True, "autocast": "bfloat16"}
    plan = Plan(key=key, level="numeric", settings=settings, before=100.5, after=321.0, limit=400.0, verified="same")
    return dataclasses.replace(plan, **more)  # type: ignore[arg-type]


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "plan.toml"
    plans.write(made(), path)
    assert plans.read(path) == made()
    bare = made(settings={}, before=None, after=None, limit=None, notes=("one", "two"))
    plans.write(bare, path)
    assert plans.read(path) == bare
    other = made(
        draws_anew=True,
        level="semantic",
        settings={"loader.batch_size": 4096, "compile": "reduce-overhead", "threads": 1},
    )
    plans.write(other, path)
    assert plans.read(path) == other


def test_a_script_whose_name_is_not_utf_8_has_a_plan_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = tmp_path / os.fsdecode(b"entra\xeener.py")
    script.write_text("")
    command = parse([str(script)])
    path = plans.default_path(command)
    plan = made(plans.key_of(command))
    plans.write(plan, path)
    assert plans.read(path) == plan
    assert plans.read(path).why_not(plans.key_of(command)) is None


def test_a_plan_that_does_not_say_what_its_figures_count_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    text = plans.to_toml(made(unit="samples/s"))
    path.write_text(text)
    assert plans.read(path).unit == "samples/s"
    path.write_text(text.replace('unit = "samples/s"\n', ""))
    assert plans.read(path) == made(unit="per second")


def test_a_plan_from_before_something_was_kept_in_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plans.to_toml(made()).replace("draws_anew = false\n", ""))
    assert "draws_anew" not in path.read_text()
    assert plans.read(path) == made()


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(FulltiltError, match=r"can't make the folder .*cache/plans .*--plan"):
        plans.write(made(), tmp_path / "cache" / "plans" / "one.toml")


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_survives(words: str, verified: str) -> None:
    import tomllib

    plan = made(verified=verified.encode("utf-8", "ignore").decode())
    key = dataclasses.replace(plan.key, command=(words.encode("utf-8", "ignore").decode(),))
    plan = dataclasses.replace(plan, key=key)
    assert plans._parsed(tomllib.loads(plans.to_toml(plan))) == plan


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "format = 2", "format"),
        ("format = 1\n", "", "'format' is missing"),
        ('level = "numeric"', 'level = "loose"', "loose"),
        ('"loader.num_workers" = 4', '"loader.num_workers" = "many"', "many"),
        ('"loader.num_workers" = 4', '"loader.number" = 4', "loader.number"),
        ('"autocast" = "bfloat16"', '"autocast" = "int3"', "int3"),
        ("[made_for]", "[made for]", "can't be read"),
        ("[settings]", "[set", "can't be read"),
    ],
)
def test_damage_is_said(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "plan.toml"
    text = plans.to_toml(made())
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=said):
        plans.read(path)


def test_bytes_that_are_no_text_and_no_file_at_all(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    with pytest.raises(InputError, match="there is no plan"):
        plans.read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="can't be read"):
        plans.read(path)


def test_why_a_plan_no_longer_fits() -> None:
    key = made().key
    assert key.why_not(key) is None
    other = dataclasses.replace(key, hardware="1 × NVIDIA H200, 16 cores")
    assert "another machine" in (other.why_not(key) or "")
    assert "script has changed" in (dataclasses.replace(key, content="x").why_not(key) or "")
    old = dataclasses.replace(key, versions={**key.versions, "torch": "2.9.0"})
    assert old.why_not(key) == "it was made with torch 2.9.0, now it is 2.13.0"


def test_a_module_of_ones_own_that_has_changed_is_noticed(tmp_path: Path) -> None:
    module = tmp_path / 'data "set".py'
    module.write_text("size = 1")
    plan = made(modules={str(module): plans.hash_of(str(module))})
    plans.write(plan, tmp_path / "plan.toml")
    plan = plans.read(tmp_path / "plan.toml")
    assert plan.why_not(plan.key) is None
    module.write_text("size = 2")
    assert plan.why_not(plan.key) == f"{module}, which the script imports, has changed since"
    module.unlink()
    assert plan.why_not(plan.key) == f"{module}, which the script imports, has changed since"
    assert "another machine" in (plan.why_not(dataclasses.replace(plan.key, hardware="2 cores")) or "")


def test_each_script_and_its_arguments_have_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = tmp_path / "train it.py"
    script.write_text("print()")
    one = plans.default_path(parse([str(script)]))
    assert one.parent == tmp_path / "fulltilt" / "plans"
    assert one.name.startswith("train_it.py-")
    assert plans.default_path(parse([str(script), "--lr", "1"])) != one
    key = plans.key_of(parse([str(script)]))
    script.write_text("print(1)")
    assert key.why_not(plans.key_of(parse([str(script)]))) == "the script has changed since"
    assert plans.default_path(parse([str(script)])) == one


def test_a_folder_has_the_text_of_its_main(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("print(1)")
    (tmp_path / "notes.txt").write_text("of today")
    key = plans.key_of(parse([str(tmp_path)]))
    (tmp_path / "notes.txt").write_text("of tomorrow")
    assert key.why_not(plans.key_of(parse([str(tmp_path)]))) is None
    (tmp_path / "__main__.py").write_text("print(2)")
    assert key.why_not(plans.key_of(parse([str(tmp_path)]))) == "the script has changed since"


@pytest.mark.parametrize("argument", ["base.yaml", "--config=base.yaml"])
def test_a_configuration_that_has_changed_is_noticed(
    argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("base.yaml").write_text("batch_size: 32")
    Path("last.pt").write_text("weights")
    command = parse(["train.py", argument, "--resume", "last.pt", "--out", "folder.json"])
    key = plans.key_of(command)
    Path("last.pt").write_text("weights of a day later")
    assert key.why_not(plans.key_of(command)) is None
    Path("base.yaml").write_text("batch_size: 64")
    assert key.why_not(plans.key_of(command)) == (
        "the script, or a configuration file among its arguments, has changed since"
    )
    assert plans.key_of(parse(["train.py", "--lr", "1"])).content == plans.key_of(parse(["train.py"])).content
