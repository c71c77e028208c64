"""Made-up photographs: the size asked for, like photographs to a decoder, the same for the same seed."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fulltilt.bench.decoding import shares, ways
from fulltilt.bench.photos import make_photos, photo, photos
from fulltilt.decode import decode, probe
from fulltilt.errors import InputError


def test_bytes_and_sizes_are_those_asked_for():
    files = list(photos(60))
    assert 72_000 < np.mean([len(data) for data in files]) < 88_000
    headers = [probe(data) for data in files]
    assert len({(header.width, header.height) for header in headers}) > 30
    assert 480 < np.mean([max(header.width, header.height) for header in headers]) < 520
    assert any(header.height > header.width for header in headers)
    assert not any(header.progressive for header in headers)


@pytest.mark.parametrize("target_bytes", [30_000, 120_000])
def test_another_target(target_bytes):
    files = list(photos(30, target_bytes=target_bytes, vary=0))
    assert abs(np.mean([len(data) for data in files]) / target_bytes - 1) < 0.15
    assert {(probe(data).width, probe(data).height) for data in files} == {(500, 375)}


def test_the_same_seed_makes_the_same_files(tmp_path):
    first = make_photos(tmp_path / "a", 4, seed=3)
    second = make_photos(tmp_path / "b", 4, seed=3)
    other = make_photos(tmp_path / "c", 4, seed=4)
    assert [path.name for path in first] == [f"photo-{index:06d}.jpg" for index in range(4)]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[0].read_bytes() != other[0].read_bytes()
    assert len({path.read_bytes() for path in first}) == 4


def test_amplitudes_fall_with_frequency_as_in_photographs():
    slopes = []
    for index in range(12):
        luma = photo(256, 256, index=index, grain=0.45).astype(float) @ [0.299, 0.587, 0.114]
        window = np.hanning(256)[:, None] * np.hanning(256)[None]
        spectrum = np.abs(np.fft.fft2((luma - luma.mean()) * window))
        radius = np.hypot(np.fft.fftfreq(256)[:, None], np.fft.fftfreq(256)[None]) * 256
        bands = [(4, 8), (8, 16), (16, 32), (32, 64)]
        means = [spectrum[(radius >= low) & (radius < high)].mean() for low, high in bands]
        slopes.append(np.polyfit([1, 2, 3, 4], np.log2(means), 1)[0])
    assert -1.6 < np.mean(slopes) < -0.7


def test_colour_is_smoother_than_brightness():
    pixels = decode(next(iter(photos(1)))).astype(float)
    luma, chroma = pixels @ [0.299, 0.587, 0.114], pixels @ [0.5, -0.419, -0.081]
    assert np.abs(np.diff(chroma)).mean() < 0.5 * np.abs(np.diff(luma)).mean()


def test_fast_enough_to_make_data_sets():
    list(photos(1))
    rates = []
    for _ in range(3):
        begin = time.process_time()
        list(photos(20))
        rates.append(20 / (time.process_time() - begin))
    assert max(rates) > 100


def test_sizes_out_of_range_are_named():
    with pytest.raises(InputError, match="sides from 16 to 1024"):
        list(photos(1, size=(1000, 700)))


def test_ways_of_decoding_are_compared_in_one_run():
    base, table = shares(list(photos(2)), rounds=1)
    assert 0 < base < 1
    assert table["exact"] == 1
    assert set(table) == set(ways())
    assert table["header alone"] < 0.5
