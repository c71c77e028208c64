"""Packets decoded by the GPU's video engines (NVDEC), through PyNvVideoCodec.

    our index ─► packets from a key frame on (PyAV) ─► NVDEC ─► NV12 in device memory, with our frame numbers

A packet carries its frame's number as its time, so that each picture is known in whatever order they come back. The
decoder works on a stream of ours, and what reads its pictures runs on the same one: it reuses their memory.

Many of these run side by side in threads, and what they do here they do one at a time. Nothing that is done for every
packet lets go of the interpreter lock without need: whoever waits for it is woken each time, mostly in vain.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fulltilt.decode.video.annexb import behind_start_codes, hevc_sets, length_bytes
from fulltilt.decode.video.container import Container
from fulltilt.decode.video.entry import parameter_sets
from fulltilt.decode.video.index import Run
from fulltilt.decode.video.limits import limits_of
from fulltilt.decode.video.reader import Known
from fulltilt.decode.video.sessions import Key, Sessions
from fulltilt.errors import DecodeError, UnavailableError, first_line
from fulltilt.machine.paths import GET_NVDEC

if TYPE_CHECKING:
    import torch

_CODECS = {
    "h264": "H264",
    "hevc": "HEVC",
    "vp8": "VP8",
    "vp9": "VP9",
    "libdav1d": "AV1",
    "av1": "AV1",
    "mpeg2video": "MPEG2",
}
"""FFmpeg's decoders, and the library's names."""
_FORMATS = ("yuv420p", "yuvj420p")
_NOT_SHOWN = 1 << 40
"""In a number's place: the packet shows no frame of the index."""


def library() -> Any:
    """PyNvVideoCodec; UnavailableError says why it is not there."""
    found, reason = _imported()
    if found is None:
        raise UnavailableError(f"NVDEC needs PyNvVideoCodec ({reason}): {GET_NVDEC}")
    return found


@functools.cache
def _imported() -> tuple[Any, str]:
    """Tried once: where it finds no driver it says so at length, each time that it is imported."""
    try:
        import PyNvVideoCodec  # type: ignore[import-not-found,unused-ignore]
    except (ImportError, RuntimeError, OSError) as error:
        return None, first_line(error)
    return PyNvVideoCodec, ""


def reason_against(container: Container, known: Known) -> str | None:
    """Why the engines are not given this file, or None."""
    context = container.stream.codec_context
    if context.name not in _CODECS:
        return f"NVDEC is not used for {context.name}"
    if known.pixels not in _FORMATS:
        return f"its pixels are {known.pixels}; NVDEC is used for {', '.join(_FORMATS)}"
    if known.height % 2 or known.width % 2:
        return f"its size is odd ({known.width}×{known.height})"
    if known.interlaced:  # the engines would mix the two moments
        return "its pictures are interlaced"
    if known.index.times is None:
        return "its frames have no times that can be relied on"
    return None


