"""What the loop is fed with, and what happens to batches on their way: feeds, augmentation, schedulers."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from PIL import Image
from tests.train.helpers import EXACT
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fulltilt import GPUAugmentation, ProgressiveAugmentation, Trainer
from fulltilt.errors import InputError
from fulltilt.feed import ImageFiles, feed
from fulltilt.train.augmenting import describe, for_training
from fulltilt.train.schedules import Schedules
from fulltilt.train.sources import IterableFeed, as_feed, batches

CPU = torch.device("cpu")


def test_a_feed_stays_and_others_are_put_behind_one():
    tensors = torch.zeros(8, 2), torch.zeros(8)
    own = feed(tensors, batch_size=2, device="cpu")
    assert as_feed(own, CPU, name="x") is own
    assert batches(as_feed(DataLoader(TensorDataset(*tensors), 2), CPU, name="x")) == 4
    assert batches(as_feed([1, 2, 3], CPU, name="x")) == 3
    assert batches(as_feed(iter([1]), CPU, name="x")) is None


def test_an_iterable_is_gone_on_with_where_it_was_left():
    told = []

    class Source(list):
        def set_epoch(self, epoch):
            told.append(epoch)

    data = Source((torch.full((2,), float(i)),) for i in range(5))
    source = IterableFeed(data, CPU)
    iterator = iter(source)
    seen = [float(next(iterator)[0][0]) for _ in range(3)]
    again = IterableFeed(data, CPU)
    again.load_state_dict(source.state_dict())
    assert seen + [float(batch[0][0]) for batch in again] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [float(batch[0][0]) for batch in again] == [0.0, 1.0, 2.0, 3.0, 4.0], "the next epoch is whole"
    assert again.state_dict() == {"epoch": 2, "batches": 0}
    assert told == [0]


@pytest.mark.parametrize(("starves", "share"), [(True, 0.5), (False, 0.0)])
def test_a_loop_that_is_only_held_up_does_not_wait_for_data(starves, share):
    """One that is ahead of its device is made to wait, too: the feed knows which it was."""

    class Holding(IterableFeed):
        def __iter__(self):
            for batch in self._source:
                time.sleep(0.02)
                if starves:
                    self._clock.waited(0.02)
                yield batch

    data = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))] * 6
    trainer = Trainer(nn.Linear(3, 2), Holding(data, CPU), device="cpu", config={"epochs": 2})
    found = trainer.fit().epochs
    for record in found:
        assert (record["wait_share"] > share) is starves
    assert (trainer.stepper.get_performance_stats()["data_wait_seconds"] > 0) is starves


# --- augmentation ------------------------------------------------------------------------------------------------


class Seen(nn.Module):
    """A model that remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.given: dict[bool, list[torch.Tensor]] = {True: [], False: []}

    def forward(self, images):
        self.given[self.training].append(images.detach().clone())
        return self.scale * images.mean((1, 2, 3), keepdim=False)[:, None].expand(-1, 2)


def pictures(count: int = 12):
    draw = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 3, 8, 8), dtype=torch.uint8, generator=draw), torch.arange(count) % 2


def fitted(data, val, augmentation, **config):
    model = Seen()
    Trainer(
        model, data, val, config={"epochs": 2, "eval_interval": 1, **EXACT, **config}, gpu_augmentation=augmentation
    ).fit()
    return model.given


def test_training_is_augmented_and_validation_only_scaled():
    images, labels = pictures()
    data = feed((images, labels), batch_size=4, device="cpu", shuffle=True, seed=2)
    val = DataLoader(TensorDataset(images, labels), 6)
    augmentation = GPUAugmentation(1.0, 0.0, 0.0, 0.0, normalize=([0.5] * 3, [0.25] * 3))
    given = fitted(data, val, augmentation)
    scaled = (images / 255 - 0.5) / 0.25
    for epoch in (given[False][:2], given[False][2:]):
        torch.testing.assert_close(torch.cat(epoch), scaled, atol=1e-5, rtol=1e-5)
    first = torch.cat(given[True][:3])
    order = data.order.permutation(0)
    torch.testing.assert_close(first, scaled.flip(-1)[torch.from_numpy(order)], atol=1e-5, rtol=1e-5)


