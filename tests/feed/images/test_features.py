"""Numbers that go with each image file: the same whatever the order, kept on disk, made anew for a changed file."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from torch import nn

from fulltilt import HybridPrecisionTrainer
from fulltilt.assist import extract_features
from fulltilt.decode import decode
from fulltilt.errors import InputError, SampleError
from fulltilt.feed import ImageFiles, feed
from fulltilt.feed.images.features import FeatureTable, digest_of

COUNT = 20
EXTRACT = partial(extract_features, colour_bins=4, orientations=4, cells=1)


@pytest.fixture
def photos(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.setenv("FULLTILT_CACHE_DIR", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    paths = []
    for number in range(COUNT):
        path = tmp_path / f"{number:02d}.jpg"
        path.write_bytes(_photo(draw))
        paths.append(str(path))
    return paths


def _photo(draw) -> bytes:
    height, width = draw.integers(20, 40, 2)
    return simplejpeg.encode_jpeg(draw.integers(0, 255, (height, width, 3), dtype=np.uint8), quality=90)


def settle(path) -> None:
    """Stamps of files that are younger than the clock's tick are not relied on."""
    old = time.time() - 10
    os.utime(path, (old, old))


def expected(path: str) -> torch.Tensor:
    pixels = torch.from_numpy(decode(Path(path).read_bytes()).transpose(2, 0, 1).copy())
    return EXTRACT(pixels)


def open_feed(source, **more):
    return feed(source, **{"batch_size": 6, "size": 16, "device": "cpu", "num_workers": 2, "features": EXTRACT} | more)


@pytest.mark.parametrize("more", [{}, {"shuffle": True, "seed": 3}, {"num_workers": 1, "prefetch": 2}])
def test_each_image_comes_with_its_own_numbers(photos, more):
    truth = torch.stack([expected(path) for path in photos])
    with open_feed(ImageFiles(photos), **more) as it:
        for _ in range(2):
            seen = []
            for images, features in it:
                assert len(images) == len(features)
                assert torch.equal(features, truth[it.indices])
                seen += it.indices.tolist()
            assert sorted(seen) == list(range(COUNT))
        assert it._features.computed == COUNT, "once for each file"


def test_going_on_in_the_middle_gives_the_same(photos):
    with open_feed(ImageFiles(photos), shuffle=True) as it:
        whole = [(it.indices.tolist(), features) for _, features in it]
    with open_feed(ImageFiles(photos), shuffle=True) as it:
        next(iter(it))
        state = it.state_dict()
    with open_feed(ImageFiles(photos), shuffle=True) as it:
        it.load_state_dict(state)
        rest = [(it.indices.tolist(), features) for _, features in it]
    assert [order for order, _ in rest] == [order for order, _ in whole[1:]]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(rest, whole[1:], strict=True))


def test_rows_are_used_again_and_a_changed_file_s_is_made_anew(photos):
    for path in photos:
        settle(path)
    with open_feed(ImageFiles(photos)) as it:
        first = torch.cat([features for _, features in it])
        assert it._features.computed == COUNT
    with open_feed(ImageFiles(photos)) as it:
        assert torch.equal(torch.cat([features for _, features in it]), first)
        assert it._features.computed == 0
    Path(photos[7]).write_bytes(_photo(np.random.default_rng(9)))
    with open_feed(ImageFiles(photos)) as it:
        again = torch.cat([features for _, features in it])
        assert it._features.computed == 1
    same = [index for index in range(COUNT) if torch.equal(first[index], again[index])]
    assert same == [index for index in range(COUNT) if index != 7]
    assert torch.equal(again[7], expected(photos[7]))
    with open_feed(ImageFiles(photos[:9])) as it:
        list(it)
        assert it._features.computed == 0, "a part of the files finds its rows, too"


@pytest.mark.parametrize("what", ["nonsense", "another array"])
def test_a_file_that_is_no_table_is_made_anew(photos, caplog, what):
    with open_feed(ImageFiles(photos)) as it:
        list(it)
        file = it._features.file
    if what == "nonsense":
        file.write_bytes(b"nonsense")
    else:
        np.save(file, np.zeros(3))
    with open_feed(ImageFiles(photos)) as it:
        assert sum(len(features) for _, features in it) == COUNT
        assert it._features.computed == COUNT
    assert "can't be used" in caplog.text


