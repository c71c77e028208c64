"""Tensors in memory: the same batches as a DataLoader's, gathered where they are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fulltilt.augment import MinimalGPUAugmentation
from fulltilt.errors import InputError
from fulltilt.feed import feed
from fulltilt.feed.datasets.dataset_feed import DatasetFeed
from fulltilt.feed.order import Order
from fulltilt.feed.structure import Augmenter
from fulltilt.feed.tensor_feed import TensorFeed, resident_on, samples_overlap, steps_together


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


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "NoneType can't be fed .*: a source is ImageFiles"),
        ((number for number in range(3)), "generator can't be fed .*: a source is ImageFiles"),
        (["a.jpg", "b.jpg"], r"a list of paths .*feed\(ImageFiles\(paths\)"),
        ([Path("a.bin")], r"a list of paths .*feed\(ImageFiles\(paths\)"),
    ],
)
def test_what_is_no_source_is_told_what_is(source, message):
    with pytest.raises(InputError, match=message):
        feed(source, batch_size=2, device="cpu")


def test_tensors_have_no_collate_function():
    with pytest.raises(InputError, match="collate: tensors are gathered as they are"):
        feed(torch.zeros(3), batch_size=1, device="cpu", collate=list)


@pytest.mark.parametrize("alone", [True, False])
def test_samples_left_out_by_others_do_not_disturb_an_augmentation(alone):
    images = torch.zeros(3, 1, 4, 4)
    found = Augmenter(MinimalGPUAugmentation())(images if alone else (images,), 0, torch.arange(5))
    assert (found if alone else found[0]).shape == images.shape


def test_lengths_that_differ_are_named():
    with pytest.raises(InputError, match=r"one length, found \[3, 4\]"):
        feed((torch.zeros(3), torch.zeros(4)), batch_size=1, device="cpu")


def _crossing(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> list[int]:
    """Elements of each tensor that is moved from now on; the device, which is none, has so much memory."""
    moved, to = list[int](), torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args: moved.append(self.numel()) or to(self, *args))
    monkeypatch.setattr("fulltilt.feed.tensor_feed.has_room", lambda device, needed: needed <= free_bytes)
    return moved


def test_windows_cross_the_bus_once_and_are_written_out_where_that_fits(monkeypatch):
    hours = torch.arange(1000.0).view(100, 2, 5)
    windows = hours[10:].unfold(0, 24, 1).movedim(-1, 2)  # 67 × 2 × 24 × 5
    few = torch.arange(20.0).view(4, 5)[:, ::4]  # of which less is wanted than lies between
    for free, strides in ((10**6, (240, 120, 5, 1)), (10**4, windows.stride())):
        moved = _crossing(monkeypatch, free)
        there, other = resident_on(torch.device("meta"), (windows, few))
        assert moved == [900, 8]
        assert (there.shape, there.stride(), there.storage_offset()) == (windows.shape, strides, 0)
        assert other.shape == few.shape
        monkeypatch.undo()
    empty = torch.empty(0, 3)
    assert resident_on(torch.device("meta"), (empty,))[0].shape == (0, 3)
    assert resident_on(torch.device("cpu"), (windows,))[0] is windows


def test_what_is_on_the_device_already_needs_no_room_there(monkeypatch):
    asked = list[int]()
    monkeypatch.setattr("fulltilt.feed.tensor_feed.has_room", lambda device, needed: asked.append(needed) or True)
    x = torch.zeros(8, 3)
    for device, needed in ((x.device, 0), (torch.device("cpu", 0), x.nbytes)):  # the other name is another device
        TensorFeed((x,), Order(length=8, batch_size=2, shuffle=False), device=device, ahead=1)
        assert set(asked) == {needed}
        asked.clear()


HOURS = torch.zeros(400, 4, 8)


@pytest.mark.parametrize(
    ("tensor", "overlap"),
    [
        (HOURS.unfold(0, 24, 1).movedim(-1, 2), True),
        (HOURS[:, 0, 0].unfold(0, 3, 2), True),  # few hours of one of many columns
        (HOURS[:, :, 0].unfold(0, 24, 23), True),
        (np.lib.stride_tricks.sliding_window_view(np.zeros((400, 3)), 24, axis=0), True),
        (HOURS.unfold(0, 24, 24), False),
        (HOURS.transpose(0, 1), False),
        (HOURS[:1].expand(50, 4, 8), False),  # one for all
        (HOURS[:, :1].expand(400, 3, 8), False),  # grey, as three colours
        (HOURS.view(40, 320).unfold(1, 16, 1), False),  # within each sample
        (HOURS[:1].unfold(2, 4, 1), False),
        (HOURS[:0], False),
        (np.zeros((4, 3))[::-1], False),
        (HOURS[:, 0, 0], False),
        (torch.zeros(7, 1), False),
        (torch.zeros(()), False),
    ],
)  # fmt: skip
def test_samples_that_overlap_are_told_from_those_that_only_look_like_it(tensor, overlap):
    assert samples_overlap(tensor) is overlap


@pytest.mark.parametrize("written_out", [True, False])
def test_windows_that_were_moved_are_the_same(monkeypatch, written_out):
    windows = torch.arange(1000.0).view(200, 5)[7:].unfold(0, 24, 2)
    other = torch.device("cpu", 0)  # another name of the same device
    assert other != windows.device
    _crossing(monkeypatch, 10**6 if written_out else 0)
    (there,) = resident_on(other, (windows,))
    assert there.is_contiguous() == written_out
    assert torch.equal(there, windows)
    index = torch.tensor([3, 0, 84, 3])
    assert torch.equal(there.index_select(0, index), windows.index_select(0, index))


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 3), st.booleans(), st.data())
def test_what_is_gathered_together_is_each_step_s_own(length, batch_size, world, drop_last, data):
    if drop_last and length < batch_size * world:
        return
    rank = data.draw(st.integers(0, world - 1))
    x = torch.arange(length * 4).view(length, 4)  # 32 bytes a sample: parts of what is gathered together are aligned
    order = Order(
        length=length, batch_size=batch_size, shuffle=True, drop_last=drop_last, rank=rank, world=world, seed=1
    )
    it = TensorFeed((x,), order, device=torch.device("cpu"), ahead=1, resident=True)
    steps = list(order.epoch(0)) + list(order.epoch(1))
    given_out = [batch.clone() for _ in range(2) for (batch,) in it]
    assert [batch[:, 0].tolist() for batch in given_out] == [(4 * step.indices).tolist() for step in steps]
    again = TensorFeed((x,), order, device=torch.device("cpu"), ahead=1, resident=True)
    loop = iter(again)
    done = data.draw(st.integers(0, len(again) - 1))
    for _ in range(done):
        next(loop)
    state = again.state_dict()
    again.load_state_dict(state)  # what was gathered ahead is given up
    assert [batch[:, 0].tolist() for (batch,) in again] == [
        (4 * step.indices).tolist() for step in list(order.epoch(0))[done:]
    ]


def test_small_aligned_batches_are_gathered_together_and_others_one_by_one():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    windows = (torch.zeros(4, 24, 16), torch.zeros(4, dtype=torch.int64))
    assert steps_together(windows, 32, gpu) == 64
    assert steps_together(windows, 32, cpu) == 1
    assert steps_together((torch.zeros(4, 2),), 32, cpu) == 64
    assert steps_together(windows, 31, gpu) == 1, "labels would begin anywhere"
    assert steps_together((torch.zeros(1, 3, 512, 512),), 32, gpu) == 1


def test_a_batch_may_be_written_to_without_changing_another():
    x = torch.arange(64.0).view(16, 4)
    for batch in (it := feed(x, batch_size=4, device="cpu")):
        batch[0].zero_()
    assert torch.equal(torch.cat([batch for (batch,) in it]), x)


def test_a_tensor_data_set_is_fed_as_its_tensors():
    data = TensorDataset(torch.arange(10), torch.arange(10) * 2)
    assert isinstance(feed(data, batch_size=4, device="cpu"), TensorFeed)
    assert isinstance(feed(data, batch_size=4, device="cpu", num_workers=0), DatasetFeed)


def test_set_epoch_keeps_the_place_that_was_loaded():
    """The usual loop, `for epoch in …: feed.set_epoch(epoch)`, after a resume."""
    x = torch.arange(20)
    first = feed(x, batch_size=4, shuffle=True, device="cpu")
    loop = iter(first)
    seen = [next(loop)[0] for _ in range(2)]
    again = feed(x, batch_size=4, shuffle=True, device="cpu")
    again.load_state_dict(first.state_dict())
    again.set_epoch(0)
    rest = [batch for (batch,) in again]
    assert sorted(torch.cat(seen + rest).tolist()) == list(range(20))
    again.set_epoch(0)
    assert len(list(again)) == 5, "from its beginning, once the place has been used"


def test_one_loop_at_a_time():
    it = feed(torch.arange(20), batch_size=4, device="cpu")
    one = iter(it)
    next(one)
    two = iter(it)
    next(two)
    with pytest.raises(InputError, match="another loop over this feed"):
        next(one)
    assert len(list(two)) == 4


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_unsigned_numbers_of_any_width_are_fed(kind, batch_size):
    """Scanners and depth cameras give 16 bits, of which torch gathers none by itself."""
    data = np.iinfo(kind).max - np.arange(60, dtype=kind).reshape(20, 3)
    numbers = np.ascontiguousarray(data[:, 0])
    batches = list(feed((data, numbers), batch_size=batch_size, device="cpu"))
    for place, expected in enumerate((data, numbers)):
        found = [batch[place].numpy() for batch in batches]
        assert np.array_equal(np.concatenate(found), expected)
        assert {each.dtype for each in found} == {np.dtype(kind)}


@pytest.mark.parametrize("name", ["shuffle", "drop_last"])
def test_a_word_is_no_switch(name):
    """'False', as a command line gives it, would switch on."""
    with pytest.raises(InputError, match=f"{name}='False' must be True or False"):
        feed(torch.zeros(4), batch_size=2, device="cpu", **{name: "False"})
    assert len(feed(torch.zeros(4), batch_size=3, device="cpu", **{name: np.bool_(False)})) == 2
