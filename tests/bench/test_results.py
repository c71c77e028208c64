"""Parts of two runs in one file: what was run now replaces its own, the rest stays with its date."""

from __future__ import annotations

import json

import pytest

from fulltilt.bench.results import joined, with_parts
from fulltilt.cli.bench_outputs import Outputs

OLD = {"machine": {"gpu": "a"}, "date": "monday", "cases": [{"part": "x", "n": 1}, {"part": "z", "n": 1}]}
NEW = {"machine": {"gpu": "a"}, "date": "friday", "cases": [{"part": "y", "n": 2}, {"part": "x", "n": 2}]}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(OLD))
    return path


def test_parts_that_were_left_out_stay(file):
    found = joined(file, NEW, by="part", order=("x", "y", "z"))
    assert [(case["part"], case["n"]) for case in found["cases"]] == [("x", 2), ("y", 2), ("z", 1)]
    assert found["dates"] == {"x": "friday", "y": "friday", "z": "monday"}
    file.write_text(json.dumps(found))
    again = joined(file, {**NEW, "date": "sunday", "cases": [{"part": "y", "n": 3}]}, by="part", order=("x", "y", "z"))
    assert again["dates"] == {"x": "friday", "y": "sunday", "z": "monday"}


def test_parts_that_are_no_more_go_and_those_of_anybody_stay(file):
    new = {**NEW, "cases": [{"part": "y"}]}
    assert [case["part"] for case in joined(file, new, by="part", order=("y", "z"))["cases"]] == ["y", "z"]
    assert [case["part"] for case in joined(file, new, by="part", order=None)["cases"]] == ["x", "z", "y"]


def test_figures_of_another_machine_or_size_are_not_kept(file):
    for other in ({"machine": {"gpu": "b"}}, {"small": True}):
        found = joined(file, {**NEW, **other}, by="part", order=("x", "y", "z"))
        assert {case["part"] for case in found["cases"]} == {"x", "y"}


def test_a_first_run_and_a_damaged_file(tmp_path, file):
    file.write_text("{")
    listed = tmp_path / "list.json"
    listed.write_text("[]")
    for path in (None, tmp_path / "none.json", file, listed):
        assert joined(path, NEW, by="part", order=("x", "y", "z"))["cases"] == NEW["cases"]


def test_what_can_not_be_joined_is_kept_under_another_name(file, capsys):
    """A machine is lent for minutes: what was measured on another one can't be had again."""
    outputs = Outputs(file)
    outputs.write(OLD)
    assert [path.name for path in file.parent.iterdir()] == ["found.json"], "the same machine's is replaced"
    other = {**NEW, "machine": {"gpu": "b"}}
    outputs.write(other)
    aside = file.with_name("found-earlier.json")
    assert (json.loads(file.read_text()), json.loads(aside.read_text())) == (other, OLD)
    assert f"was not of this machine and size; it is kept as {aside}" in capsys.readouterr().err
    outputs.write({**other, "small": True})
    assert json.loads(file.with_name("found-earlier1.json").read_text()) == other
    assert json.loads(aside.read_text()) == OLD


PARTS = {"one": ("a", "b"), "two": ("c",)}


def test_parts_that_are_keys_stay_likewise(tmp_path):
    file = tmp_path / "found.json"
    first = with_parts(file, {"machine": 1, "date": "monday", "a": 1, "b": 1}, PARTS)
    assert first["dates"] == {"one": "monday"}
    file.write_text(json.dumps(first))
    second = with_parts(file, {"machine": 1, "date": "friday", "c": 2}, PARTS)
    assert (second["a"], second["b"], second["c"]) == (1, 1, 2)
    assert second["dates"] == {"one": "monday", "two": "friday"}
    file.write_text(json.dumps(second))
    third = with_parts(file, {"machine": 1, "date": "sunday", "a": 3}, PARTS)
    assert (third["a"], third["c"], third["dates"]) == (3, 2, {"two": "friday", "one": "sunday"})
    assert "b" not in third, "it is of the earlier run of that part"
    assert "a" not in with_parts(file, {"machine": 2, "date": "sunday", "c": 3}, PARTS)
