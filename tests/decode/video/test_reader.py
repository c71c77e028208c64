"""Frames by number are those of a full sequential decode, whatever the codec and the order."""

from __future__ import annotations

import contextlib
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode.video.support import CODECS, make, sequential

from fulltilt.decode.video import open_video
from fulltilt.errors import DecodeError, FulltiltError, InputError


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")

    @cache
    def get(codec, gop, uneven):
        path = make(folder / f"{codec.replace(' ', '-')}-{gop}-{uneven}", codec, gop=gop, uneven=uneven)
        return path, sequential(path)

    return get


@pytest.mark.parametrize("uneven", [False, True], ids=["even", "uneven"])
@pytest.mark.parametrize("gop", [1, 12, 250], ids=["all key frames", "short", "long"])
@pytest.mark.parametrize("codec", CODECS)
def test_each_frame_in_any_order(videos, codec, gop, uneven):
    path, reference = videos(codec, gop, uneven)
    draw = np.random.default_rng(0)
    with open_video(path) as video:
        assert len(video) == len(reference) == 40
        assert np.array_equal(video.frames(range(40)), reference), "in order"
        for number in draw.permutation(40):
            assert np.array_equal(video.frames([number])[0], reference[number]), number


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_lists_of_frames_one_after_another(videos, data):
    path, reference = videos(data.draw(st.sampled_from(list(CODECS))), data.draw(st.sampled_from([12, 250])), False)
    with open_video(path) as first:
        known = data.draw(st.sampled_from([None, first.known]))
    with open_video(path, threads=data.draw(st.sampled_from([1, 2])), known=known) as video:
        for _ in range(data.draw(st.integers(1, 4))):
            wanted = data.draw(st.lists(st.integers(0, 39), max_size=12))
            assert np.array_equal(video.frames(wanted, stay=data.draw(st.booleans())), reference[wanted])


def test_what_it_says_of_itself(tmp_path):
    with open_video(make(tmp_path / "v", gop=10)) as video:
        assert (video.height, video.width, video.codec) == (64, 96, "h264")
        assert video.key_frames == (0, 10, 20, 30)
        assert video.rate == 25
        assert video.duration_seconds == pytest.approx(1.6)
        assert video.time_of(10) == pytest.approx(0.4)


def test_times_that_can_be_written_down_are_those_numbers(tmp_path):
    """As a table of segments has them: rounded twice, 1.4 s of frame 35 would come out less."""
    with open_video(make(tmp_path / "v")) as video:
        assert [video.time_of(frame) for frame in range(40)] == [float(f"{frame * 4 / 100:.2f}") for frame in range(40)]


def test_only_what_is_needed_is_decoded(tmp_path, monkeypatch):
    """From the nearest key frame on, and not beyond the frame."""
    path = make(tmp_path / "v", "mpeg-ts", count=120, gop=10)
    with open_video(path) as video:
        decoded = 0
        inner = video._container._decoded

        def counting(packet):
            nonlocal decoded
            found = inner(packet)
            decoded += len(found)
            return found

        monkeypatch.setattr(video._container, "_decoded", counting)
        video.frames([75])
        assert decoded <= 10 + 6, "a group of pictures, and what the decoder is behind"
        decoded = 0
        video.frames([76, 77])
        assert decoded <= 2 + 6, "on from where it stands"


@pytest.mark.parametrize(("codec", "most"), [("h264", 11), ("hevc", 10), ("mpeg4", 6)])
def test_what_no_other_frame_needs_is_not_decoded(videos, codec, most):
    """One frame at the end of a group of pictures: without those in between that nothing refers to."""
    path, reference = videos(codec, 12, False)
    with open_video(path) as video:
        counts = []
        for stay in (True, False):
            before = video.decoded
            assert np.array_equal(video.frames([10], stay=stay), reference[[10]])
            counts.append(video.decoded - before)
        lasting, alone = counts
        assert alone <= most, "frames 0 to 10 are eleven; what our x264 makes of them refers to all"
        assert alone <= lasting - (codec != "mpeg4"), "and nothing to have the decoder ready for the next"


