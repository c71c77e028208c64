"""Images handed over as bytes: what the script gets is what its own transforms would have made, bit for bit."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.launch.apply.test_install import elsewhere
from tests.launch.apply.transforms_like import compose, flip, normalize, to_tensor, tv
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from fulltilt.launch.apply.as_bytes import tail_names
from fulltilt.launch.apply.chains import tail_of, tails
from fulltilt.launch.apply.ending_in_bytes import Ending
from fulltilt.launch.apply.install import install
from fulltilt.launch.apply.known_torchvision import known
from fulltilt.launch.apply.unfinished import LEVELS, Table, Unfinished, Uses, hand_over, join, uses_of
from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe
from fulltilt.launch.watch.seen import described, with_data
from fulltilt.launch.watch.transforms import names
from fulltilt.measure.observation import Observation, from_json, to_json

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

COUNT = 16
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photos(Dataset[Any]):
    """Noise of one size."""

    def __init__(
        self, transform: Any, *, modes: tuple[str, ...] = ("RGB",), after: Callable[[Any], Any] = lambda image: image
    ) -> None:
        self.transform, self.modes, self.after = transform, modes, after

    def __len__(self) -> int:
        return COUNT

    def image(self, index: int) -> Any:
        noise = np.random.default_rng(index).integers(0, 256, (9, 12, 3), dtype=np.uint8)
        return Image.fromarray(noise).convert(self.modes[index % len(self.modes)], dither=Image.Dither.NONE)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.after(self.transform(self.image(index))), index


class Arrays(Photos):
    def image(self, index: int) -> Any:
        return np.array(super().image(index))


def batches(
    dataset: Any, settings: dict[str, Any], *, kind: type[Tensor] = Tensor, **options: Any
) -> tuple[list[Any], list[str], list[str]]:
    """Two epochs' batches, what they arrived as, and notes."""

    def work() -> tuple[list[Any], list[str], list[str]]:
        notes: list[str] = []
        install(settings, notes)
        arrived: list[str] = []
        look_up = Table.look_up

        def looks_up(self: Table, pixels: Tensor, *, last: bool) -> Tensor:
            arrived.append(f"{tuple(pixels.shape)}")
            return look_up(self, pixels, last=last)

        Table.look_up = looks_up  # type: ignore[method-assign]
        torch.cuda.is_initialized = lambda: kind is Unfinished  # type: ignore[assignment]
        torch.manual_seed(0)
        loader = DataLoader(dataset, **{"batch_size": 8, "num_workers": 2, "shuffle": True, **options})
        found = []
        for _ in range(2):
            for images, labels in loader:
                assert type(images) is kind
                found.append((images.numpy().copy(), images.is_contiguous(), str(images.dtype), labels.tolist()))
            found.append(torch.rand(1).tolist())  # the training's own draws go on as before
        return found, arrived, notes

    result: tuple[list[Any], list[str], list[str]] = elsewhere(work)
    return result


def same(after: list[Any], before: list[Any]) -> None:
    assert len(after) == len(before)
    for one, other in zip(after, before, strict=True):
        assert one[1:] == other[1:]
        np.testing.assert_array_equal(one[0], other[0])


def to_image() -> Any:
    """Version 2's: channels first as a view, as there."""
    return tv("ToImage", lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1))


def to_dtype() -> Any:
    return tv("ToDtype", lambda image: image.to(torch.float32).div(255), dtype=torch.float32, scale=True)


def normalize_in_place() -> Any:
    def call(image: Tensor) -> Tensor:
        return image.sub_(torch.tensor(MEAN).view(-1, 1, 1)).div_(torch.tensor(STD).view(-1, 1, 1))

    return tv("Normalize", call, mean=MEAN, std=STD, inplace=True)


def gray() -> Any:
    return tv("Normalize", lambda image: (image - 0.4) / 0.3, mean=(0.4,), std=(0.3,), inplace=False)


