"""The libraries that decode JPEG on a GPU, behind one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Layout = Literal["channels_first", "channels_last"]


class Backend(Protocol):
    """A library that decodes baseline JPEGs on a device."""

    name: str
    layout: Layout

    def decode(self, files: list[Tensor], sizes: list[tuple[int, int]]) -> list[Tensor | None]:
        """Files (their bytes, in host memory) of `sizes` (height, width, as stored); None where one was not decoded.

        On the current stream. From pinned memory they are copied without waiting. RuntimeError: none was decoded.
        """
        ...


class TorchvisionBackend:
    """nvJPEG through torchvision: the hardware engine for what it takes, CUDA kernels for the rest; planar."""

    name = "torchvision"
    layout: Layout = "channels_first"

    def __init__(self, device: torch.device, channels: int) -> None:
        from torchvision.io import ImageReadMode, decode_jpeg

        self._device = device
        self._mode = ImageReadMode.RGB if channels == 3 else ImageReadMode.GRAY
        self._decode = decode_jpeg

    def decode(self, files: list[Tensor], sizes: list[tuple[int, int]]) -> list[Tensor | None]:
        made: list[Tensor] = self._decode(files, mode=self._mode, device=self._device)
        return [image if tuple(image.shape[-2:]) == size else None for image, size in zip(made, sizes, strict=True)]


class NvImageCodecBackend:
    """nvImageCodec, interleaved. Its memory is not torch's, so pixels are copied into one buffer of torch's."""

    name = "nvImageCodec"
    layout: Layout = "channels_last"

    def __init__(self, device: torch.device, channels: int) -> None:
        from nvidia import nvimgcodec  # type: ignore[import-not-found]

        kinds = nvimgcodec.BackendKind
        self._channels = channels
        self._device = device
        self._decoder = nvimgcodec.Decoder(
            device_id=device.index, backend_kinds=[kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU]
        )
        self._params = nvimgcodec.DecodeParams(apply_exif_orientation=False)
        if channels == 1:
            self._params.color_spec = nvimgcodec.ColorSpec.GRAY
        self._held: list[Any] = []
        """The last batch, until its copy is sure to be done: the decoder's stream is waited for before the next."""

    def decode(self, files: list[Tensor], sizes: list[tuple[int, int]]) -> list[Tensor | None]:
        import torch
        from torch.utils.dlpack import from_dlpack

        self._held = []
        stream = torch.cuda.current_stream(self._device)
        images = self._decoder.decode(
            [file.numpy() for file in files], params=self._params, cuda_stream=stream.cuda_stream
        )
        if len(images) != len(files):  # some versions leave failed ones out, and don't say which
            raise RuntimeError(f"nvImageCodec decoded {len(images)} of {len(files)} images")
        lengths = [height * width * self._channels for height, width in sizes]
        buffer = torch.empty(sum(lengths), dtype=torch.uint8, device=self._device)
        rooms = [
            room.view(*size, self._channels) for room, size in zip(torch.split(buffer, lengths), sizes, strict=True)
        ]
        pairs = [
            (room, from_dlpack(image).reshape(room.shape))
            for room, image in zip(rooms, images, strict=True)
            if image is not None
        ]
        if pairs:
            torch._foreach_copy_([room for room, _ in pairs], [source for _, source in pairs])
        self._held = images
        return [None if image is None else room for room, image in zip(rooms, images, strict=True)]
