"""What is fed to the GPU's decoder and what is made of its pictures, with a decoder that FFmpeg plays."""

from __future__ import annotations

from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from tests.decode.video.fake_nvdec import (
    LIMITS,
    STREAM,
    Decoder,
    Frame,
    Packet,
    engines_on_the_cpu,
    without_streams,
)
from tests.decode.video.support import CODECS, make

from fulltilt.decode.video import nvdec, open_video
from fulltilt.decode.video.colour import rgb_of
from fulltilt.decode.video.container import Container
from fulltilt.decode.video.index import runs_of
from fulltilt.errors import DecodeError, UnavailableError


@pytest.fixture
def engine(monkeypatch):
    """An engine for a file, and the frames of the CPU's path as luma and chroma."""
    monkeypatch.setattr(nvdec, "library", lambda: SimpleNamespace(PacketData=Packet))
    monkeypatch.setattr(nvdec, "limits_of", lambda *_: LIMITS)
    made = []

    def get(path, **options):
        with open_video(path) as video:
            known = video.known
        found = nvdec.Engine(Container(path, threads=1), known, device=torch.device("cpu"), stream=STREAM)
        codec = found._container.stream.codec_context.name
        found.decoder = Decoder(codec, **options)
        monkeypatch.setattr(found, "_make", lambda: found.decoder)
        made.append(found)
        return found, known

    yield get
    for one in made:
        one.close()
        one._container.close()


def planes(path):
    with av.open(str(path)) as file:
        return [Frame(frame).plane for frame in file.decode(video=0)]


@pytest.mark.parametrize("gop", [1, 12, 250])
@pytest.mark.parametrize("codec", [name for name in CODECS if name != "mpeg4"])
def test_frames_in_any_order(tmp_path, engine, codec, gop):
    path = make(tmp_path / "v", codec, count=40, gop=gop)
    found, known = engine(path)
    reference, draw, position = planes(path), np.random.default_rng(0), None
    for wanted in [[0], [39], [1, 2, 3], [4], *(sorted(set(draw.integers(0, 40, 5).tolist())) for _ in range(20))]:
        given = {}
        for run in runs_of(known.index, wanted, position):
            given |= {number: frame.plane for number, frame in found.run(run)}
        position = wanted[-1] + 1
        assert sorted(given) == wanted
        for number, plane in given.items():
            assert torch.equal(plane, reference[number]), number


def test_from_the_nearest_key_frame(tmp_path, engine):
    path = make(tmp_path / "v", "mpeg-ts", count=120, gop=10)
    found, known = engine(path)
    for run in runs_of(known.index, [75], None):
        list(found.run(run))
    assert found.decoder.packets <= 10 + 8


