"""Parts of nested containers, changed: the containers stay what they are."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType

import torch

from fulltilt.nested import map_parts, map_tensors

Pair = namedtuple("Pair", "left right")


class Output(OrderedDict):
    """As model libraries make them."""

    def update(self, *args, **kwargs):
        raise TypeError("you cannot use ``update`` on an Output")


def test_structures_keep_their_kind():
    batch = {"a": [torch.ones(2), "text"], "b": Pair(torch.zeros(1), (torch.ones(1), 3))}
    changed = map_tensors(lambda tensor: tensor + 1, batch)
    assert changed["a"][0].tolist() == [2.0, 2.0]
    assert changed["a"][1] == "text"
    assert isinstance(changed["b"], Pair)
    assert changed["b"].right[0].tolist() == [2.0]
    assert changed["b"].right[1] == 3
    counted = map_tensors(lambda tensor: tensor + 1, defaultdict(list, a=torch.ones(1)))
    assert counted["a"].tolist() == [2.0]
    assert counted["new"] == []
    output = map_tensors(lambda tensor: tensor + 1, Output(logits=torch.ones(1)))
    assert isinstance(output, Output)
    assert output["logits"].tolist() == [2.0]


def test_all_mappings_are_gone_through():
    for given in (UserDict(a=torch.ones(1)), MappingProxyType({"a": torch.ones(1)}), OrderedDict(a=torch.ones(1))):
        changed = map_tensors(lambda tensor: tensor + 1, given)
        assert type(changed) is type(given)
        assert (changed["a"].tolist(), given["a"].tolist()) == ([2.0], [1.0])


def test_containers_are_new_where_there_is_something_of_the_kind_and_the_same_elsewhere():
    batch = [torch.ones(1), {"a": [torch.ones(1)], "b": ["name"]}]
    same = map_tensors(lambda tensor: tensor, batch)
    assert same is not batch
    assert same[1] is not batch[1]
    assert same[1]["a"] is not batch[1]["a"]
    assert same[1]["b"] is batch[1]["b"]
    assert map_parts(int, lambda number: number + 1, batch) is batch


def test_several_kinds():
    assert map_parts((int, str), lambda part: part * 2, (1, ["a", 2.0])) == (2, ["aa", 2.0])


def test_of_a_packed_sequence_the_steps_sizes_stay_on_the_host():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 4), torch.ones(3, 4)], enforce_sorted=False)
    moved = map_tensors(lambda tensor: tensor.to("meta"), {"x": packed})["x"]
    assert type(moved) is type(packed)
    assert (moved.data.device.type, moved.unsorted_indices.device.type) == ("meta", "meta")
    assert torch.equal(moved.batch_sizes, packed.batch_sizes)
