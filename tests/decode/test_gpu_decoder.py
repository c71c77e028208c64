"""Which image goes to the GPU and what happens to the rest, with a backend of ours in the GPU's place."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import simplejpeg
import torch
from tests.decode.support import exif, picture, saved

from fulltilt.decode import decode, probe
from fulltilt.decode.backends import NvImageCodecBackend, TorchvisionBackend
from fulltilt.decode.gpu import GpuDecoder, available, select, turn
from fulltilt.decode.jpeg import cpu_reason
from fulltilt.errors import DecodeError, InputError, UnavailableError

CPU = torch.device("cpu")


class Fake:
    """Decodes as the CPU does, but remembers what it was given and fails on request."""

    name = "fake"

    def __init__(self, layout="channels_first", channels=3, refuse=(), breaks=False):
        self.layout, self.channels, self.refuse, self.breaks = layout, channels, refuse, breaks
        self.given: list[list[bytes]] = []

    def decode(self, files, sizes):
        files = [file.numpy().tobytes() for file in files]
        self.given.append(files)
        if self.breaks:
            raise RuntimeError("Error while decoding JPEG images: nvjpeg status 2\nmore")
        made = []
        for data, size in zip(files, sizes, strict=True):
            pixels = simplejpeg.decode_jpeg(data, "RGB" if self.channels == 3 else "GRAY")  # not turned: as engines do
            assert pixels.shape[:2] == size
            tensor = torch.from_numpy(pixels)
            tensor = tensor.permute(2, 0, 1).contiguous() if self.layout == "channels_first" else tensor
            made.append(None if data in self.refuse else tensor)
        return made


def _as_pixels(image: torch.Tensor, layout: str) -> np.ndarray:
    assert image.is_contiguous()
    assert image.dtype == torch.uint8
    return (image.permute(1, 2, 0) if layout == "channels_first" else image).numpy()


def _mixed() -> dict[str, bytes]:
    return {
        "baseline": saved(picture()),
        "turned": saved(picture(80, 50), exif=exif(6)),
        "progressive": saved(picture(), progressive=True),
        "CMYK": saved(picture().convert("CMYK")),
        "plain RGB": saved(picture(), keep_rgb=True),
        "png": saved(picture(), "PNG"),
        "grey": saved(picture().convert("L")),
    }


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_comes_out_as_on_the_cpu(layout, channels):
    files = _mixed()
    backend = Fake(layout, channels)
    decoder = GpuDecoder(CPU, channels=channels, backend=backend)
    made = decoder.decode(list(files.values()))
    assert decoder.layout == layout
    for data, image in zip(files.values(), made, strict=True):
        assert (_as_pixels(image, layout) == decode(data, channels=channels)).all()
    assert backend.given == [[files["baseline"], files["turned"], files["grey"]]]
    assert decoder.counts == {"gpu": 3, "progressive": 1, "CMYK": 1, "plain RGB": 1, "png": 1, "refused": 0}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_turning_is_the_cpus(layout, orientation):
    data = saved(picture(), exif=exif(orientation))
    (image,) = GpuDecoder(CPU, backend=Fake(layout)).decode([data])
    assert (_as_pixels(image, layout) == decode(data)).all()


def test_turning_keeps_an_upright_image_where_it_is():
    image = torch.zeros(3, 4, 5, dtype=torch.uint8)
    assert turn(image, 1, "channels_first").data_ptr() == image.data_ptr()


def test_a_refused_image_takes_the_cpus_path():
    files = [saved(picture(index=index)) for index in range(3)]
    decoder = GpuDecoder(CPU, backend=Fake(refuse=[files[1]]))
    made = decoder.decode(files)
    assert all((_as_pixels(m, decoder.layout) == decode(d)).all() for m, d in zip(made, files, strict=True))
    assert decoder.counts == {"gpu": 2, "refused": 1}


def test_a_refused_batch_takes_the_cpus_path_and_is_counted():
    files = [saved(picture(index=index)) for index in range(3)]
    decoder = GpuDecoder(CPU, backend=Fake(breaks=True))
    made = decoder.decode(files)
    assert all((_as_pixels(m, decoder.layout) == decode(d)).all() for m, d in zip(made, files, strict=True))
    assert decoder.counts == {"batch refused: Error while decoding JPEG images: nvjpeg status 2": 3}


def test_out_of_memory_is_not_taken_for_a_bad_file():
    class Full(Fake):
        def decode(self, files, sizes):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        GpuDecoder(CPU, backend=Full()).decode([saved(picture())])


def test_damaged_files_are_named_in_their_places():
    good = saved(picture())
    backend = Fake()
    decoder = GpuDecoder(CPU, backend=backend)
    made = decoder.decode_each([good, b"", good[: len(good) // 2], b"some text", good])
    problems = [one.problem if isinstance(one, DecodeError) else None for one in made]
    assert problems == [None, "empty", "truncated", "not-an-image", None]
    assert backend.given == [[good, good]]  # an engine would not have noticed that one was cut
    with pytest.raises(DecodeError, match=r"image 1 of 3: truncated") as caught:
        decoder.decode([good, good[:-50], b""])
    assert caught.value.problem == "truncated"


def test_nothing_to_decode_calls_nobody():
    backend = Fake()
    assert GpuDecoder(CPU, backend=backend).decode([]) == []
    assert len(GpuDecoder(CPU, backend=backend).decode([saved(picture(), "PNG")])) == 1
    assert backend.given == []


def test_reasons():
    for name, data in _mixed().items():
        expected = None if name in ("baseline", "turned", "grey") else name
        assert cpu_reason(probe(data), memoryview(data)) == expected
    data = saved(picture())
    assert cpu_reason(probe(data), memoryview(data[:-2])) == "truncated"
    assert cpu_reason(probe(data), memoryview(data + b"tail")) is None


def test_the_first_backend_that_works_is_chosen():
    def missing(device, channels):
        raise ImportError("No module named 'x'")

    def wrong(device, channels):
        class Black(Fake):
            def decode(self, files, sizes):
                return [torch.zeros(3, *size, dtype=torch.uint8) for size in sizes]

        return Black()

    fake = Fake()
    assert select(CPU, 3, [missing, wrong, lambda device, channels: fake]) is fake
    with pytest.raises(
        UnavailableError, match=r"ImportError: No module named 'x'.*128 came out as 0.*Install"
    ) as caught:
        select(CPU, 3, [missing, wrong])
    assert caught.value.exit_status == 3


def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert "torch finds none" in str(available())
    with pytest.raises(UnavailableError, match="torch finds none"):
        GpuDecoder("cuda")


def test_channels_are_checked():
    with pytest.raises(InputError, match="channels is 4; allowed on the GPU: 1"):
        GpuDecoder(CPU, channels=4, backend=Fake())


def test_torchvision_is_called_as_it_documents(monkeypatch):
    """A stand-in with the documented signature: CPU uint8 tensors in, C×H×W out."""
    calls = []

    def decode_jpeg(input, mode=0, device="cpu", apply_exif_orientation=False):
        calls.append((mode, device))
        assert all(t.dtype == torch.uint8 and t.dim() == 1 and t.device.type == "cpu" for t in input)
        return [
            torch.from_numpy(simplejpeg.decode_jpeg(t.numpy().tobytes())).permute(2, 0, 1).contiguous() for t in input
        ]

    package, io = types.ModuleType("torchvision"), types.ModuleType("torchvision.io")
    io.decode_jpeg, io.ImageReadMode = decode_jpeg, types.SimpleNamespace(RGB="rgb", GRAY="grey")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.io", io)
    backend = select(CPU, 3, [TorchvisionBackend])
    data = saved(picture())
    (image,) = GpuDecoder(CPU, backend=backend).decode([data])
    assert (_as_pixels(image, "channels_first") == decode(data)).all()
    assert calls == [("rgb", CPU)] * 2


@pytest.mark.parametrize("fails", ["none", "marked", "left out"])
def test_nvimagecodec_is_called_as_it_documents(monkeypatch, fails):
    """A stand-in with the documented signature: arrays in, H×W×C images with DLPack out, None where one failed."""
    bad = saved(picture(40, 30))

    class Decoder:
        def __init__(self, device_id=-1, max_num_cpu_threads=0, backend_kinds=None, options=":fancy_upsampling=0"):
            assert backend_kinds == ["hw", "gpu", "hybrid"]

        def decode(self, srcs, params=None, cuda_stream=0):
            assert not params.apply_exif_orientation
            assert cuda_stream == 77
            srcs = [data.tobytes() for data in srcs]  # NumPy arrays
            made = [torch.from_numpy(simplejpeg.decode_jpeg(data)) for data in srcs]
            if fails == "left out":
                return [m for m, data in zip(made, srcs, strict=True) if data != bad]
            return [None if fails == "marked" and data == bad else m for m, data in zip(made, srcs, strict=True)]

    codec = types.ModuleType("nvidia.nvimgcodec")
    codec.Decoder = Decoder  # type: ignore[attr-defined]
    codec.BackendKind = types.SimpleNamespace(HW_GPU_ONLY="hw", GPU_ONLY="gpu", HYBRID_CPU_GPU="hybrid")  # type: ignore[attr-defined]
    codec.DecodeParams = types.SimpleNamespace  # type: ignore[attr-defined]
    package = types.ModuleType("nvidia")
    package.nvimgcodec = codec  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvidia", package)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", codec)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: types.SimpleNamespace(cuda_stream=77))
    backend = select(CPU, 3, [NvImageCodecBackend])
    files = [saved(picture()), bad, saved(picture(50, 70, 1), exif=exif(8))]
    decoder = GpuDecoder(CPU, backend=backend)
    for image, data in zip(decoder.decode(files), files, strict=True):
        assert (_as_pixels(image, "channels_last") == decode(data)).all()
    expected = {
        "none": {"gpu": 3, "refused": 0},
        "marked": {"gpu": 2, "refused": 1},
        "left out": {"batch refused: nvImageCodec decoded 2 of 3 images": 3},
    }[fails]
    assert decoder.counts == expected
