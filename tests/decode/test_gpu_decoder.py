"""Which image goes to the GPU and what happens to the rest, with a backend of ours in the GPU's place."""

from __future__ import annotations

import numpy as np
import pytest
import simplejpeg
import torch
from tests.decode.support import exif, picture, saved

from fulltilt.decode import decode, probe
from fulltilt.decode.gpu import GpuDecoder, available, tried, turn
from fulltilt.decode.jpeg import cpu_reason
from fulltilt.decode.nvjpeg import NvJpeg
from fulltilt.errors import DecodeError, InputError, UnavailableError

CPU = torch.device("cpu")


class Fake:
    """Decodes as the CPU does, but remembers what it was given and fails on request."""

    def __init__(self, channels=3, breaks=False):
        self.channels, self.breaks = channels, breaks
        self.given: list[list[bytes]] = []

    def decode(self, memory, starts, lengths, sizes):
        assert memory.device.type == "cpu"
        files = [memory[a : a + n].numpy().tobytes() for a, n in zip(starts, lengths, strict=True)]
        self.given.append(files)
        if self.breaks:
            raise RuntimeError("nvjpegDecodeBatched: bad JPEG\nmore")
        made = []
        for data, size in zip(files, sizes, strict=True):
            pixels = simplejpeg.decode_jpeg(data, "RGB" if self.channels == 3 else "GRAY")  # not turned: as engines do
            assert pixels.shape == (*size, self.channels)
            made.append(torch.from_numpy(pixels).reshape(-1))
        return torch.cat(made)


def _as_pixels(image: torch.Tensor) -> np.ndarray:
    assert image.is_contiguous()
    assert image.dtype == torch.uint8
    return image.numpy()


def _mixed() -> dict[str, bytes]:
    return {
        "baseline": saved(picture()),
        "turned": saved(picture(80, 50), exif=exif(6)),
        "progressive": saved(picture(), progressive=True),
        "CMYK": saved(picture().convert("CMYK")),
        "plain RGB": saved(picture(), keep_rgb=True),
        "png": saved(picture(), "PNG"),
        "grey": saved(picture().convert("L")),
        "rare coding": simplejpeg.encode_jpeg(np.asarray(picture()), colorsubsampling="440"),
    }


@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_comes_out_as_on_the_cpu(channels):
    files = _mixed()
    backend = Fake(channels)
    decoder = GpuDecoder(CPU, channels=channels, backend=backend)
    made = decoder.decode(list(files.values()))
    for data, image in zip(files.values(), made, strict=True):
        assert (_as_pixels(image) == decode(data, channels=channels)).all()
    assert backend.given == [[files["baseline"], files["turned"]]]
    assert decoder.counts == {"gpu": 2, **{name: 1 for name in files if name not in ("baseline", "turned")}}


def test_no_files_are_no_pixels():
    assert GpuDecoder(CPU, backend=Fake()).decode([]) == []
    engine = NvJpeg.__new__(NvJpeg)  # without its library, which is not asked
    engine._device, engine._channels = CPU, 3
    decoder = GpuDecoder(CPU, backend=engine)
    none = np.zeros(0, np.int64)
    pixels = decoder.decode_packed(torch.zeros(8, dtype=torch.uint8), none, none, np.zeros((0, 2), np.int64), none)
    assert (pixels.shape, pixels.dtype) == ((0,), torch.uint8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_is_the_cpus(orientation):
    data, upright = saved(picture(), exif=exif(orientation)), saved(picture(40, 30))
    _, image, _ = GpuDecoder(CPU, backend=Fake()).decode([upright, data, upright])
    assert (_as_pixels(image) == decode(data)).all()


def test_turning_keeps_an_upright_image_where_it_is():
    image = torch.zeros(4, 5, 3, dtype=torch.uint8)
    assert turn(image, 1).data_ptr() == image.data_ptr()


def test_a_refused_batch_takes_the_cpus_path_and_is_counted():
    files = [saved(picture(index=index)) for index in range(3)]
    decoder = GpuDecoder(CPU, backend=Fake(breaks=True))
    made = decoder.decode(files)
    assert all((_as_pixels(m) == decode(d)).all() for m, d in zip(made, files, strict=True))
    assert decoder.counts == {"batch refused: nvjpegDecodeBatched: bad JPEG": 3}


def test_out_of_memory_is_not_taken_for_a_bad_file():
    class Full(Fake):
        def decode(self, memory, starts, lengths, sizes):
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
        expected = None if name in ("baseline", "turned") else name
        assert cpu_reason(probe(data), memoryview(data)) == expected
    data = saved(picture())
    assert cpu_reason(probe(data), memoryview(data[:-2])) == "truncated"
    assert cpu_reason(probe(data), memoryview(data + b"tail")) is None


def test_a_backend_is_used_only_after_it_has_decoded_right():
    def missing(device, channels):
        raise UnavailableError("nvJPEG is not here")

    class Black(Fake):
        def decode(self, memory, starts, lengths, sizes):
            return torch.zeros(int(sizes.prod()) * 3, dtype=torch.uint8)

    fake = Fake()
    assert tried(lambda device, channels: fake, CPU, 3) is fake
    for make, reason in (
        (missing, "nvJPEG is not here"),
        (lambda device, channels: Black(), "128 came out as 0"),
        (lambda device, channels: Fake(breaks=True), "RuntimeError: nvjpegDecodeBatched"),
    ):
        with pytest.raises(UnavailableError, match=reason) as caught:
            tried(make, CPU, 3)
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
