"""One video file, through PyAV: its packets, and its pictures from a place on.

FFmpeg decodes and converts with the interpreter lock released, so that decoders in several threads run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulltilt.decode.video.index import FrameIndex, index_of
from fulltilt.errors import DecodeError, InputError, UnavailableError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


def pyav() -> Any:
    """The library, or how to get it."""
    try:
        import av
    except ImportError as error:
        raise UnavailableError(f"videos need PyAV ({error}): pip install 'fulltilt[video]'") from error
    av.logging.set_level(av.logging.PANIC)  # damage is reported by us, once, with the file's name
    return av


class Container:
    """An open file with one video stream in use."""

    def __init__(self, path: Path, *, threads: int) -> None:
        self.path, self._threads = path, threads
        self._av = pyav()
        self._file, self.stream = self._open()

    def _open(self) -> tuple[InputContainer, VideoStream]:
        av = self._av
        try:
            file = av.open(str(self.path))
        except FileNotFoundError:
            raise InputError(f"{self.path}: no such file") from None
        except (OSError, av.FFmpegError) as error:
            message = f"{self.path}: can't be opened as a video ({_said(error)})"
            raise DecodeError(message, problem=self._kind()) from None
        if not file.streams.video:
            others = ", ".join(sorted({stream.type for stream in file.streams})) or "nothing"
            file.close()
            raise DecodeError(f"{self.path}: has no video stream, only {others}", problem="unsupported")
        stream = file.streams.video[0]
        if stream.codec_context is None:
            file.close()
            raise DecodeError(f"{self.path}: no decoder for its video", problem="unsupported")
        stream.codec_context.thread_count = self._threads
        stream.codec_context.thread_type = "AUTO" if self._threads > 1 else "NONE"
        return file, stream

    def _kind(self) -> Any:
        """What is wrong with a file that no demuxer takes."""
        try:
            return "empty" if self.path.stat().st_size == 0 else "not-an-image"
        except OSError:
            return "corrupt"

    def index(self) -> FrameIndex:
        """Read from the packets, without decoding; the file stands at its beginning again afterwards."""
        av = self._av
        packets: list[tuple[int | None, bool]] = []
        try:
            packets.extend(  # what was read before an error counts
                (packet.pts, packet.is_keyframe)
                for packet in self._file.demux(self.stream)
                if packet.size and not packet.is_discard
            )
        except (av.FFmpegError, OSError) as error:
            if not packets:
                raise DecodeError(f"{self.path}: no packet can be read ({_said(error)})") from None
        if not packets:
            raise DecodeError(f"{self.path}: has no frames", problem="empty")
        self.begin()
        return index_of(packets)

    def begin(self) -> None:
        """To the first frame. By opening it anew: not every format can be rewound."""
        self.close()
        self._file, self.stream = self._open()

    def seek(self, time: int) -> None:
        """To the last key frame at or before a time, going by the file's own index."""
        self._file.seek(time, stream=self.stream, backward=True)

    def pictures(self, skip: frozenset[int]) -> Iterator[VideoFrame]:
        """Decoded frames from here on, in the order in which they are shown.

        Packets of `skip` times that no other frame needs are not decoded. A packet that can't be decoded is passed
        over: the frame is missing, and who wants it says so.
        """
        av = self._av
        packets = self._file.demux(self.stream)
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except (
                av.FFmpegError,
                OSError,
            ):  # the rest of the file can't be read: what the decoder holds is still good
                yield from self._decoded(None)
                return
            if packet.is_disposable and packet.pts in skip:
                continue
            yield from self._decoded(packet)

    def _decoded(self, packet: Any) -> list[VideoFrame]:
        try:
            context = self.stream.codec_context
            return list(context.decode(packet) if packet is None or packet.size else context.decode(None))
        except (self._av.FFmpegError, EOFError):
            return []

    def close(self) -> None:
        self._file.close()


def _said(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return str(text).strip().rstrip(".")
