"""Every augmentation kernel on awkward shapes, for compute-sanitizer to watch:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python scripts/sanitize.py

Without caching each tensor is an allocation of its own, so that a read one word past an image is seen.
"""

from __future__ import annotations

import math

import torch

from fulltilt.augment import GPUAugmentation, Ragged, StrongGPUAugmentation


def images(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Random pixels in an allocation of their size, rounded up to whole words.

    Images are read in aligned words, so up to three bytes behind the last pixel may be read with it. They are always
    there: allocations begin and end on far larger boundaries (torch's on 512 bytes).
    """
    size = math.prod(shape)
    values = torch.randint(0, 256, (-(-size // 4) * 4,), dtype=torch.uint8, device="cuda")[:size].view(shape)
    return values if dtype == torch.uint8 else values.to(dtype) / 255


def labels(*shape: int) -> torch.Tensor:
    return torch.randint(0, 5, shape, dtype=torch.uint8, device="cuda")


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this needs a GPU")
    options = {"normalize": "imagenet", "dtype": torch.bfloat16, "layout": "channels_last"}
    guide = GPUAugmentation(**options)
    turning = GPUAugmentation(0.5, 180, 0, 0, scale=0.5, translate=0.5, layout="channels_last")
    planar = GPUAugmentation(0.5, 180, 0, 0, scale=0.5, translate=0.5, layout="channels_first")
    strong = StrongGPUAugmentation(**options)
    shrinking = GPUAugmentation(0.5, 0, 0, 0, random_resized_crop=True, size=(6, 10), channels_last=True, **options)
    runs = 0
    for height, width in ((1, 1), (1, 7), (2, 2), (3, 4), (5, 3), (17, 33), (31, 64), (65, 130)):
        for augmentation in (guide, turning, strong):
            augmentation(images(3, height, width, 3), labels(3, height, width))
            runs += 1
        guide(images(2, height, width, 3)[:, :, : max(1, width - 1)])  # rows with a gap
        planar(images(2, 3, height, width))
        runs += 2
    for sizes in (((4, 4), (5, 9), (40, 13)), ((2, 3), (30, 30)), ((64, 64), (8, 200))):
        shrinking([images(h, w, 3) for h, w in sizes], [labels(h, w) for h, w in sizes])
        whole = images(sum(h * w * 3 for h, w in sizes))
        starts = [0]
        for h, w in sizes[:-1]:
            starts.append(starts[-1] + h * w * 3)
        smallest = min(min(size) for size in sizes)
        shrinking(
            Ragged(
                data=whole,
                offsets=torch.tensor(starts, device="cuda"),
                sizes=torch.tensor(sizes, dtype=torch.int32, device="cuda"),
                smallest=smallest,
            )
        )
        runs += 2
    GPUAugmentation(0.5, 15, 0.2, 0.5, contrast_pivot="mean", perspective=0.5)(
        images(2, 1, 19, 23, dtype=torch.float32)
    )
    GPUAugmentation(0.5, 15, noise_std=0.1)(images(2, 3, 3, 16, 20))
    torch.cuda.synchronize()
    print(f"{runs + 2} calls, nothing reported by CUDA itself")


if __name__ == "__main__":
    main()
