"""Tensors in memory: the same batches as a DataLoader's, gathered where they are."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fulltilt.errors import InputError
from fulltilt.feed import feed


@given(st.integers(1, 60), st.integers(1, 20), st.booleans())
def test_batches_are_those_of_a_dataloader(length, batch_size, drop_last):
    x, y = torch.randn(length, 3), torch.arange(length)
    if drop_last and batch_size > length:
        return
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, drop_last=drop_last)
    it = feed((x, y), batch_size=batch_size, drop_last=drop_last, device="cpu")
    assert len(it) == len(loader)
    for ours, theirs in zip(it, loader, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_shuffled_epochs_follow_the_sampler_of_the_same_order():
    x = torch.arange(50)
    it = feed(x, batch_size=7, shuffle=True, seed=4, device="cpu")
    for epoch in range(3):
        expected = it.order.permutation(epoch)
        loader = DataLoader(TensorDataset(x), batch_size=7, sampler=expected.tolist())
        assert [b.tolist() for (b,) in it] == [b.tolist() for (b,) in loader]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_resume_at_another_batch_size_gives_exactly_the_rest(length, batch_size, other_size, data):
    x = torch.arange(length)
    first = feed(x, batch_size=batch_size, shuffle=True, device="cpu")
    loop = iter(first)
    done = data.draw(st.integers(0, len(first)))
    before = [v for _ in range(done) for v in next(loop)[0].tolist()]
    again = feed(x, batch_size=other_size, shuffle=True, device="cpu")
    again.load_state_dict(first.state_dict())
    after = [v for (batch,) in again for v in batch.tolist()]
    if done < len(first):
        assert before + after == first.order.permutation(0).tolist()
    else:
        assert after == first.order.permutation(1).tolist(), "the epoch was over: the next one begins"


def test_arrays_are_taken_as_they_are_and_a_function_is_given_the_batch():
    x, y = np.arange(12, dtype=np.float32), np.arange(12)
    it = feed((x, y), batch_size=5, augment=lambda batch: (batch[0] * 2, batch[1]), device="cpu")
    assert [(a.tolist(), b.tolist()) for a, b in it][2] == ([20.0, 22.0], [10, 11])


def test_lengths_that_differ_are_named():
    with pytest.raises(InputError, match=r"one length, found \[3, 4\]"):
        feed((torch.zeros(3), torch.zeros(4)), batch_size=1, device="cpu")