class Engine:
    """One decoder session for one file: pictures by their numbers, as the library has them."""

    def __init__(
        self,
        container: Container,
        known: Known,
        *,
        device: torch.device,
        stream: torch.cuda.Stream,
        sessions: Sessions | None = None,
    ) -> None:
        """UnavailableError, with the reason, where the library, the codec or the GPU's engines don't do it.

        Args:
            container: the file, in which it reads from here on; it stays open.
        """
        self._sessions, self._sound = sessions, True
        self._ended = True
        """The decoder is at a stream's end or has seen nothing yet."""
        self._decoder: Any = None
        self._pictures: Iterator[tuple[int, Any]] = iter(())
        self.decoded = 0
        """Packets that have gone into the decoder."""
        self._library = library()
        self._errors = _own_errors(self._library)
        self._container = container
        reason = reason_against(self._container, known) or self._beyond_limits(known, device)
        if reason is not None:
            raise UnavailableError(f"{container.path}: {reason}")
        self.path, self._index = container.path, known.index
        self._keys = frozenset(known.index.keys)
        self.stream, self._device = stream, device
        self._key = self._kind_of_session()
        left = None if sessions is None else sessions.take(self._key)
        if left is not None:
            self.stream, self._decoder = left
        self.is_used_again = left is not None
        """It has decoded another video of the same kind."""

    def _beyond_limits(self, known: Known, device: torch.device) -> str | None:
        codec = _CODECS[self._container.stream.codec_context.name]
        limits = limits_of(device.index or 0, codec)
        return None if limits is None else limits.reason_against(codec, known.width, known.height)

    def _kind_of_session(self) -> Key:
        context = self._container.stream.codec_context
        return Key(
            codec=context.name,
            height=context.height,
            width=context.width,
            header=context.extradata or b"",
            device=str(self._device),
        )

    def _make(self) -> Any:
        import torch

        name = _CODECS[self._container.stream.codec_context.name]
        with torch.cuda.device(self._device):
            torch.cuda.current_stream().synchronize()  # the context is there from here on
            return self._library.CreateDecoder(
                gpuid=self._device.index or 0,
                codec=getattr(self._library.cudaVideoCodec, name),
                cudacontext=context_of(self._device.index or 0),
                cudastream=self.stream.cuda_stream,
                usedevicememory=True,
            )

    def run(self, run: Run, *, stay: bool = True) -> Iterator[tuple[int, Any]]:
        """The frames of one pass, each to be read on our stream before the next is asked for.

        `stay` leaves the decoder where it can go on; otherwise it is given no more than these frames need.
        """
        if run.start >= 0:
            self._pictures = self._from(run, stay=stay)
        wanted = iter(run.frames)
        target = next(wanted)
        for number, picture in self._pictures:
            if number == target:
                yield number, picture
                following = next(wanted, None)
                if following is None:
                    return
                target = following
            elif number > target:
                break
        raise DecodeError(f"{self.path}: frame {target} of {self._index.count} was not decoded by NVDEC")

    def _from(self, run: Run, *, stay: bool) -> Iterator[tuple[int, Any]]:
        if self._decoder is None:
            self._decoder = self._call(self._make)
        elif not self._ended:
            self._decode(b"", 0)  # the end of what was before: pictures that it still held are dropped
        first = self._place(run)
        for number, picture in self._decoded(first, run.frames, stay=stay):
            if first <= number < self._index.count:  # what is shown before the key frame may need what was not decoded
                yield number, picture

    def _place(self, run: Run) -> int:
        """The file at a key frame no later than the first frame wanted; that key frame's number."""
        times, start = self._index.times, run.start
        while times is not None and start > 0 and self._container.seek(times[start]):
            first = next((number for number, _ in self._packets() if number in self._keys), None)
            if first is not None and first <= run.frames[0]:
                self._container.seek(times[start])  # the packet has been taken out
                return first
            start = self._index.key_before(start - 1)
        self._container.begin()
        return 0

    def _packets(self) -> Iterator[tuple[int, Any]]:
        """From here on, with their frames' numbers."""
        try:
            for packet in self._container.packets():
                number = self._index.number_of(packet.pts)
                yield _NOT_SHOWN if number is None else number, packet
        except self._container.read_errors:
            return  # the rest of the file can't be read: what the decoder holds is still good

    def _decoded(self, first: int, wanted: tuple[int, ...], *, stay: bool) -> Iterator[tuple[int, Any]]:
        context = self._container.stream.codec_context
        codec, extradata = context.name, context.extradata
        head = hevc_sets(extradata) if codec == "hevc" else parameter_sets(codec, extradata)
        width = length_bytes(codec, extradata)
        begun, left = False, set(wanted)
        skip = set(range(first, wanted[-1])) - left
        for number, packet in self._packets():
            # At the file's beginning a key frame may be one that is not shown (edit lists).
            begun = begun or number == first or (first == 0 and packet.is_keyframe)
            if not begun or (number in skip and number != first and self._container.unneeded(packet)):
                continue
            self.decoded += 1
            try:
                data = behind_start_codes(bytes(packet), width)
            except ValueError as error:
                raise DecodeError(f"{self.path}: frame {number} of {self._index.count}: {error}") from None
            yield from self._decode(head + data if head else data, number)
            head = b""
            left.discard(number)
            if not left and not stay:
                break
        yield from self._decode(b"", 0)

    def _decode(self, data: bytes, number: int) -> list[tuple[int, Any]]:
        """Pictures that come out when these bytes go in; no bytes are the end of the stream."""
        self._ended = not data
        packet = self._library.PacketData()
        packet.bsl = len(data)
        # Read before `Decode` returns, so that they need not be copied.
        packet.bsl_data = (ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0) if data else 0
        packet.pts = number
        return [(int(frame.getPTS()), frame) for frame in self._call(self._decoder.Decode, packet)]

    def _call(self, what: Callable[..., Any], *given: Any) -> Any:
        """The library's own errors, as ours."""
        try:
            return what(*given)
        except self._errors as error:
            self._sound = False
            raise UnavailableError(f"{self.path}: NVDEC: {said(error)[:200]}") from error

    def close(self) -> None:
        self._pictures = iter(())
        if self._decoder is not None and self._sessions is not None and self._sound:
            self._hand_back(self._sessions)
        self._decoder = None

    def _hand_back(self, sessions: Sessions) -> None:
        """For the next video, at the end of this one's stream; an engine that fails there is let go."""
        try:
            if not self._ended:
                self._decode(b"", 0)
        except UnavailableError:
            return
        sessions.give(self._key, (self.stream, self._decoder))


def said(error: BaseException) -> str:
    """In one line, without the library's places and codes:

    HandleVideoSequence :
    Error code : 801
    Error Type : Codec not supported on this GPU
    at /project/src/…/NvDecoder.cpp:260
    """
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    kind = next((number for number, line in enumerate(lines) if line.startswith("Error Type")), None)
    if kind is not None:  # what is before it names a function, what comes after it figures
        lines = [lines[kind].partition(":")[2].strip(), *lines[kind + 1 :]]
    kept = (line.replace(" : ", ": ") for line in lines if line and not re.match(r"at /|Error code\b", line))
    return re.sub(r"(?:\w+\.)?(\w+)\([^()]*\) returned error (\d+)", r"\1 gave CUDA error \2", "; ".join(kept)) or (
        type(error).__name__
    )


def _own_errors(library: Any) -> tuple[type[BaseException], ...]:
    names = ("PyNvVCException", "PyNvVCExceptionUnsupported")
    own = (found for name in names if isinstance(found := getattr(library, name, None), type))
    return (RuntimeError, ValueError, TypeError, *own)


@functools.cache
def context_of(number: int) -> int:
    """The CUDA context that torch uses on a device, as a number; a thread that asks may not have it as its own yet."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver = ctypes.CDLL("libcuda.so.1")
    failed = driver.cuDeviceGet(ctypes.byref(device), number)
    failed = failed or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if failed or not context.value:
        raise UnavailableError(f"CUDA has no context for device {number} (error {failed})")
    driver.cuDevicePrimaryCtxRelease_v2(device)  # torch holds it
    return int(context.value)