def test_broken_files_are_left_out_with_their_numbers(photos):
    Path(photos[4]).write_bytes(b"\xff\xd8\xff\xe0 nothing")
    truth = {path: expected(path) for path in photos if path != photos[4]}
    with open_feed(ImageFiles(photos), on_error="skip") as it:
        found = torch.cat([features for _, features in it])
        assert len(it.skipped) == 1
    assert torch.equal(found, torch.stack(list(truth.values())))


def test_labels_stay_the_last_and_masks_the_second(photos, tmp_path):
    labelled = ImageFiles(photos, labels=list(range(COUNT)))
    with open_feed(labelled) as it:
        images, features, labels = next(iter(it))
        assert (images.dim(), features.shape, labels.tolist()) == (4, (6, 16), list(range(6)))
    masks = []
    for path in photos:
        sides = decode(Path(path).read_bytes()).shape[:2]
        masks.append(str(tmp_path / f"{Path(path).stem}.png"))
        from PIL import Image

        Image.fromarray(np.ones(sides, np.uint8)).save(masks[-1])
    with open_feed(ImageFiles(photos, masks=masks)) as it:
        images, found, features = next(iter(it))
        assert found.shape[-2:] == images.shape[-2:]
        assert features.shape == (6, 16)

        class Segmenter(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.mix = nn.Conv2d(3, 1, 3, padding=1), nn.Linear(16, 1)

            def forward(self, images, sim_feats):
                return self.conv(images) + self.mix(sim_feats)[:, :, None, None]

        model = Segmenter()
        trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu")
        for images, masks_, sim_feats in it:
            loss, _ = trainer.train_step(images.float() / 255, masks_.float(), sim_feats)
        assert loss.isfinite()


def test_what_an_extractor_does_wrong_is_said_with_the_file(photos):
    def broken(image):
        raise KeyError("reference")

    with (
        open_feed(ImageFiles(photos), features=broken) as it,
        pytest.raises(SampleError, match=r"00\.jpg: features"),
    ):
        next(iter(it))
    with open_feed(ImageFiles(photos), features=lambda image: image) as it, pytest.raises(InputError, match=r"\(D,\)"):
        next(iter(it))
    with (
        open_feed(ImageFiles(photos), features=lambda image: image[0, 0]) as it,
        pytest.raises(InputError, match="all files must have as many"),
    ):
        list(it)
    with pytest.raises(InputError, match="features is 7"):
        open_feed(ImageFiles(photos), features=7)
    with pytest.raises(InputError, match="features: only ImageFiles"):
        feed(torch.zeros(4, 3), batch_size=2, features=EXTRACT)


def test_what_extracts_is_known_by_its_code_and_all_that_it_was_given():
    def scaled(factor):
        return lambda image: image.float().mean((1, 2)) * factor

    known = {
        digest_of(extract, 3)
        for extract in (
            extract_features,
            EXTRACT,
            partial(extract_features, reference=torch.ones(2, 80)),
            partial(extract_features, reference=torch.zeros(2, 80)),
            scaled(1),
            scaled(2),
        )
    }
    assert len(known) == 6
    assert None not in known
    assert digest_of(EXTRACT, 3) == digest_of(partial(extract_features, cells=1, orientations=4, colour_bins=4), 3)
    assert digest_of(EXTRACT, 1) not in known
    lock = __import__("threading").Lock()
    assert digest_of(lambda image: lock, 3) is None


def test_two_processes_rows_end_in_one_table(photos, tmp_path):
    for path in photos:
        settle(path)
    tables = [FeatureTable(photos, EXTRACT, channels=3, folder=tmp_path / "t", workers=1) for _ in range(2)]
    tables[0].rows(np.arange(0, 10))
    tables[1].rows(np.arange(10, COUNT))
    for table in tables:
        table.close()
    third = FeatureTable(photos, EXTRACT, channels=3, folder=tmp_path / "t", workers=1)
    third.rows(np.arange(COUNT))
    assert third.computed == 0
    third.close()
