"""Files as they come: cut in the middle, joined, packed, with several streams. Frames are those of a full decode."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
from tests.decode.video.support import CODECS, make, picture, sequential

from fulltilt.decode.video import open_video
from fulltilt.decode.video.container import Container, told_of
from fulltilt.decode.video.nvdec import reason_against
from fulltilt.errors import DecodeError, UnavailableError

REFRESH = {"x264-params": "intra-refresh=1:keyint=12:bframes=0"}


def same(path, reference, *, threads=1):
    """Every frame in a random order, and lists of them."""
    draw = np.random.default_rng(0)
    with open_video(path, threads=threads) as video:
        assert len(video) == len(reference)
        for number in draw.permutation(len(video)):
            assert np.array_equal(video.frames([number])[0], reference[number]), number
        for _ in range(10):
            wanted = draw.integers(0, len(video), 5)
            assert np.array_equal(video.frames(wanted), reference[wanted])
        return video.index


def test_a_library_of_another_version_is_named(tmp_path, monkeypatch):
    path = make(tmp_path / "v", count=3)
    monkeypatch.setattr(av, "__version__", "20.0.0")
    with pytest.raises(UnavailableError, match=r"videos need PyAV 18 or 19, found 20\.0\.0 \(pip install"):
        open_video(path)


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_header_tells_without_a_packet_read(tmp_path, codec, monkeypatch):
    """An .mp4 has a count; others a duration and a rate, or nothing: then nothing is made up."""
    path = make(tmp_path / "v", codec, count=50)
    monkeypatch.setattr(Container, "packets", lambda _: pytest.fail("a packet was read"))
    told = told_of(path)
    if path.suffix == ".mp4":
        assert told == (50, 64, 96)
    elif told is not None:
        assert abs(told[0] - 50) <= 2
        assert told[1:] == (64, 96)


def test_a_header_that_is_none(tmp_path):
    path = tmp_path / "v.mp4"
    path.write_bytes(b"no video" * 100)
    with pytest.raises(DecodeError, match="can't be opened as a video"):
        told_of(path)


def test_a_transport_stream_from_the_middle_of_a_group(tmp_path):
    """What comes before its first key frame can't be decoded, and is not counted."""
    path = make(tmp_path / "v", "mpeg-ts", count=60, gop=20)
    data = path.read_bytes()
    path.write_bytes(data[len(data) // 188 // 4 * 188 :])
    reference = sequential(path)
    assert len(reference) == 40
    assert same(path, reference).keys == (0, 20)


def test_an_edit_list_that_begins_between_key_frames(tmp_path):
    """The pictures before it are decoded, and not shown."""
    source, path = make(tmp_path / "v", count=50, gop=15), tmp_path / "cut.mp4"
    with av.open(str(source)) as file, av.open(str(path), "w") as out:
        stream = file.streams.video[0]
        copy = out.add_stream_from_template(stream)
        for packet in file.demux(stream):
            if packet.dts is not None:
                back = int(Fraction(20, 25) / packet.time_base)
                packet.stream, packet.pts, packet.dts = copy, packet.pts - back, packet.dts - back
                out.mux(packet)
    reference = sequential(path)
    assert len(reference) == 30
    assert np.array_equal(reference, sequential(source)[20:])
    same(path, reference)


def test_two_pictures_in_a_packet(tmp_path):
    """MPEG-4 in AVI as DivX wrote it: a P and a B picture, and an empty packet later. Packets have others' times."""
    source, path = make(tmp_path / "v", "mpeg4", count=40), tmp_path / "packed.avi"
    start = b"\x00\x00\x01\xb6"
    with av.open(str(source)) as file, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(file.streams.video[0])
        plain = [bytes(packet) for packet in file.demux(video=0) if packet.size]
        kinds = [data[data.index(start) + 4] >> 6 for data in plain]  # 0: I, 1: P, 2: B
        packets, at = [], 0
        while at < len(plain):
            end = at + 1
            while end < len(plain) and kinds[end] == 2:
                end += 1
            group = plain[at:end]
            if len(group) > 1:
                group = [group[0] + group[1], *group[2:], start + b"\x51\x00"]
            packets += [(data, kinds[at] == 0 and place == 0) for place, data in enumerate(group)]
            at = end
        head = packets[0][0].index(start)
        packets[0] = (packets[0][0][:head] + b"\x00\x00\x01\xb2DivX503b1393p\x00" + packets[0][0][head:], True)
        for number, (data, key) in enumerate(packets):
            packet = av.Packet(data)
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, 25), key
            packet.pts = packet.dts = number
            out.mux(packet)
    reference = sequential(path)
    assert np.array_equal(reference, sequential(source))
    assert same(path, reference).times is None


@pytest.mark.parametrize("container", ["ts", "mp4", "mkv"])
def test_a_picture_that_is_refreshed_part_by_part(tmp_path, monkeypatch, container):
    """Where a refresh begins is flagged as a key frame, and isn't one."""
    monkeypatch.setitem(CODECS, "refresh", ("libx264", container, REFRESH))
    path = make(tmp_path / "v", "refresh", count=60)
    with av.open(str(path)) as file:
        assert sum(packet.is_keyframe for packet in file.demux(video=0) if packet.size) > 3
    assert same(path, sequential(path)).keys == (0,)


def test_interlaced_pictures(tmp_path, monkeypatch):
    """Half of the rows, with colours of their own, show another moment: nothing is converted as if it were one."""
    monkeypatch.setitem(CODECS, "interlaced", ("libx264", "ts", {"x264-params": "interlaced=1:bframes=2"}))
    path = make(tmp_path / "v", "interlaced")
    assert same(path, sequential(path)).keys == (0, 12, 24, 36)
    with open_video(path) as video:
        assert video.known.interlaced
        assert reason_against(video.container, video.known) == "its pictures are interlaced"


def test_two_video_streams(tmp_path):
    """The first is taken, though the other's packets lie between."""
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as out:
        streams = [out.add_stream("libx264", rate=25, options={"bf": "2"}) for _ in range(2)]
        for stream, size in zip(streams, ((96, 64), (48, 32)), strict=True):
            (stream.width, stream.height), stream.pix_fmt, stream.gop_size = size, "yuv420p", 10
        for number in range(40):
            for stream in streams:
                pixels = picture(number, stream.width, stream.height)
                out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        for stream in streams:
            out.mux(stream.encode(None))
    assert same(path, sequential(path)).keys == (0, 10, 20, 30)


def joined(folder, first, second):
    """Raw streams behind one another."""
    path = folder / "joined.h264"
    with path.open("wb") as out:
        for source in (first, second):
            with av.open(str(source)) as file:
                out.writelines(bytes(packet) for packet in file.demux(video=0))
    return path


@pytest.mark.parametrize("raw", [False, True], ids=["ts", "h264"])
def test_the_resolution_changes(tmp_path, raw):
    first = make(tmp_path / "a", "mpeg-ts", count=20, gop=10)
    second = make(tmp_path / "b", "mpeg-ts", count=20, gop=10, size=(64, 48))
    path = tmp_path / "joined.ts"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    if raw:
        path = joined(tmp_path, first, second)
    with open_video(path) as video, open_video(second) as other:
        assert (len(video), video.height, video.width) == (40, 64, 96)
        assert np.array_equal(video.frames(range(20)), sequential(first))
        with pytest.raises(DecodeError, match=r"frame 25 is 64×48, the first one 96×64; ask for all in one size"):
            video.frames([25])
        small = video.frames([3, 25], size=(32, 40))
        assert np.array_equal(small[1], other.frames([5], size=(32, 40))[0])


def later(path, by):
    """The same packets with times that are so much later."""
    other = path.with_name("late.ts")
    with av.open(str(path)) as file, av.open(str(other), "w") as out:
        copy = out.add_stream_from_template(file.streams.video[0])
        for packet in file.demux(video=0):
            if packet.dts is not None:
                packet.stream, packet.pts, packet.dts = copy, packet.pts + by, packet.dts + by
                out.mux(packet)
    return other


@pytest.mark.parametrize(("one", "other"), [(0, 20_000), (450_000, 0)], ids=["in between", "before the beginning"])
def test_a_clock_that_is_set_back(tmp_path, one, other):
    """Two files joined, the second one's times between the first one's or before them all: they come in file order."""
    first = make(tmp_path / "a", "mpeg-ts", count=20, gop=10)
    second, path = make(tmp_path / "b", "mpeg-ts", count=30, gop=10), tmp_path / "joined.ts"
    path.write_bytes(later(first, one).read_bytes() + later(second, other).read_bytes())
    reference = sequential(path)
    assert np.array_equal(reference[20:], sequential(second))
    assert same(path, reference).times is None


def test_a_title_in_other_letters(tmp_path):
    """As tools of other times and places wrote them: names are no part of the pictures."""
    path = make(tmp_path / "v", count=12)
    reference, data = sequential(path), path.read_bytes()
    assert data.count(b"VideoHandler") == 1
    path.write_bytes(data.replace(b"VideoHandler", "Vidéo de é".encode("latin-1").ljust(12)))
    if av.__version__.startswith("18."):  # the next one opens it by itself
        with pytest.raises(UnicodeDecodeError):
            av.open(str(path))
    same(path, reference)


@pytest.mark.parametrize("codec", ["mpeg-ts", "h264"])
def test_a_stream_that_turns_up_on_the_way(tmp_path, monkeypatch, codec):
    """PyAV 18 does not know it, and fails when it comes to the file's end."""

    class Surprised:
        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def demux(self, stream):
            yield from (packet for packet in self._file.demux(stream) if packet.size)
            raise IndexError("list index out of range")

    path = make(tmp_path / "v", codec)
    reference, inner = sequential(path), Container._av_open
    monkeypatch.setattr(Container, "_av_open", lambda self, options: Surprised(inner(self, options)))
    same(path, reference)


class TestCoverPicture:
    def test_before_the_video(self, tmp_path):
        plain, path = tmp_path / "plain.mp4", tmp_path / "cover.mp4"
        with_cover(plain, "libx264")
        data = plain.read_bytes()
        moov = data.index(b"moov") - 4  # the last box, so that nothing else moves
        boxes, at = {}, moov + 8
        while at < len(data):
            size = int.from_bytes(data[at : at + 4])
            boxes[data[at + 4 : at + 8]] = data[at : at + size]
            at += size
        path.write_bytes(data[: moov + 8] + boxes[b"mvhd"] + boxes[b"udta"] + boxes[b"trak"])
        with av.open(str(path)) as file:
            assert [stream.codec_context.name for stream in file.streams.video] == ["png", "h264"]
        with open_video(path) as video:
            assert (video.codec, len(video), video.width) == ("h264", 20, 96)
            assert np.array_equal(video.frames([7]), sequential(plain)[[7]])

    def test_of_music(self, tmp_path):
        path = tmp_path / "song.m4a"
        with_cover(path, "aac")
        with pytest.raises(DecodeError, match="has no video stream, only a cover picture") as found:
            open_video(path)
        assert found.value.problem == "unsupported"


def with_cover(path, encoder):
    with av.open(str(path), "w", format="mp4") as out:
        cover = out.add_stream("png", rate=1)
        cover.width, cover.height, cover.pix_fmt = 50, 40, "rgb24"
        cover.disposition = av.stream.Disposition.attached_pic
        if encoder == "aac":
            stream = out.add_stream("aac", rate=44100)
            frames = [av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")]
            frames[0].rate = 44100
        else:
            stream = out.add_stream(encoder, rate=25)
            stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
            frames = [av.VideoFrame.from_ndarray(picture(number, 96, 64), "rgb24") for number in range(20)]
        out.mux(cover.encode(av.VideoFrame.from_ndarray(picture(1, 50, 40), "rgb24")))
        for frame in frames:
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


@pytest.mark.parametrize("codec", CODECS)
def test_several_threads_of_a_decoder(tmp_path, codec):
    """Closed and opened again while they run, too."""
    path = make(tmp_path / "v", codec, count=60, gop=10)
    same(path, sequential(path), threads=4)


def test_an_hour_opens_at_once(tmp_path):
    """90,000 packets are read; a frame anywhere costs a group of pictures, not a look at all times."""
    import time

    path = tmp_path / "long.mp4"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25, options={"preset": "ultrafast", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 32, 32, "yuv420p", 50
        frame = av.VideoFrame.from_ndarray(picture(3, 32, 32), "rgb24").reformat(format="yuv420p")
        for number in range(90_000):
            frame.pts = number
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    began = time.perf_counter()
    with open_video(path) as video:
        opened = time.perf_counter() - began
        assert len(video) == 90_000
        assert video.duration_seconds == pytest.approx(3600)
        assert opened < 10, "about half a second on an idle machine"
        assert video.frames([60_000]).shape == (1, 32, 32, 3)


def in_pieces(path):
    """The same packets in an mp4 whose header was written before any of them."""
    other = path.with_name("pieces.mp4")
    flags = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    with av.open(str(path)) as file, av.open(str(other), "w", options=flags) as out:
        stream = out.add_stream_from_template(file.streams.video[0])
        for packet in file.demux(video=0):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    return other


def renamed(path):
    return path.rename(path.with_name("other.mp4"))


@pytest.mark.parametrize(
    ("codec", "change"),
    [("h264", lambda path: path), ("h264", in_pieces), ("mpeg-ts", renamed), ("h264 open gop", renamed)],
    ids=["usual", "in pieces", "a transport stream by name", "mkv by name"],
)
def test_what_a_brief_look_at_an_mp4_does_not_tell(tmp_path, codec, change):
    """Names may be wrong, and headers may have gaps: then it is looked at as any other file."""
    path = change(make(tmp_path / "v", codec, count=30))
    with av.open(str(path)) as file:
        rate = float(file.streams.video[0].average_rate)
    with open_video(path) as video, open_video(path, known=video.known) as again:
        assert video.rate == again.rate == pytest.approx(rate)
        expected = sequential(path)
        for one in (video, again):
            assert np.array_equal(one.frames([25, 3, 14]), expected[[25, 3, 14]])