def test_draws_follow_the_sample_and_the_epoch_not_the_batch():
    images, labels = pictures()
    augmentation = {"rotation_degrees": 30, "seed": 3}
    small = fitted(feed((images, labels), batch_size=2, device="cpu"), None, GPUAugmentation(**augmentation))
    large = fitted(feed((images, labels), batch_size=6, device="cpu"), None, GPUAugmentation(**augmentation))
    assert torch.equal(torch.cat(small[True]), torch.cat(large[True]))
    both = torch.cat(large[True])
    assert not torch.equal(both[:12], both[12:]), "another draw in each epoch"


def test_a_feed_that_augments_is_not_augmented_again():
    images, labels = pictures()
    flips = GPUAugmentation(1.0, 0.0, 0.0, 0.0)
    data = feed((images, labels), batch_size=4, device="cpu", augment=flips)
    given = fitted(data, None, GPUAugmentation(1.0, 0.0, 0.0, 0.0))
    torch.testing.assert_close(torch.cat(given[True][:3]), images.flip(-1) / 255, atol=1e-6, rtol=1e-6)
    assert for_training(flips, data) is None
    scaling = feed((images, labels), batch_size=4, device="cpu", augment=GPUAugmentation().eval())
    assert for_training(flips, scaling) is not None


NORMALIZE = ([0.5] * 3, [0.25] * 3)


@pytest.mark.parametrize("augments", ["feed", "trainer", "both"])
@pytest.mark.parametrize("val", ["files", "loader"])
def test_whoever_augments_pixels_to_validate_with_are_scaled_as_those_to_train_on(augments, val, tmp_path):
    """An automatic resize in validation's feed is no preparation: bytes would reach the model."""
    images, labels = pictures()
    for number, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number:02}.png")
    files = ImageFiles(sorted(tmp_path.iterdir()), labels=labels.tolist())
    flips = GPUAugmentation(1.0, 0.0, 0.0, 0.0, size=8, normalize=NORMALIZE)
    resize = {"size": 8} if augments == "trainer" else {"augment": flips}
    train = feed(files, batch_size=4, device="cpu", num_workers=1, **resize)
    held_out = feed(files, batch_size=6, size=8, device="cpu", num_workers=1)
    if val == "loader":
        held_out.close()
        held_out = DataLoader(TensorDataset(images, labels), 6)
    given = fitted(train, held_out, None if augments == "feed" else flips)
    scaled = (images / 255 - 0.5) / 0.25
    for epoch in (slice(2), slice(2, 4)):
        torch.testing.assert_close(torch.cat(given[False][epoch]), scaled, atol=1e-5, rtol=1e-5)
    for epoch in (slice(3), slice(3, 6)):
        torch.testing.assert_close(torch.cat(given[True][epoch]), scaled.flip(-1), atol=1e-5, rtol=1e-5)


def test_what_validation_has_scaled_itself_is_not_scaled_again():
    images, labels = pictures()
    flips = GPUAugmentation(1.0, 0.0, 0.0, 0.0, normalize=NORMALIZE)
    train = feed((images, labels), batch_size=4, device="cpu", augment=flips)
    scaled = (images / 255 - 0.5) / 0.25
    given = fitted(train, DataLoader(TensorDataset(scaled, labels), 12), None)
    assert torch.equal(given[False][0], scaled)
    own = feed((images, labels), batch_size=12, device="cpu", augment=copy.deepcopy(flips).eval())
    given = fitted(train, own, flips)
    torch.testing.assert_close(given[False][0], scaled, atol=1e-5, rtol=1e-5)


def test_validation_that_would_be_augmented_is_refused():
    images, labels = pictures()
    flips = GPUAugmentation()
    data, val = (feed((images, labels), batch_size=4, device="cpu", augment=flips) for _ in range(2))
    with pytest.raises(InputError, match="val_loader augments at random: its GPUAugmentation is in training mode"):
        Trainer(Seen(), data, val, config=EXACT)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda images: images.float(), "found 0 to 255: divide by 255"),
        (lambda images: images / 127.5 - 1, "found -1 to 1: leave normalising to it, with normalize="),
    ],
)
def test_floats_that_would_be_cut_off_are_told_of_at_the_first_batch(make, message):
    images, labels = pictures()
    images[0, 0, 0] = torch.tensor([0, 255] * 4)
    data = DataLoader(TensorDataset(make(images), labels), 4)
    with pytest.raises(InputError, match=message):
        fitted(data, None, GPUAugmentation())
    with pytest.raises(InputError, match=message), feed(data, device="cpu", augment=GPUAugmentation()) as batches_:
        next(iter(batches_))


