"""One video file, through PyAV: its packets, and its pictures from a place on.

FFmpeg decodes and converts with the interpreter lock released, so that decoders in several threads run side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulltilt.decode.video.entry import h264_entry, packed, unneeded
from fulltilt.decode.video.forks import keep_converters, watch
from fulltilt.decode.video.index import FrameIndex, PacketFacts, index_of
from fulltilt.errors import DecodeError, InputError, UnavailableError
from fulltilt.machine.paths import GET_PYAV, pyav_problem

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


def pyav() -> Any:
    """The library, or how to get it."""
    try:
        import av
    except ImportError as error:
        raise UnavailableError(f"videos need PyAV ({error}): {GET_PYAV}") from error
    problem = pyav_problem(av.__version__)
    if problem is not None:
        raise UnavailableError(problem)
    keep_converters()
    # Its log stays off, as it is: a decoder's thread that logs waits for the interpreter lock, and whoever closes the
    # file holds it while waiting for the thread.
    return av


_MP4 = (".mp4", ".mov", ".m4v")
_PICTURE_ONLY = 0x400
"""A stream that is one attached picture, as music files have them (AV_DISPOSITION_ATTACHED_PIC)."""


@dataclass(slots=True, kw_only=True)
class Course:
    """What a pass is for; whoever takes its pictures may change it on the way. Both are frames' times."""

    skip: set[int] = field(default_factory=set)
    """Nobody wants these: what no other frame needs of them is not decoded."""
    left: set[int] | None = None
    """When all of these have gone into the decoder it is emptied, and the pass ends. None: at the file's end."""