CHAINS: dict[str, tuple[Any, type[Photos], tuple[str, ...]]] = {
    "version 1": (compose(flip(), to_tensor(), normalize(MEAN, STD)), Photos, ("RGB",)),
    "in place": (compose(flip(), to_tensor(), normalize_in_place()), Photos, ("RGB",)),
    "version 2": (compose(flip(), to_image(), to_dtype(), normalize(MEAN, STD)), Photos, ("RGB",)),
    "tensors": (compose(to_image(), flip(), to_dtype(), normalize(MEAN, STD)), Photos, ("RGB",)),
    "gray": (compose(flip(), to_tensor(), gray()), Photos, ("L",)),
    "arrays": (compose(to_tensor(), normalize(MEAN, STD)), Arrays, ("RGB",)),
    "gray arrays": (compose(to_tensor(), gray()), Arrays, ("L",)),
    "an evaluation's": (compose(to_tensor()), Photos, ("RGB",)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_batches_are_the_scripts_own_bit_for_bit(name: str) -> None:
    transform, kind, modes = CHAINS[name]
    before, none, _ = batches(kind(transform, modes=modes), {})
    after, arrived, notes = batches(kind(transform, modes=modes), {"loader.bytes": True})
    channels = len(modes[0])
    shape = (8, channels, 9, 12) if name == "tensors" else (8, 9, 12, channels)
    assert (none, arrived, notes) == ([], [str(shape)] * 4, [])
    same(after, before)


@pytest.mark.parametrize(
    "options",
    [{"persistent_workers": True}, {"num_workers": 1, "batch_size": 5, "drop_last": True}, {"sampler": None}],
    ids=["workers that live on", "a last batch dropped", "as they are"],
)
def test_whatever_the_loader_is_told(options: dict[str, Any]) -> None:
    made = compose(flip(), to_tensor(), normalize(MEAN, STD))
    before, _, _ = batches(Photos(made), {}, **options)
    after, arrived, _ = batches(Photos(made), {"loader.bytes": True, "loader.ahead": True}, **options)
    assert arrived
    same(after, before)


def test_where_there_is_cuda_they_are_finished_when_they_are_used() -> None:
    made = compose(flip(), to_tensor(), normalize(MEAN, STD))
    before, _, _ = batches(Photos(made), {})
    after, arrived, notes = batches(Photos(made), {"loader.bytes": True, "loader.ahead": True}, kind=Unfinished)
    assert (len(arrived), notes) == (4, [])
    same(after, before)


def test_images_that_stay_on_the_cpu_are_the_workers_again() -> None:
    made = compose(flip(), to_tensor(), normalize(MEAN, STD))
    long = ConcatDataset([Photos(made)] * 2)
    before, _, _ = batches(long, {}, batch_size=1)
    after, arrived, notes = batches(long, {"loader.bytes": True}, batch_size=1)
    assert (len(arrived), notes) == (32, ["bytes: left alone where the script uses images on the CPU"])
    same(after, before)


def test_loaders_that_are_left_alone() -> None:
    made = compose(flip(), to_tensor(), normalize(MEAN, STD))
    _, arrived, notes = batches(Photos(made), {"loader.bytes": True}, num_workers=0)
    assert (arrived, notes) == ([], ["bytes: left alone where the loader has no workers"])

    class Stream(IterableDataset[Any]):
        transform = made

        def __iter__(self) -> Iterator[Any]:
            return iter(())

    assert tail_names(DataLoader(Photos(made))) == ("ToTensor", "Normalize")
    assert tail_names(DataLoader(ConcatDataset([Photos(made), Photos(made)]))) == ("ToTensor", "Normalize")
    assert tail_names(DataLoader(Photos(made), collate_fn=list)) == ()
    assert tail_names(DataLoader(Photos(made), batch_size=None)) == ()
    assert tail_names(DataLoader(Stream())) == ()
    assert tail_names(DataLoader(Photos(flip()))) == ()
    loader = DataLoader(Photos(made))
    facts = with_data(described(loader, None), loader, tell=notes.append)
    assert facts.tail == ("ToTensor", "Normalize")
    seen = Observation(command=("x.py",), ended="steps", seconds=1.0, loaders=(facts,))
    assert from_json(json.loads(json.dumps(to_json(seen)))) == seen


def test_augmentation_on_the_gpu_goes_first() -> None:
    both = {"loader.bytes": True, "augment": True}
    for transform, as_bytes in ((compose(flip(), to_tensor()), 0), (compose(to_tensor()), 4)):
        _, arrived, notes = batches(Photos(transform), both)
        assert (len(arrived), notes) == (as_bytes, [])


def test_what_makes_floats_of_bytes_and_nothing_else() -> None:
    def begins(*members: Any) -> int | None:
        return tail_of(members, known)

    crop, identity = tv("CenterCrop", size=8), tv("Identity")
    still = tv("ColorJitter", brightness=None, contrast=None, saturation=None, hue=None)
    assert begins(crop, flip(), to_tensor(), normalize()) == 2
    assert begins(to_tensor(), identity, normalize()) == 0
    assert begins(to_image(), crop, to_dtype(), normalize(), tv("ToPureTensor")) == 2
    assert begins(still, to_tensor()) == 1, "it changes nothing, but draws"
    assert begins(to_tensor(), still) is None
    assert begins(to_tensor(), flip(), normalize()) is None, "these get floats"
    assert begins(crop, tv("PILToTensor")) is None, "they are bytes already"
    assert begins(to_tensor(), normalize(), tv("RandomErasing", p=0.5, value=0, scale=(0, 1), ratio=(1, 1))) is None


# in a worker


@pytest.fixture(autouse=True)
def collating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, Unfinished, join)


def ending(*members: Any) -> Ending:
    owner = Photos(compose(*members))
    (place,) = tails(owner)
    return Ending(place)


def photo(mode: str = "RGB", size: tuple[int, int] = (12, 9)) -> Any:
    return Image.effect_noise(size, 90).convert(mode)


def test_images_of_other_kinds_are_done_by_the_transforms() -> None:
    transform = compose(to_tensor())
    stopped = ending(to_tensor())
    for mode, kind in (("RGB", Unfinished), ("L", Unfinished), ("RGBA", Tensor), ("F", Tensor)):
        image = photo(mode)
        found = stopped(image)
        assert type(found) is kind
        assert found.shape == transform(image).shape
        assert torch.equal(found, transform(image))
    assert type(stopped(np.zeros((9, 12, 3), np.uint8))) is Unfinished
    assert type(stopped(np.zeros((9, 12, 3), np.float32))) is Tensor
    assert type(stopped(np.zeros((9, 12, 5), np.uint8))) is Tensor


def test_what_is_in_a_batch_with_another_kind_is_joined_as_the_script_would() -> None:
    stopped, own = ending(to_tensor()), compose(to_tensor())
    for images in (
        [photo("RGB"), photo("L")],
        [photo("L"), photo("RGBA")],
        [photo("RGBA"), photo("RGB")],
        [photo("RGB"), photo("RGB", (13, 9))],
    ):
        with pytest.raises(RuntimeError) as expected:
            default_collate([own(image) for image in images])
        with pytest.raises(RuntimeError) as found:
            default_collate([stopped(image) for image in images])
        assert str(found.value) == str(expected.value)
    colours = [photo("RGB"), np.zeros((9, 12, 3), np.float32), photo("RGB")]
    for images in (colours, colours[::-1], colours[1:]):
        found = default_collate([(stopped(image), 1) for image in images])[0]
        assert type(found) is Tensor
        assert torch.equal(found, torch.stack([own(image) for image in images]))
    other = ending(to_tensor(), normalize())
    mixed = default_collate([stopped(colours[0]), other(colours[0])])
    assert torch.equal(mixed, torch.stack([own(colours[0]), compose(to_tensor(), normalize())(colours[0])]))


def test_images_of_tensors_lie_in_memory_as_they_did() -> None:
    stopped, own = ending(to_dtype(), normalize()), compose(to_dtype(), normalize())
    flat = torch.randint(0, LEVELS, (9, 12, 3), dtype=torch.uint8).permute(2, 0, 1)
    for image in (flat, flat.contiguous(), flat):
        found = stopped(image)
        assert type(found) is Unfinished
        assert found.stride() == found.done().stride() == own(image).stride()
        assert torch.equal(found, own(image))
    assert type(stopped(flat.transpose(1, 2))) is Unfinished
    assert not hasattr(stopped(flat), "__cuda_array_interface__")


def test_transforms_that_are_not_what_their_name_says() -> None:
    centred = tv("Normalize", lambda image: image - image.mean(), mean=(0,), std=(1,))
    image = photo()
    found = ending(to_tensor(), centred)(image)
    assert type(found) is Tensor, "the first image shows it"
    assert torch.equal(found, compose(to_tensor(), centred)(image))

    def refuse(_: Any) -> Any:
        raise TypeError("not for me")

    with pytest.raises(TypeError, match="not for me"):
        ending(tv("ToTensor", refuse))(image)


def test_a_data_set_may_exchange_its_transforms_and_write_in_its_images() -> None:
    array = np.array(photo())
    stopped = ending(flip(0.0), to_tensor(), normalize())
    assert stopped.transforms is stopped._compose.transforms
    found, expected = stopped(array), compose(to_tensor(), normalize())(array.copy())
    array[:] = 0
    assert type(found) is Unfinished
    assert torch.equal(found, expected)
    stopped.transforms[-1] = normalize((0.1,) * 3, (1.0,) * 3)
    assert type(stopped(array)) is Tensor
    assert isinstance(pickle.loads(pickle.dumps(copy.copy(found))), Tensor)


class Asking(Photos):
    """Does something else with what is no Compose, as data sets do that take pairs of images, too."""

    def __init__(self, transform: Any) -> None:
        super().__init__(transform)
        self.kind = type(transform)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.image(index)
        if isinstance(self.transform, self.kind):
            return self.transform(image), index
        return self.transform(image) * 2, index


def test_a_data_set_may_ask_whether_it_has_a_compose() -> None:
    transform = compose(flip(), to_tensor())
    before, _, _ = batches(Asking(transform), {})
    after, arrived, _ = batches(Asking(transform), {"loader.bytes": True})
    assert arrived
    same(after, before)
    stopped = ending(to_tensor())
    assert type(copy.deepcopy(stopped)) is type(stopped._compose)


USES: dict[str, Callable[[Any], Any]] = {
    "times": lambda image: image * 2.0,
    "from the right": lambda image: 1.0 - image,
    "a part": lambda image: image[:, 1:, ::2],
    "mean": lambda image: image.mean((1, 2)),
    "clamp": lambda image: torch.clamp(image, -1, 1),
    "stack": lambda image: torch.stack([image, image]),
    "numpy": lambda image: torch.from_numpy(np.asarray(image) * 2),
    "in place": lambda image: image.mul_(2.0).add_(1.0),
    "in place, kept": lambda image: (image.mul_(2.0), image)[1],
    "written": lambda image: (image.__setitem__(0, 7.0), image)[1],
    "each": lambda image: torch.cat(list(image)),
    "new": lambda image: torch.as_tensor(image.tolist()),
    "as tensor": torch.as_tensor,
    "dtype": lambda image: image.to(torch.float64),
    "to the cpu": lambda image: image.to("cpu") + image.cpu(),
    "half": lambda image: image.half(),
    "no change": lambda image: image.float().contiguous(),
    "view": lambda image: image.view(image.shape[0], -1),
    "shape": lambda image: image.reshape(image.size(0), len(image[0]), -1).new_zeros(image.shape),
    "longer": lambda image: image.unsqueeze_(0),
    "module": nn.Flatten(0),
    "convolution": lambda image: nn.functional.conv2d(image[None], torch.ones(1, 3, 3, 3)),
    "compared": lambda image: (image > 0).float(),
    "copied": copy.deepcopy,
    "pickled": lambda image: pickle.loads(pickle.dumps(image)),
    "data": lambda image: image.data,
    "gradient": lambda image: torch.autograd.grad(image.requires_grad_().square().sum(), image)[0],
    "dlpack": torch.utils.dlpack.from_dlpack,
    "keyword": lambda image: torch.add(input=torch.ones(3, 1, 1), other=image),
    "printed": lambda image: torch.tensor(len(repr(image))),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_whatever_a_data_set_does_with_it_is_done_with_the_floats(use: str) -> None:
    image, members = photo(), (to_tensor(), normalize(MEAN, STD))
    found, expected = USES[use](ending(*members)(image)), USES[use](compose(*members)(image))
    assert isinstance(found, Tensor)
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
    found, expected = default_collate([found, found]), default_collate([expected, expected])
    assert torch.equal(found, expected)


def test_what_is_known_without_the_numbers_does_not_make_them() -> None:
    batch = default_collate([ending(to_tensor())(photo()) for _ in range(4)])
    assert isinstance(batch, Unfinished)
    assert (batch.shape, batch.size(0), batch.size(), len(batch), batch.dim()) == (
        (4, 3, 9, 12),
        4,
        (4, 3, 9, 12),
        4,
        4,
    )
    assert (batch.dtype, batch.device.type, batch.is_cuda, batch.nbytes) == (torch.float32, "cpu", False, 4 * 4 * 324)
    assert (batch.is_floating_point(), batch.is_contiguous()) == (True, True)
    assert (batch.requires_grad, batch.is_pinned()) == (False, False)
    assert (batch.is_inference(), batch._version) == (False, 0)
    assert {batch: 1}[batch] == 1
    assert batch.float().contiguous() is batch
    assert batch.parts() is not None
    assert batch.sum() == batch.done().sum()
    assert batch.parts() is None


def test_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForkingPickler, "_extra_reducers", dict(ForkingPickler._extra_reducers))  # type: ignore[attr-defined]
    hand_over("between")
    values = torch.randn(3, LEVELS).to(torch.bfloat16)
    pixels = torch.randint(0, LEVELS, (2, 5, 4, 3), dtype=torch.uint8)
    expected = torch.stack([values[channel][pixels[..., channel].long()] for channel in range(3)], 1)
    batch = Unfinished(pixels, Table.of(values), last=True)
    for touched in (False, True):
        if touched:
            batch.mul_(2)
        sent = ForkingPickler.dumps(batch)
        for ready, kind in ((True, Unfinished), (False, Tensor)):
            monkeypatch.setattr(torch.cuda, "is_initialized", lambda ready=ready: ready)
            found = ForkingPickler.loads(sent) if not ready else found_again(batch)
            assert type(found) is (Tensor if touched else kind)
            assert torch.equal(found, expected * 2 if touched else expected)
    assert uses_of("between") == Uses(sent=0, finished=2)


def found_again(batch: Tensor) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(batch))