def test_a_stream_from_the_middle_of_a_group(tmp_path, engine):
    path = make(tmp_path / "v", "mpeg-ts", count=60, gop=20)
    data = path.read_bytes()
    path.write_bytes(data[len(data) // 188 // 4 * 188 :])
    found, known = engine(path)
    reference = planes(path)
    for wanted in ([0, 5], [25], [3]):
        seen = set()
        for run in runs_of(known.index, wanted, None):
            for number, frame in found.run(run):
                assert torch.equal(frame.plane, reference[number])
                seen.add(number)
        assert seen >= set(wanted)


def test_damage_is_named(tmp_path, engine):
    path = make(tmp_path / "v", count=40)
    found, known = engine(path, broken=(20,))
    (run,) = runs_of(known.index, [20], None)
    with pytest.raises(UnavailableError, match=r"v\.mp4: NVDEC: HW decoder faced error"):
        list(found.run(run))


def test_a_picture_that_does_not_come(tmp_path, engine, monkeypatch):
    found, known = engine(make(tmp_path / "v", count=40))
    inner = found.decoder.Decode
    monkeypatch.setattr(
        found.decoder, "Decode", lambda packet: [frame for frame in inner(packet) if frame.getPTS() != 7]
    )
    (run,) = runs_of(known.index, [5, 7, 9], None)
    with pytest.raises(DecodeError, match="frame 7 of 40 was not decoded by NVDEC"):
        list(found.run(run))


@pytest.mark.parametrize(
    ("codec", "options", "reason"),
    [
        ("mpeg4", {}, "NVDEC is not used for mpeg4"),
        ("h264", {"pixels": "yuv420p10le"}, "its pixels are yuv420p10le"),
        ("h264", {"pixels": "yuv444p", "size": (95, 63)}, "its pixels are yuv444p"),
    ],
)
def test_what_the_engines_are_not_given(tmp_path, codec, options, reason):
    path = make(tmp_path / "v", codec, **options)
    container = Container(path, threads=1)
    with open_video(path) as video:
        assert reason in nvdec.reason_against(container, video.known)
    container.close()


def test_the_same_interface_where_there_are_no_engines(tmp_path):
    path = make(tmp_path / "v")
    with open_video(path, device="cpu") as there, open_video(path) as here:
        assert there.decision.value == "cpu"
        assert "no video engines" in there.decision.reason
        assert (len(there), there.width, there.height, there.rate) == (len(here), here.width, here.height, here.rate)
        assert there.key_frames == here.key_frames
        assert there.duration_seconds == here.duration_seconds
        pixels = there.frames([3, 30, 3], size=(20, 30))
        assert isinstance(pixels, torch.Tensor)
        assert np.array_equal(pixels.numpy(), here.frames([3, 30, 3], size=(20, 30)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said(tmp_path):
    with pytest.raises(UnavailableError, match="torch sees no GPU; leave device out"):
        open_video(make(tmp_path / "v"), device="cuda:0")


def test_pictures_become_what_the_cpu_gives(tmp_path, engine):
    """Through NV12 and our own conversion: within the stated tolerance of the CPU's path."""
    path = make(tmp_path / "v", size=(256, 192))
    found, known = engine(path)
    with open_video(path) as video:
        (run,) = runs_of(known.index, [17], None)
        ((_, frame),) = list(found.run(run))
        chroma = frame.plane[192:].reshape(1, 96, 128, 2)
        matrix, full = video.colours
        for size in ((192, 256), (112, 150)):
            ours = torch.empty((1, *size, 3), dtype=torch.uint8)
            rgb_of(frame.plane[None, :192], chroma, ours, matrix=matrix, full_range=full)
            apart = np.abs(ours.numpy().astype(int) - video.frames([17], size=size))
            assert apart.mean() <= 2
            assert size != (192, 256) or apart.max() <= 3


@pytest.fixture
def no_streams(monkeypatch):
    without_streams(monkeypatch)


@pytest.mark.parametrize("turn", [0, 90, 180])
def test_frames_as_they_were_asked_for(tmp_path, engine, no_streams, turn):
    """Any order, twice the same, more than are converted at once, upright, scaled."""
    path = make(tmp_path / "v", size=(128, 96), rotation=turn)
    found, _ = engine(path)
    with open_video(path) as here, open_video(path, device="cpu") as there:
        there._engine, there._stream = found, None
        for wanted in ([7], [30, 3, 3, 31], range(40), [8], []):
            ours, theirs = there.frames(wanted), here.frames(wanted)
            assert ours.shape == theirs.shape
            assert (np.abs(ours.numpy().astype(int) - theirs) <= 3).all()
        size = (24, 36)
        assert np.abs(there.frames([5, 2], size=size).numpy().astype(int) - here.frames([5, 2], size=size)).mean() < 2.5
        assert there.decision.value == "cpu", "it was not the fixture's engine that decided"


def test_an_engine_that_fails_is_left(tmp_path, engine, no_streams):
    path = make(tmp_path / "v", size=(128, 96))
    found, _ = engine(path, broken=(20,))
    with open_video(path) as here, open_video(path, device="cpu") as there:
        there._engine, there._stream = found, None
        assert there.frames([1]).shape == (1, 96, 128, 3)
        assert np.array_equal(there.frames([20]).numpy(), here.frames([20])), "by the CPU"
        assert there._engine is None
        assert "HW decoder faced error" in there.decision.reason


def test_a_packet_whose_lengths_are_wrong_is_left_to_the_cpu(tmp_path, engine, no_streams, monkeypatch):
    path = make(tmp_path / "v", size=(128, 96))
    found, known = engine(path)
    fine, damaged = nvdec.behind_start_codes, []
    monkeypatch.setattr(nvdec, "behind_start_codes", lambda data, width: fine(data[:-1] if damaged else data, width))
    with open_video(path) as here, open_video(path, device="cpu") as there:
        there._engine, there._stream = found, None
        damaged.append(True)
        (run,) = runs_of(known.index, [20], None)
        with pytest.raises(DecodeError, match=r"v\.mp4: frame \d+ of 40: a unit ends 1 bytes behind its packet"):
            list(found.run(run))
        assert np.array_equal(there.frames([20]).numpy(), here.frames([20])), "by the CPU"
        damaged.clear()
        assert there._engine is found, "the next ones are its own again"
        assert (np.abs(there.frames([21]).numpy().astype(int) - here.frames([21])) <= 3).all()


def test_engine_and_cpu_take_turns_in_one_file(tmp_path, monkeypatch):
    """Wherever one has left off, the other has to find its own place; and the file is opened once."""
    path = make(tmp_path / "v", count=40, gop=12)
    opened = []
    inside = Container._open
    monkeypatch.setattr(Container, "_open", lambda its: opened.append(its) or inside(its))
    engines_on_the_cpu(monkeypatch)
    with open_video(path) as here:
        opened.clear()
        with open_video(path, device="cpu", known=here.known) as there:
            assert len(opened) == 1
            run, failing = there._engine.run, []

            def at_times(*given, **named):
                if failing:
                    raise DecodeError("not this one")
                return run(*given, **named)

            monkeypatch.setattr(there._engine, "run", at_times)
            for number, wanted in enumerate([[0, 1], [2], [14, 15], [16], [17], [3], [4, 39], [5], [6], [0], [30]]):
                failing[:] = [True] * (number % 3 != 0)
                ours = there.frames(wanted).numpy().astype(int)
                assert (np.abs(ours - here.frames(wanted)) <= 3).all(), (number, wanted)
            assert there.decision.value == "nvdec"


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(nvdec, "_imported", lambda: (None, "No module named 'PyNvVideoCodec'"))
    with pytest.raises(UnavailableError, match=r"NVDEC needs PyNvVideoCodec \(No module named"):
        nvdec.library()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "HandleVideoSequence : \nError code : 801\nError Type : Codec not supported on this GPU\n"
            "at /project/src/NvDecoder/NvDecoder.cpp:260\n",
            "Codec not supported on this GPU",
        ),
        (
            "HandleVideoSequence : \nError code : 801\nError Type : Resolution not supported on this GPU\n"
            "Resolution          : 9000x256\nMax Supported (wxh) : 4096x4096\nat /project/src/NvDecoder.cpp:361\n",
            "Resolution not supported on this GPU; Resolution: 9000x256; Max Supported (wxh): 4096x4096",
        ),
        (
            "PyNvDecoderCaps : \nError code : 1\n"
            "Error Type : api.cuvidCreateDecoder(&m_hDecoder, &info) returned error 100\nat /project/src/a.cpp:241\n",
            "cuvidCreateDecoder gave CUDA error 100",
        ),
        ("HW decoder faced error\nRe-create instance.", "HW decoder faced error; Re-create instance."),
        ("", "RuntimeError"),
    ],
)
def test_errors_of_the_library_in_words(text, expected):
    """As PyNvVideoCodec 2.2 writes them."""
    assert nvdec.said(RuntimeError(text)) == expected
