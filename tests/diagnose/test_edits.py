"""Edits change the one call that was meant, keep the rest to the letter, or are not made."""

from __future__ import annotations

import ast

import pytest

from fulltilt.diagnose import edits
from fulltilt.measure.observation import Place

WORKERS = {"num_workers": 4, "persistent_workers": True}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("l = DataLoader(d)", "l = DataLoader(d, num_workers=4, persistent_workers=True)"),
        ("l = DataLoader(d, num_workers=args.w)", "l = DataLoader(d, num_workers=4, persistent_workers=True)"),
        ("l = data.DataLoader(d,)", "l = data.DataLoader(d, num_workers=4, persistent_workers=True,)"),
        ("l = DataLoader()", "l = DataLoader(num_workers=4, persistent_workers=True)"),
        ("l = DataLoader((d))", "l = DataLoader((d), num_workers=4, persistent_workers=True)"),
        ("DataLoader(f('ä'), (1,))  # ü", "DataLoader(f('ä'), (1,), num_workers=4, persistent_workers=True)  # ü"),
        (
            "l = DataLoader(\n    d,\n    batch_size=2,\n)",
            "l = DataLoader(\n    d,\n    batch_size=2,\n    num_workers=4,\n    persistent_workers=True,\n)",
        ),
        (
            "l = DataLoader(\n    d,\n    batch_size=2  # two\n)",
            "l = DataLoader(\n    d,\n    batch_size=2, num_workers=4, persistent_workers=True  # two\n)",
        ),
        ("l = [DataLoader(d) for d in ds]", "l = [DataLoader(d, num_workers=4, persistent_workers=True) for d in ds]"),
    ],
)  # fmt: skip
def test_keywords_of_a_call(before, after):
    got = edits.with_keywords(1, "DataLoader", WORKERS)(before)
    assert got == after
    ast.parse(got)


@pytest.mark.parametrize(
    "source", ["l = DataLoader(d, **options)", "l = make_loader(d)", "x = 1\nl = DataLoader(d)", "l = DataLoader(d"]
)
def test_what_is_no_such_call_is_left_alone(source):
    assert edits.with_keywords(1, "DataLoader", WORKERS)(source) is None


@pytest.mark.parametrize(
    ("source", "fits"),
    [
        ("l = DataLoader(d, 8, True, None, None, 0)", False),
        ("l = DataLoader(*given)", False),
        ("l = DataLoader(d, 8, True)", True),
    ],
)
def test_an_argument_that_is_given_without_its_name_is_not_given_twice(source, fits):
    _, edit = edits.loader_edit(Place(file="a.py", line=1, text=source), WORKERS)
    assert (edit(source) is not None) is fits


def test_a_generator_argument_is_left_alone():
    assert (
        edits.edited(lambda _: "l = DataLoader(x for x in y)", "a.py", edits.with_keywords(1, "DataLoader", WORKERS))
        is None
    )


def test_two_calls_of_a_name_are_left_alone():
    edit = edits.everywhere("Adam", {"fused": True})
    assert edit("a = Adam(p)\nb = Adam(q)\n") is None
    assert edit("a = optim.Adam(p, lr=1)\n") == "a = optim.Adam(p, lr=1, fused=True)\n"


def test_a_line_below_the_imports():
    edit = edits.after_imports("torch.x()")
    assert edit('"""Doc."""\nimport torch\nfrom a import (\n    b,\n)\nmain()\n') == (
        '"""Doc."""\nimport torch\nfrom a import (\n    b,\n)\n\ntorch.x()\nmain()\n'
    )
    assert edit("main()\n") is None


def test_a_call_is_replaced_or_put_below_the_imports():
    edit = edits.replaced_call("set_num_threads", "torch.set_num_threads(2)")
    assert edit("import torch\nif True:\n    torch.set_num_threads(64)  # many\n") == (
        "import torch\nif True:\n    torch.set_num_threads(2)  # many\n"
    )
    assert edit("import torch\nmain()\n") == "import torch\n\ntorch.set_num_threads(2)\nmain()\n"
    assert edit("set_num_threads(1)\nset_num_threads(2)\n") is None


def test_a_diff_names_the_file_and_one_line_around():
    shown = edits.edited(
        lambda _: "a = 1\nb = 2\nl = DataLoader(d)\nc = 3\n",
        "/x/train.py",
        edits.with_keywords(3, "DataLoader", {"pin_memory": True}),
    )
    assert shown.splitlines() == [
        "--- train.py",
        "+++ train.py",
        "@@ -2,3 +2,3 @@",
        " b = 2",
        "-l = DataLoader(d)",
        "+l = DataLoader(d, pin_memory=True)",
        " c = 3",
    ]


def test_a_file_that_cannot_be_read_gives_no_diff():
    assert edits.edited(lambda _: None, "train.py", edits.after_imports("x")) is None
    assert edits.edited(lambda _: "import a\n", None, edits.after_imports("x")) is None
