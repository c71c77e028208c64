"""What several processes share out and agree on, without starting any."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from fulltilt.errors import InputError, UnavailableError
from fulltilt.feed import feed
from fulltilt.feed.order import Order
from fulltilt.train.ranks import fsdp, group, shared
from fulltilt.train.ranks.parallel import bytes_needed, choose
from fulltilt.train.ranks.together import steps_apart
from fulltilt.train.seeding import part_ways, seed_everything

DATA = TensorDataset(torch.arange(22).float(), torch.arange(22))
CPU = torch.device("cpu")


@pytest.fixture
def two_ranks(monkeypatch):
    """This process believes to be one of two."""

    def as_rank(rank: int) -> None:
        monkeypatch.setattr(shared, "several", lambda: True)
        monkeypatch.setattr(shared, "world", lambda: 2)
        monkeypatch.setattr(shared, "rank", lambda: rank)

    return as_rank


def drawn(two_ranks, rank, *, epoch=0, state=None, **options):
    two_ranks(rank)
    source = shared.share(DataLoader(DATA, 4, **options), CPU, name="train_loader", seed=5)
    source.set_epoch(epoch)
    if state is not None:
        source.load_state_dict(state)
    found = [batch[1].tolist() for batch in source]
    source.close()
    return found


def test_a_data_loader_is_shared_out_in_the_order_of_our_feeds(two_ranks):
    first, second = (drawn(two_ranks, rank, shuffle=True, epoch=3) for rank in range(2))
    expected = [[step.indices.tolist() for step in Order(length=22, batch_size=4, shuffle=True, seed=5, rank=rank,
                 world=2).epoch(3)] for rank in range(2)]  # fmt: skip
    assert [first, second] == expected
    assert sorted(chain.from_iterable(first + second)) == list(range(22))
    assert drawn(two_ranks, 1) == [[4, 5, 6, 7], [12, 13, 14, 15], [19, 20, 21]]


def test_its_epochs_differ_and_its_place_can_be_saved(two_ranks):
    two_ranks(0)
    source = shared.share(DataLoader(DATA, 4, shuffle=True), CPU, name="train_loader", seed=5)
    first, second = ([batch[1].tolist() for batch in source] for _ in range(2))
    assert first != second
    source.set_epoch(0)
    iterator = iter(source)
    assert next(iterator)[1].tolist() == first[0]
    state = source.state_dict()
    assert state == {"epoch": 0, "position": 8, "seed": 5, "shuffle": True, "length": 22}
    source.close()
    assert drawn(two_ranks, 0, shuffle=True, state=state) == first[1:]


def test_a_place_of_another_number_of_processes_is_gone_on_from():
    order = Order(length=22, batch_size=4, rank=0, world=1)
    source = shared.SharedLoaderFeed(DataLoader(DATA, 4), order, device=CPU)
    state = {"epoch": 0, "position": 6, "seed": 0, "shuffle": False, "length": 22}
    with pytest.raises(InputError, match="this loader has length=22, the saved one had 23"):
        source.load_state_dict({**state, "length": 23})
    source.load_state_dict(state)
    assert list(chain.from_iterable(batch[1].tolist() for batch in source)) == list(range(6, 22))
    assert shared.batches_done(source, state) == 2, "six batches in all, four are left"
    source.close()


def test_what_is_shared_already_is_left_alone(two_ranks):
    two_ranks(0)
    loader = DataLoader(DATA, 4, sampler=DistributedSampler(DATA, num_replicas=2, rank=0))
    assert shared.share(loader, CPU, name="train_loader", seed=0) is None
    assert shared.share([1, 2], CPU, name="train_loader", seed=0) is None


def test_a_sampler_that_can_not_be_shared_is_named(two_ranks):
    two_ranks(0)
    loader = DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 22, 22))
    with pytest.raises(InputError, match=r"WeightedRandomSampler can't be shared among 2 ranks.*DistributedSampler"):
        shared.share(loader, CPU, name="train_loader", seed=0)


def test_a_loader_of_a_class_that_goes_its_own_way_is_not_taken_apart(two_ranks):
    class Negated(DataLoader):
        def __iter__(self):
            return (-batch for batch in super().__iter__())

    two_ranks(0)
    with pytest.raises(InputError, match=r"train_loader: Negated, which has an __iter__ of its own, can't be shared"):
        shared.share(Negated(range(22), 4), CPU, name="train_loader", seed=0)
    own = Negated(range(22), 4, sampler=DistributedSampler(range(22), num_replicas=2, rank=0))
    assert shared.share(own, CPU, name="train_loader", seed=0) is None


def test_a_feed_made_before_the_group_is_refused(two_ranks):
    early = feed((torch.zeros(8, 2), torch.zeros(8)), batch_size=2, device="cpu")
    two_ranks(0)
    with pytest.raises(InputError, match="made before the process group"):
        shared.check_shared(early, 4, name="train_loader")


def test_ranks_with_other_numbers_of_batches_are_refused(two_ranks, monkeypatch):
    two_ranks(0)
    source = shared.share(DataLoader(DATA, 4), CPU, name="val_loader", seed=0)
    monkeypatch.setattr(shared, "everybodys", lambda value: [value, value + 1])
    with pytest.raises(InputError, match=r"numbers of batches differ \(3, 4\)"):
        shared.check_shared(source, 3, name="val_loader")
    monkeypatch.setattr(shared, "everybodys", lambda value: [value, -1])
    assert not shared.check_shared(source, 3, name="val_loader"), "who does not know must be asked at every step"
    source.close()


@pytest.mark.parametrize("length", [1, 7, 16, 17, 22])
@pytest.mark.parametrize("world", [2, 3])
def test_what_only_fills_up_the_last_step_is_not_counted(length, world):
    counted = []
    for rank in range(world):
        order = Order(length=length, batch_size=4, rank=rank, world=world)
        source = type("Source", (), {"order": order})()
        for number, step in enumerate(order.epoch(0), start=1):
            own = shared.own_samples(source, number)
            counted += step.indices[: len(step.indices) if own is None else own].tolist()
    assert sorted(counted) == list(range(length))


def test_first_samples_leaves_other_tensors_whole():
    weights = torch.ones(3)
    images, more, kept = shared.first_samples((torch.zeros(5, 2), torch.arange(5), weights), 2)
    assert len(images) == 2
    assert more.tolist() == [0, 1]
    assert kept is weights


def test_a_model_is_split_only_where_it_does_not_fit():
    assert choose("auto", needed_bytes=10, device_bytes=None).value == "ddp"
    assert choose("auto", needed_bytes=80, device_bytes=100).value == "ddp"
    assert choose("auto", needed_bytes=81, device_bytes=100).value == "fsdp"
    assert choose("ddp", needed_bytes=81, device_bytes=100).value == "ddp"
    assert choose("fsdp", needed_bytes=1, device_bytes=100).value == "fsdp"


def test_bytes_of_weights_gradients_and_optimizer():
    model = nn.Linear(9, 10, bias=False)  # 360 bytes
    assert bytes_needed(model, [torch.optim.AdamW(model.parameters())], ema=False) == 4 * 360
    assert bytes_needed(model, [torch.optim.SGD(model.parameters(), lr=1)], ema=True) == 3 * 360


def test_blocks_are_those_worth_a_message(monkeypatch):
    monkeypatch.setattr(fsdp, "_UNIT_BYTES", 4 * 64)
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    tied, twin = nn.Linear(8, 8), nn.Linear(8, 8)
    twin.weight = tied.weight
    model = nn.Sequential(inner, nn.Linear(2, 2), tied, nn.ModuleList([nn.Linear(8, 8)]), twin)
    assert list(fsdp.blocks(model)) == [model[3][0], inner[0], inner]


def test_optimizers_have_a_state_to_read_into():
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    fsdp.begin_states([optimizer])
    assert torch.equal(model.weight, before)
    assert set(optimizer.state[model.weight]) == {"step", "exp_avg", "exp_avg_sq"}
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_each_rank_has_its_gpu(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert group.gpu_of(1, 2) == 1
    with pytest.raises(UnavailableError, match=r"LOCAL_RANK is 1, but there are 1 GPUs here.*--nproc-per-node 1"):
        group.gpu_of(1, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert group.gpu_of(1, 1) == 0


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(group, "read_cores", type("Cores", (), {"usable": 16}))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert group.threads_of_rank(1) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert group.threads_of_rank(2) == 2


def test_without_torchrun_there_is_no_group(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with group.process_group():
        assert not torch.distributed.is_initialized()


def test_ranks_draw_other_numbers_after_parting():
    found = []
    for rank in range(2):
        seed_everything(7)
        part_ways(rank)
        found.append((torch.rand(3).tolist(), np.random.rand(3).tolist()))
    seed_everything(7)
    assert found[0] == (torch.rand(3).tolist(), np.random.rand(3).tolist()), "the first goes on as it would alone"
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_ranks_ask_each_other_about_twice_a_second():
    assert steps_apart(0.01) == 50
    assert steps_apart(5.0) == 1
    assert steps_apart(0.0) == 1000
