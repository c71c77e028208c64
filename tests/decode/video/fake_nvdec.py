"""A decoder of the GPU that FFmpeg plays.

It takes what the real one takes (packets behind start codes, numbers as times), holds pictures back as it does, and
forgets all parameter sets at the end of a stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from types import SimpleNamespace

import av
import numpy as np
import torch

from fulltilt.decode.video import device, nvdec
from fulltilt.decode.video.limits import Limits

STREAM = SimpleNamespace(cuda_stream=0x900)
LIMITS = Limits(is_supported=True, smallest=(48, 16), largest=(4096, 4096), most_blocks=65536)
NONE = Limits(is_supported=False)


class Packet:
    def __init__(self):
        self.bsl = self.bsl_data = self.pts = 0


class Frame:
    def __init__(self, frame):
        self._pts = frame.pts
        nv12 = frame.reformat(format="nv12")
        rows = [
            np.frombuffer(bytes(plane), np.uint8).reshape(-1, plane.line_size)[:, : frame.width]
            for plane in nv12.planes
        ]
        self.plane = torch.from_numpy(np.concatenate(rows))

    def getPTS(self):  # noqa: N802  # as it is called there
        return self._pts

    def __dlpack__(self, stream=0):
        """As there: a version can't be asked for, and a stream has to be named."""
        if not isinstance(stream, int) or stream == 0:
            raise RuntimeError(f"Invalid value for stream parameter: {stream}")
        return self.plane.__dlpack__()

    def __dlpack_device__(self):
        return self.plane.__dlpack_device__()


class Decoder:
    """`broken`: numbers at which it fails."""

    def __init__(self, codec, broken=()):
        self._codec, self._broken = codec, broken
        self._context = av.CodecContext.create(codec, "r")
        self.packets = 0

    def Decode(self, packet):  # noqa: N802
        if packet.pts in self._broken:
            raise RuntimeError("HW decoder faced error")
        self.packets += 1
        if not packet.bsl:
            frames = self._context.decode(None)
            self._context = av.CodecContext.create(self._codec, "r")
        else:
            fed = av.Packet(ctypes.string_at(packet.bsl_data, packet.bsl))
            fed.pts = fed.dts = packet.pts
            frames = self._context.decode(fed)
        return [Frame(frame) for frame in frames]


def without_streams(monkeypatch):
    """What is asked of CUDA, answered here."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(wait_stream=lambda _: None))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)


class Made:
    """Sessions that were made, and how many were there at once; `broken`: numbers at which they fail.

    `limits`: of codecs that have others than `LIMITS`.
    """

    def __init__(self):
        self.count = self.packets = 0
        self.broken = ()
        self.limits = {}
        self.threads = set()


def engines_on_the_cpu(monkeypatch):
    """`open_video(…, device="cpu")` has engines from here on."""
    made = Made()

    class Counted(Decoder):
        def Decode(self, packet):  # noqa: N802
            made.packets += 1
            made.threads.add(threading.get_ident())
            return super().Decode(packet)

    def make(engine):
        made.count += 1
        return Counted(engine._container.stream.codec_context.name, made.broken)

    without_streams(monkeypatch)
    monkeypatch.setattr(nvdec, "library", lambda: SimpleNamespace(PacketData=Packet))
    monkeypatch.setattr(nvdec.Engine, "_make", make)
    monkeypatch.setattr(nvdec, "limits_of", lambda _, codec: made.limits.get(codec, LIMITS))
    monkeypatch.setattr(device, "has_engines", lambda _: True)
    monkeypatch.setattr(device, "new_stream", lambda _: STREAM)
    return made
