"""Figures as people read them."""

from __future__ import annotations

import pytest

from fulltilt import words


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (words.percent(0.314), "31 %"),
        (words.percent(0.021), "2.1 %"),
        (words.percent(0.0), "0 %"),
        (words.gain(0.314), "+31 %"),
        (words.gain(2.44), "3.4×"),
        (words.gain(None), "not predicted"),
        (words.seconds(0.0000042), "4 µs"),
        (words.seconds(0.01234), "12.3 ms"),
        (words.seconds(0.5), "500 ms"),
        (words.seconds(2.5), "2.50 s"),
        (words.seconds(250.0), "250 s"),
        (words.rate(1240.4), "1,240 samples/s"),
        (words.rate(3.14159, "steps"), "3.14 steps/s"),
        (words.rate(None), "not measured"),
        (words.memory_size(64 * 2**20), "64 MiB"),
        (words.memory_size(1536), "1.5 KiB"),
        (words.memory_size(12.34 * 2**30), "12.3 GiB"),
        (words.memory_size(139.8 * 2**30), "140 GiB"),
        (words.memory_size(3 * 2**40), "3 TiB"),
        (words.memory_size(1023), "1023 bytes"),
        (words.disk_size(0), "0 bytes"),
        (words.disk_size(999), "999 bytes"),
        (words.disk_size(1500), "1.5 kB"),
        (words.disk_size(562_500), "562 kB"),
        (words.disk_size(64e9), "64 GB"),
        (words.disk_size(721e9), "721 GB"),
        (words.disk_size(3.2e15), "3200 TB"),
        (words.gib(6 * 2**30), "6.0"),
        (words.milliseconds(0.0000122), "0.0122 ms"),
        (words.milliseconds(0.01234), "12.3 ms"),
        (words.milliseconds(1.5), "1,500 ms"),
        (words.duration(59.4), "59 s"),
        (words.duration(61), "1 min 1 s"),
        (words.duration(3600 * 26), "26 h 0 min"),
        (words.clock(-1), "00:00"),
        (words.clock(7.4), "00:07"),
        (words.clock(754), "12:34"),
        (words.clock(3600), "1:00:00"),
        (words.clock(11109), "3:05:09"),
        (words.parameters(25_557_032), "25.6 M parameters"),
        (words.parameters(23_956), "23,956 parameters"),
        (words.many(1, "worker"), "1 worker"),
        (words.many(0, "worker"), "0 workers"),
        (words.many(2, "batch", "batches"), "2 batches"),
        (words.some(["a", "b"], 2), "a, b"),
        (words.some([1, 2, 3, 4], 2), "1, 2 and 2 more"),
        (words.ordinal(2), "2nd"),
        (words.ordinal(3), "3rd"),
        (words.ordinal(6), "6th"),
        (words.ordinal(12), "12th"),
        (words.ordinal(21), "21st"),
        (words.ordinal(113), "113th"),
    ],
)
def test_words(said, expected):
    assert said == expected
