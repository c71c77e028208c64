"""Pictures copied by address, as from a GPU's memory; here memory of the CPU plays it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from fulltilt.decode.video import planes
from fulltilt.decode.video.planes import Planes
from fulltilt.errors import UnavailableError

HEIGHT, WIDTH, STREAM = 8, 16, 0x900


class Surface:
    """As a decoder gives it; `gap` bytes between brightness and colours."""

    def __init__(self, gap=0):
        self._bytes = torch.randint(0, 256, (HEIGHT * WIDTH * 3 // 2 + gap,), dtype=torch.uint8)
        self._gap = gap
        self.shape = (HEIGHT * 3 // 2, WIDTH) if not gap else (HEIGHT, WIDTH)

    @property
    def luma(self):
        return self._bytes[: HEIGHT * WIDTH].reshape(HEIGHT, WIDTH)

    @property
    def chroma(self):
        return self._bytes[HEIGHT * WIDTH + self._gap :].reshape(HEIGHT // 2, WIDTH // 2, 2)

    def GetPtrToPlane(self, number):  # noqa: N802  # as it is called there
        return self._bytes.data_ptr() + number * (HEIGHT * WIDTH + self._gap)

    def __dlpack__(self, stream):
        return self._bytes[: self.shape[0] * WIDTH].reshape(self.shape).__dlpack__()

    def cuda(self):
        return self.luma, self.chroma.reshape(HEIGHT // 2, WIDTH)


@pytest.fixture
def copies(monkeypatch):
    """What the driver was asked to copy; it does so."""
    found = []

    def copy(to, source, size, stream):
        found.append((size, stream))
        ctypes.memmove(to, source, size)
        return 0

    monkeypatch.setattr(planes, "copier", lambda _: copy)
    return found


def room(count):
    return Planes(count, HEIGHT, WIDTH, device=torch.device("cpu"), stream=STREAM)


@pytest.mark.parametrize("gap", [0, 16])
def test_pictures_are_kept_in_their_order(copies, gap):
    surfaces, kept = [Surface(gap) for _ in range(3)], room(3)
    for surface in surfaces:
        assert not kept.is_full
        kept.put(surface)
    assert kept.is_full
    luma, chroma = kept.take()
    assert torch.equal(luma, torch.stack([surface.luma for surface in surfaces]))
    assert torch.equal(chroma, torch.stack([surface.chroma for surface in surfaces]))
    assert copies == ([] if gap else [(HEIGHT * WIDTH * 3 // 2, STREAM)] * 3)


def test_there_is_room_again_when_they_are_taken(copies):
    kept = room(2)
    kept.put(Surface())
    assert len(kept.take()[0]) == 1
    last = Surface()
    kept.put(last)
    assert kept.count == 1
    assert torch.equal(kept.take()[0][0], last.luma)


def test_without_a_gpu_by_dlpack():
    surface, kept = Surface(), room(1)
    kept.put(surface)
    assert torch.equal(kept.take()[1][0], surface.chroma)


def test_a_copy_that_fails_is_said(monkeypatch):
    monkeypatch.setattr(planes, "copier", lambda _: lambda *_: 700)
    with pytest.raises(UnavailableError, match="CUDA error 700"):
        room(1).put(Surface())


def test_a_picture_of_another_size_is_not_taken(copies):
    other = Surface()
    other.shape = (HEIGHT // 2, WIDTH)
    with pytest.raises(UnavailableError, match="came from NVDEC as 4×16"):
        room(1).put(other)


def test_a_thread_gets_into_the_context_before_it_copies(monkeypatch):
    called = []

    def noted(name, result=0):
        return lambda *given: called.append((name, *given)) or result

    driver = SimpleNamespace(cuCtxSetCurrent=noted("enter"), cuMemcpyDtoDAsync_v2=noted("copy"))
    monkeypatch.setattr(planes, "_driver", lambda: driver)
    monkeypatch.setattr(planes, "context_of", lambda number: 0x10 + number)
    assert planes.copier(torch.device("cuda", 1))(1, 2, 3, 4) == 0
    assert called == [("enter", 0x11), ("copy", 1, 2, 3, 4)]
    driver.cuCtxSetCurrent = noted("enter", 201)
    with pytest.raises(UnavailableError, match=r"GPU 1 \(CUDA error 201\)"):
        planes.copier(torch.device("cuda", 1))
