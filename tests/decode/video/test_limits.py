"""What the GPU's engines don't decode is known beforehand, said, and left to the CPU."""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.decode.video.fake_nvdec import LIMITS, NONE, engines_on_the_cpu
from tests.decode.video.support import make

from fulltilt.decode.video import limits, open_video
from fulltilt.decode.video.limits import Caps, Limits, limits_of, sessions_of


@pytest.mark.parametrize(
    ("codec", "its", "reason"),
    [
        ("av1", NONE, "this GPU's video engines don't decode AV1"),
        (
            "h264",
            Limits(is_supported=True, smallest=(128, 64), largest=(4096, 4096), most_blocks=65536),
            "this GPU's video engines decode H.264 from 128×64 to 4096×4096, and it is 96×64",
        ),
        (
            "hevc",
            Limits(is_supported=True, smallest=(16, 16), largest=(80, 80), most_blocks=65536),
            "this GPU's video engines decode HEVC from 16×16 to 80×80, and it is 96×64",
        ),
        (
            "vp9",
            Limits(is_supported=True, smallest=(16, 16), largest=(128, 128), most_blocks=23),
            "this GPU's video engines decode VP9 up to 5,888 pixels, and it is 96×64",
        ),
    ],
)
def test_the_cpu_decodes_it_and_no_session_is_made(tmp_path, monkeypatch, codec, its, reason):
    made = engines_on_the_cpu(monkeypatch)
    made.limits = {codec.upper(): its}
    path = make(tmp_path / "v", codec, count=8)
    with open_video(path) as here, open_video(path, device="cpu") as there:
        assert (there.decision.value, there.decision.reason) == ("cpu", f"{path}: {reason}")
        assert np.array_equal(there.frames([5, 2]).numpy(), here.frames([5, 2]))
    assert made.count == 0


def test_at_the_limits_the_engines_decide(tmp_path, monkeypatch):
    made = engines_on_the_cpu(monkeypatch)
    made.limits = {"H264": Limits(is_supported=True, smallest=(96, 64), largest=(96, 64), most_blocks=24)}
    with open_video(make(tmp_path / "v", count=4), device="cpu") as video:
        assert video.decision.value == "nvdec", video.decision.reason
    assert made.count == 1


def test_a_size_that_may_be_coded_in_more_is_not_refused():
    assert LIMITS.reason_against("H264", 34, 4) is None, "48×16 in blocks"
    assert LIMITS.reason_against("H264", 32, 16) is not None


@pytest.fixture
def driver(monkeypatch):
    """One that answers from a table, and counts."""
    found = SimpleNamespace(asked=[], failure=0, engines=7)

    def get(reference):
        caps = reference._obj
        found.asked.append((caps.codec, caps.chroma, caps.depth_minus_8))
        if caps.codec != limits.NUMBERS["AV1"]:
            caps.is_supported, caps.min_width, caps.min_height = 1, 48, 16
            caps.max_width, caps.max_height, caps.max_blocks = 4096, 2160, 65536
            caps.engines = found.engines
        return found.failure

    monkeypatch.setattr(limits, "_driver", lambda: SimpleNamespace(cuvidGetDecoderCaps=get))
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    limits_of.cache_clear()
    yield found
    limits_of.cache_clear()


def test_the_driver_is_asked_once_for_each_codec(driver):
    for _ in range(3):
        assert limits_of(0, "AV1") == NONE
        assert limits_of(0, "H264") == Limits(
            is_supported=True, smallest=(48, 16), largest=(4096, 2160), most_blocks=65536, engines=7
        )
    assert driver.asked == [(11, 1, 0), (4, 1, 0)]
    limits_of(1, "AV1")
    assert len(driver.asked) == 3, "another GPU"


def test_no_answer_is_no_limit(driver, monkeypatch):
    driver.failure = 201
    assert limits_of(0, "H264") is None
    limits_of.cache_clear()
    monkeypatch.setattr(limits, "_driver", lambda: None)
    assert limits_of(0, "H264") is None


@pytest.mark.parametrize(("engines", "sessions"), [(1, 2), (3, 3), (8, 8), (0, 7)])
def test_a_session_for_each_engine(driver, engines, sessions):
    driver.engines = engines
    assert sessions_of(0) == sessions


def test_sessions_where_the_driver_says_nothing(driver):
    driver.failure = 201
    assert sessions_of(0) == 7


def test_the_structure_is_the_drivers():
    """Offsets of `cuviddec.h`."""
    names = ("is_supported", "engines", "formats", "max_width", "max_blocks", "min_width", "min_height")
    assert [getattr(Caps, name).offset for name in names] == [24, 25, 26, 28, 36, 40, 42]
    assert ctypes.sizeof(Caps) == 88
