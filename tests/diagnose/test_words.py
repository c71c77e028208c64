"""Figures as people read them."""

from __future__ import annotations

import pytest

from fulltilt.diagnose import words


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
        (words.size(64 * 2**20), "64 MiB"),
        (words.size(1536), "1.5 KiB"),
        (words.size(3 * 2**40), "3072 GiB"),
        (words.parameters(25_557_032), "25.6 M parameters"),
        (words.parameters(23_956), "23,956 parameters"),
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
