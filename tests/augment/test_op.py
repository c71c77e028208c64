"""The operator behind torch.compile carries the whole of a call."""

from dataclasses import fields

from fulltilt.augment.op import _FLOATS, _INTS
from fulltilt.augment.spec import Spec


def test_every_field_of_a_spec_travels():
    assert {*_INTS, *_FLOATS, "dtype"} == {field.name for field in fields(Spec)}
    assert len(_INTS) + len(_FLOATS) + 1 == len(fields(Spec))