TORCHVISION = """
import numpy, torch

class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image

class ToTensor:
    def __call__(self, image):
        return torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous().float().div(255)

class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, image):
        return (image - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]
"""

SCRIPT = """
import sys
import numpy, torch
from PIL import Image
from torchvision import transforms

class Photos(torch.utils.data.Dataset):
    def __init__(self):
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5, 0.4, 0.3), (0.3,) * 3)])

    def __len__(self):
        return 48

    def __getitem__(self, index):
        noise = numpy.random.default_rng(index).integers(0, 256, (8, 6, 3), dtype=numpy.uint8)
        return self.transform(Image.fromarray(noise)), index

if __name__ == "__main__":
    data = Photos()
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1, multiprocessing_context="spawn")
    for images, indices in loader:
        assert torch.equal(images, torch.stack([data[int(index)][0] for index in indices]))
    assert sys.modules["fulltilt.launch.apply.unfinished"]._tables, "none came as bytes"
"""


def test_workers_that_are_spawned(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").touch()
    (tmp_path / "torchvision" / "transforms.py").write_text(TORCHVISION)
    (tmp_path / "look.py").write_text(SCRIPT)
    seen = observe(parse([str(tmp_path / "look.py")]), settings={"loader.bytes": True})
    assert seen.exit_status == 0, seen.notes


def test_a_stage_goes_by_the_name_of_what_it_stands_for() -> None:
    data = Photos(ending(to_tensor(), normalize()))
    assert names(data) == ("Compose",)