def test_a_clip_in_the_middle_costs_little_more_than_itself(tmp_path):
    path = make(tmp_path / "v", count=120, gop=30)
    with open_video(path) as video:
        before = video.decoded
        video.frames(range(45, 61), stay=False)
        assert 16 <= video.decoded - before <= 16 + 15, "less than all frames from the key frame on"
        before = video.decoded
        video.frames([45, 70, 75, 110], stay=False)
        assert video.decoded - before <= 12 + 11 + 14, "no pass goes beyond its last frame"


def test_fast_is_almost_the_same(tmp_path):
    path = make(tmp_path / "v", size=(256, 192))
    with open_video(path) as exact, open_video(path, quality="fast") as fast:
        wanted = [17, 3, 38]
        for size, mean in ((None, 1.0), ((96, 128), 2.0), ((97, 129), 1.0)):
            apart = np.abs(exact.frames(wanted, size=size).astype(int) - fast.frames(wanted, size=size))
            assert apart.mean() <= mean, size
    with pytest.raises(InputError, match="quality='good' must be 'exact' or 'fast'"):
        open_video(path, quality="good")


def test_scaled_while_converting(tmp_path):
    path = make(tmp_path / "v", size=(200, 120))
    with open_video(path) as video:
        small, large = video.frames([3, 7], size=(30, 50)), video.frames([3, 7])
        assert small.shape == (2, 30, 50, 3)
        boxes = large.reshape(2, 30, 4, 50, 4, 3).mean((2, 4))
        assert np.abs(boxes - small).mean() < 6
        out = np.zeros((2, 30, 50, 3), np.uint8)
        assert video.frames([3, 7], size=(30, 50), out=out) is out
        assert np.array_equal(out, small)


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_upright(tmp_path, turn):
    path = make(tmp_path / "v", rotation=turn)
    as_stored = sequential(path)[5]  # of this very file: x264 does not make the same one twice
    with open_video(path) as video:
        assert (video.height, video.width) == ((96, 64) if turn % 180 else (64, 96))
        assert np.array_equal(video.frames([5])[0], np.rot90(as_stored, turn // 90))
        assert video.frames([5], size=(48, 32)).shape == (1, 48, 32, 3)


@pytest.mark.parametrize(("pixels", "size"), [("yuv420p10le", (96, 64)), ("yuv444p", (95, 63)), ("yuv422p", (98, 61))])
def test_more_bits_and_odd_sizes(tmp_path, pixels, size):
    path = make(tmp_path / "v", "h264", pixels=pixels, size=size)
    with open_video(path) as video:
        assert np.array_equal(video.frames([11, 2]), sequential(path)[[11, 2]])


def test_a_file_without_times_is_counted(tmp_path):
    """A raw stream has no clock, and no place to jump to."""
    import av

    source, raw = make(tmp_path / "v", "mpeg-ts"), tmp_path / "v.h264"
    with av.open(str(source)) as file:
        raw.write_bytes(b"".join(bytes(packet) for packet in file.demux(video=0)))
    reference = sequential(source)
    with open_video(raw) as video:
        for wanted in ([30, 3], [31], [7, 39]):
            assert np.array_equal(video.frames(wanted), reference[wanted])


class TestDamage:
    def test_not_a_video(self, tmp_path):
        text, empty = tmp_path / "a.mp4", tmp_path / "b.mp4"
        text.write_text("not a video at all " * 50)
        empty.touch()
        with pytest.raises(DecodeError, match=r"a\.mp4: can't be opened as a video"):
            open_video(text)
        with pytest.raises(DecodeError, match=r"b\.mp4") as found:
            open_video(empty)
        assert found.value.problem == "empty"
        with pytest.raises(InputError, match=r"c\.mp4: no such file"):
            open_video(tmp_path / "c.mp4")

    def test_only_sound(self, tmp_path):
        import av

        path = tmp_path / "sound.mp4"
        with av.open(str(path), "w") as file:
            stream = file.add_stream("aac", rate=44100)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.rate = 44100
            file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
        with pytest.raises(DecodeError, match="has no video stream, only audio"):
            open_video(path)

    def test_a_frame_that_is_not_there(self, tmp_path):
        with open_video(make(tmp_path / "v")) as video:
            for number in (40, -1):
                with pytest.raises(InputError, match=f"no frame {number}; it has frames 0 to 39"):
                    video.frames([3, number])

    @pytest.mark.parametrize("wanted", [[1.5], "12", 5, [None], np.array([1.0]), [[1, 2]]], ids=repr)
    def test_what_is_no_number_of_a_frame(self, tmp_path, wanted):
        with open_video(make(tmp_path / "v")) as video, pytest.raises(InputError, match="expected frames' numbers"):
            video.frames(wanted)

    @pytest.mark.parametrize("size", [(0, 0), 32, (32,), (-1, 4), (3.5, 3), ("a", 3)], ids=repr)
    def test_what_is_no_size(self, tmp_path, size):
        with open_video(make(tmp_path / "v")) as video, pytest.raises(InputError, match="size: expected"):
            video.frames([1], size=size)

    @pytest.mark.parametrize("threads", [0, 65, "4", 1.5])
    def test_threads_that_no_decoder_has(self, tmp_path, threads):
        with pytest.raises(InputError, match="threads: expected 1 to 64"):
            open_video(tmp_path / "v.mp4", threads=threads)

    def test_damage_in_the_middle_spares_the_rest(self, tmp_path):
        path = make(tmp_path / "v", "mpeg-ts", count=120, gop=10)
        reference = sequential(path)
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 2000] = b"\xa5" * 2000
        path.write_bytes(data)
        with open_video(path) as video:
            start = video.frames(range(40))
            assert np.array_equal(start, reference[:40])
            bad = 0
            for number in range(len(video)):
                try:
                    video.frames([number])
                except DecodeError as error:
                    bad += f"frame {number} of" in str(error)
            assert 0 < bad + (120 - len(video)) < 40
            last = video.frames([len(video) - 1])[0]
            assert np.array_equal(last, reference[-1])

    @pytest.mark.parametrize("codec", CODECS)
    def test_whatever_is_wrong_it_is_our_error(self, videos, tmp_path, codec):
        """Bytes changed, left out, or missing at the end, mostly where headers are: frames come, or the reason."""
        path, _ = videos(codec, 12, False)
        data, draw, opened = path.read_bytes(), np.random.default_rng(7), 0
        bad = tmp_path / f"bad{path.suffix}"
        for _ in range(40):
            changed = bytearray(data)
            for at in draw.integers(0, draw.choice([600, len(data)]), draw.choice([1, 4, 30])):
                changed[at] = draw.integers(256)
            at = int(draw.integers(len(data)))
            if draw.random() < 0.3:
                del changed[at : at + draw.choice([1, 100, len(data)])]
            bad.write_bytes(changed)
            with contextlib.suppress(FulltiltError), open_video(bad, threads=int(draw.integers(1, 3))) as video:
                opened += 1
                for wanted in draw.integers(0, len(video), (3, 4)):
                    with contextlib.suppress(DecodeError):
                        assert len(video.frames(wanted, size=(32, 48))) == 4
        assert 0 < opened < 40

    def test_cut_off(self, tmp_path):
        path = make(tmp_path / "v", "mpeg-ts", count=60, gop=10)
        reference = sequential(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with open_video(path) as video:
            assert 15 < len(video) < 45
            assert np.array_equal(video.frames([0, 10]), reference[[0, 10]])

    def test_removed_while_open(self, tmp_path):
        path = make(tmp_path / "v")
        reference = sequential(path)
        with open_video(path) as video:
            path.unlink()
            assert np.array_equal(video.frames([20]), reference[[20]])
            with pytest.raises(InputError, match="no such file"):
                video.frames([0])