class Container:
    """An open file with one video stream in use."""

    def __init__(self, path: Path, *, threads: int, fast: bool = False) -> None:
        """
        Args:
            fast: leave out what smooths blocks in pictures that are predicted from both sides; little refers to them.
        """
        self.path, self._threads, self._fast = path, threads, fast
        self._looks = False
        """FFmpeg may decode pictures when it opens the file, to see what they are like; it takes as long as a clip."""
        self._is_brief = path.suffix.lower() in _MP4
        """The header has all that is needed: packets need not be read in search of it."""
        self.decoded = 0
        """Packets that have gone into the decoder."""
        self._av = pyav()
        self.read_errors = (self._av.FFmpegError, OSError, IndexError)
        """That reading packets raises. The last at the end of a file in which another stream has turned up on the way,
        such as sound that begins later: PyAV 18 has not heard of it."""
        self._is_fresh = False
        """Opened, and nothing has been read of it."""
        self._is_closed = False
        self.lock = threading.RLock()
        """Of whoever reads in it: two threads in one decoder would end the process."""
        self.abandoned = 0
        """How often it was left to another process: who stands somewhere in the file stands there no more."""
        self._opened: tuple[InputContainer, VideoStream] | None = None
        watch(self)
        self._opened = self._open()

    @property
    def file(self) -> InputContainer:
        return self._parts()[0]

    @property
    def stream(self) -> VideoStream:
        return self._parts()[1]

    def _parts(self) -> tuple[InputContainer, VideoStream]:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def abandon(self) -> Any:
        """In a fork: what is open is the parent's, and so is the lock, if somebody held it."""
        left, self._opened, self._is_fresh = self._opened, None, False
        self.lock = threading.RLock()
        self.abandoned += 1
        return left

    def _open(self) -> tuple[InputContainer, VideoStream]:
        if self._is_closed:
            raise InputError(f"{self.path} is closed: open it again with open_video")
        av = self._av
        options = {} if self._looks else {"skip_frame": "all"}
        try:
            file = self._av_open({**options, "analyzeduration": "1"} if self._is_brief else options)
            if self._is_brief and not _is_told(file):
                self._is_brief = False
                file.close()
                file = self._av_open(options)
        except FileNotFoundError:
            raise InputError(f"{self.path}: no such file") from None
        except (OSError, av.FFmpegError) as error:
            hint = "" if isinstance(error, OSError) else ": not a video, damaged, or cut off before its end"
            message = f"{self.path}: can't be opened as a video ({_said(error)}){hint}"
            raise DecodeError(message, problem=self._kind()) from None
        if not file.streams.video:
            others = ", ".join(sorted({stream.type for stream in file.streams}))
            file.close()
            what = f"has no video stream, only {others}" if others else "has no stream at all"
            raise DecodeError(f"{self.path}: {what}", problem="unsupported" if others else "empty")
        stream = next((stream for stream in file.streams.video if not stream.disposition & _PICTURE_ONLY), None)
        if stream is None:
            file.close()
            raise DecodeError(f"{self.path}: has no video stream, only a cover picture", problem="unsupported")
        if stream.codec_context is None:
            file.close()
            raise DecodeError(f"{self.path}: no decoder for its video", problem="unsupported")
        stream.codec_context.thread_count = self._threads
        stream.codec_context.thread_type = "AUTO" if self._threads > 1 else "NONE"
        options = {"skip_loop_filter": "bidir"} if self._fast else {}
        if stream.codec_context.name == "h264":
            # How far pictures are out of order was not seen: where the stream does not say it, the most is assumed.
            options["strict"] = "strict"
        if options:
            stream.codec_context.options = options
        self._is_fresh = True
        return file, stream

    def _av_open(self, options: dict[str, str]) -> Any:
        return self._av.open(str(self.path), options=options, **_unread(self._av))

    def _kind(self) -> Any:
        """What is wrong with a file that no demuxer takes."""
        try:
            return "empty" if self.path.stat().st_size == 0 else "not-an-image"
        except OSError:
            return "corrupt"

    def index(self) -> FrameIndex:
        """Read from the packets, without decoding; the file stands at its beginning again afterwards."""
        if "mp4" not in self.file.format.name:  # others don't say when a packet is decoded: that follows from pictures
            self._looks = True
            self._open_again()
            self._looks = False
        context = self.stream.codec_context
        extradata, h264, mpeg4 = context.extradata, context.name == "h264", context.name == "mpeg4"
        packets: list[PacketFacts] = []
        timed = True
        self._is_fresh = False
        try:
            for packet in self.file.demux(self.stream):  # what was read before an error counts
                if not packet.size:
                    continue
                key = packet.is_keyframe and (not h264 or h264_entry(bytes(packet), extradata))
                timed = timed and not (mpeg4 and packed(bytes(packet)))
                packets.append(PacketFacts(packet.pts, packet.dts, key, not packet.is_discard))
        except self.read_errors as error:
            if not packets:
                raise DecodeError(f"{self.path}: no packet can be read ({_said(error)})") from None
        index = index_of(packets, timed=timed)
        if index is None:
            raise DecodeError(f"{self.path}: has no frames", problem="empty")
        self.begin()
        return index

    def begin(self) -> None:
        """To the first frame. By opening it anew: not every format can be rewound."""
        if not self._is_fresh:
            self._open_again()

    def _open_again(self) -> None:
        self._let_go()
        self._opened = self._open()

    def seek(self, time: int) -> bool:
        """To the last key frame at or before a time, going by the file's own index; False where it can't."""
        self._is_fresh = False
        try:
            self.file.seek(time, stream=self.stream, backward=True)
        except (self._av.FFmpegError, OSError):
            return False
        return True

    def packets(self) -> Iterator[Any]:
        """Undecoded, from here on, in the file's order."""
        self._is_fresh = False
        yield from (packet for packet in self.file.demux(self.stream) if packet.size)

    def pictures(self, course: Course) -> Iterator[VideoFrame]:
        """Decoded frames from here on, in the order in which they are shown.

        A packet that can't be decoded is passed over: the frame is missing, and who wants it says so.
        """
        self._is_fresh = False
        packets = self.file.demux(self.stream)
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except self.read_errors:  # the rest can't be read: what the decoder holds is still good
                yield from self._decoded(None)
                return
            if packet.pts in course.skip and self.unneeded(packet):
                continue
            yield from self._decoded(packet)
            if course.left is not None:
                course.left.discard(packet.pts)
                if not course.left:
                    yield from self._decoded(None)
                    return

    def unneeded(self, packet: Any) -> bool:
        """Few files flag what no other frame needs; some codecs' pictures say so themselves."""
        if packet.is_disposable:
            return True
        context = self.stream.codec_context
        return unneeded(context.name, bytes(packet), context.extradata)

    def _decoded(self, packet: Any) -> list[VideoFrame]:
        try:
            context = self.stream.codec_context
            self.decoded += packet is not None and packet.size > 0
            return list(context.decode(packet) if packet is None or packet.size else context.decode(None))
        except (self._av.FFmpegError, EOFError):
            return []

    def close(self) -> None:
        """The decoder's pictures go with the stream, however long this object is kept: megabytes of them."""
        self._let_go()
        self._is_closed = True

    def _let_go(self) -> None:
        opened, self._opened, self._is_fresh = self._opened, None, False
        if opened is not None:
            opened[0].close()


def told_of(path: Path) -> tuple[int, int, int] | None:
    """Frames, height and width, as the header has them: no packet is read. None where it doesn't say all of them."""
    container = Container(path, threads=1)
    try:
        stream, file = container.stream, container.file
        frames = stream.frames
        if not frames and stream.average_rate and (lasts := _seconds_of(stream, file)):
            frames = round(lasts * float(stream.average_rate))
        found = (frames, stream.codec_context.height, stream.codec_context.width)
        return found if all(found) else None
    finally:
        container.close()


def _seconds_of(stream: VideoStream, file: InputContainer) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return None if file.duration is None else file.duration / 1e6


def _unread(av: Any) -> dict[str, str]:
    """Titles and names that are written in other letters than UTF-8 are nobody's concern here.

    From 19 on PyAV takes them as they are, and has no argument for it.
    """
    return {"metadata_errors": "replace"} if av.__version__.startswith("18.") else {}


def _is_told(file: InputContainer) -> bool:
    """Its header says what the video is like; one that is written piece by piece may not have its rate there."""
    videos = file.streams.video
    return "mp4" in file.format.name and all(stream.average_rate and stream.codec_context for stream in videos)


def _said(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return str(text).strip().rstrip(".")