def test_what_splines_overshoot_is_cut_off():
    images, labels = pictures()
    fitted(DataLoader(TensorDataset(images / 255 * 1.4 - 0.2, labels), 4), None, GPUAugmentation())


def test_classes_have_the_same_numbers_in_validation(tmp_path):
    def files(part, *classes, **more):
        for name in classes:
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / part / name / "1.png")
        return feed(ImageFiles(tmp_path / part, **more), batch_size=2, size=8, device="cpu", num_workers=1)

    with files("train", "ant", "bee", "cat") as train:
        with files("fewer", "ant", "bee") as val:
            Trainer(Seen(), train, val, config=EXACT)
        message = "numbers its classes otherwise than train_loader: 'cat' is 1, training has it as 2"
        with files("shifted", "ant", "cat") as val, pytest.raises(InputError, match=message):
            Trainer(Seen(), train, val, config=EXACT)
        with files("right", "ant", "cat", classes=train.classes) as val:
            Trainer(Seen(), train, val, config=EXACT)
        with files("other", "ant", "dog") as val, pytest.raises(InputError, match="training has no such class"):
            Trainer(Seen(), train, val, config=EXACT)


def test_switched_off_it_scales_and_does_nothing_else():
    images, labels = pictures()
    data = feed((images, labels), batch_size=4, device="cpu")
    given = fitted(data, None, GPUAugmentation(1.0, 0.0, 0.0, 0.0), use_gpu_augmentation=False)
    torch.testing.assert_close(torch.cat(given[True][:3]), images / 255, atol=1e-6, rtol=1e-6)


def test_any_function_of_the_batch_will_do_in_training():
    images, labels = pictures()
    data = DataLoader(TensorDataset(images.float(), labels), 4)
    given = fitted(data, data, lambda batch: [batch[0] * 0, batch[1]])
    assert float(torch.cat(given[True]).abs().max()) == 0.0
    assert float(torch.cat(given[False]).abs().max()) > 0.0


def test_a_progressive_one_is_told_the_epoch():
    images, labels = pictures()
    augmentation = ProgressiveAugmentation(switch_epoch=1, minimal={"horizontal_flip_prob": 0.0}, strong={"hue": 0.2})
    given = fitted(DataLoader(TensorDataset(images, labels), 12), None, augmentation)
    torch.testing.assert_close(given[True][0], images / 255, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(given[True][1], images / 255, atol=0.05)


def test_in_one_line():
    text = describe(GPUAugmentation())
    assert text.startswith("GPUAugmentation(horizontal_flip_prob=0.5, rotation_degrees=15")
    assert "\n" not in text
    assert describe(pictures) == "pictures"


# --- schedulers --------------------------------------------------------------------------------------------------


def optimizer():
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def test_schedulers_step_when_they_are_made_to():
    schedulers = torch.optim.lr_scheduler
    one = schedulers.OneCycleLR(optimizer(), 0.1, total_steps=10)
    step = schedulers.StepLR(optimizer(), 1)
    plateau = schedulers.ReduceLROnPlateau(optimizer(), patience=0)
    assert Schedules([one, step, plateau], None).per_step == [one]
    assert Schedules(step, "step").per_step == [step]
    assert Schedules(one, "epoch").per_step == []
    assert Schedules(None, None).all == []


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_plateau_is_told_the_figure_in_epochs_that_have_one():
    driven = optimizer()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(driven, patience=0, factor=0.5)
    schedules = Schedules(plateau, None)
    for monitored in (1.0, None, 2.0):
        schedules.epoch_ended(monitored)
    assert driven.param_groups[0]["lr"] == 0.5
    again = Schedules(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer(), patience=0, factor=0.5), None)
    again.load_state_dict(schedules.state_dict())
    assert again.all[0].best == 1.0


def test_a_resumed_run_that_is_longer_has_a_schedule_of_its_own_length(caplog):
    caplog.set_level("INFO", logger="fulltilt")
    short = Schedules(torch.optim.lr_scheduler.OneCycleLR(optimizer(), 0.1, total_steps=7), None)
    longer = Schedules(torch.optim.lr_scheduler.OneCycleLR(optimizer(), 0.1, total_steps=13), None)
    longer.load_state_dict(short.state_dict())
    assert longer.all[0].total_steps == 13
    assert "OneCycleLR goes on with the length of this run" in caplog.text
    with pytest.raises(InputError, match="the checkpoint has 1 schedulers, this run 0"):
        Schedules(None, None).load_state_dict(short.state_dict())
