"""NV12 pictures to RGB of any size, on whatever device they are: the numbers that the CPU's path (swscale) gives.

It scales brightness and colour apart and joins them afterwards; in a size of its own a picture's colour samples are
repeated, in another of even width they are scaled to all rows and half the columns, in one of odd width to all. Done
likewise here; what remains is that its tables are coarse. Of 255, unscaled: all within 3. Scaled: 2 on average, 99.9 %
within 6.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import interpolate

_WEIGHTS = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""Of red and blue in brightness, by the number that a stream has for its matrix (ITU-T H.273)."""
_BT601 = (0.299, 0.114)
"""Of those that say nothing, too."""
_DOWN = 0.4
"""swscale cuts off where others round; this much less is nearest to it on average."""


def rgb_of(luma: Tensor, chroma: Tensor, out: Tensor, *, matrix: int, full_range: bool) -> None:
    """N×H×W and N×H/2×W/2×2 uint8 into N×h×w×3 uint8, which has no gaps.

    All of it in a few operations on all pictures: whoever converts shares the interpreter lock with other decoders.
    """
    count, height, width, _ = out.shape
    rows, columns = (2, 2) if (height, width) == luma.shape[1:] else (1, 2 - width % 2)
    y, uv = luma, chroma.float()
    if rows == 1:
        y = interpolate(y[:, None].float(), (height, width), mode="bilinear", antialias=True)
        uv = uv.permute(0, 3, 1, 2)
        uv = interpolate(uv, (height, width // columns), mode="bilinear", antialias=True).permute(0, 2, 3, 1)
    gain, of_u, of_v, rest = _factors(luma.device, matrix, full_range)
    u, v = torch.split(uv, 1, -1)
    colours = torch.addcmul(rest, u, of_u).addcmul_(v, of_v)[:, :, None, :, None, :]  # one for a block of samples
    blocks = (count, height // rows, rows, width // columns, columns)
    values = torch.add(colours, y.reshape(*blocks, 1), alpha=gain).clamp_(0, 255)
    out.view(*blocks, 3).copy_(values)  # cuts off


@functools.cache
def _factors(device: torch.device, matrix: int, full_range: bool) -> tuple[float, Tensor, Tensor, Tensor]:
    """Of brightness, and for red, green and blue: of U, of V, and what is added, half for rounding with it."""
    red, blue = _WEIGHTS.get(matrix, _BT601)
    green = 1 - red - blue
    black, gain, colour = (0.0, 1.0, 1.0) if full_range else (16.0, 255 / 219, 255 / 224)
    of_u = [0.0, -2 * blue * (1 - blue) / green * colour, 2 * (1 - blue) * colour]
    of_v = [2 * (1 - red) * colour, -2 * red * (1 - red) / green * colour, 0.0]
    rest = [0.5 - _DOWN - gain * black - 128 * (u + v) for u, v in zip(of_u, of_v, strict=True)]
    u, v, added = torch.tensor([of_u, of_v, rest], dtype=torch.float32).to(device)
    return gain, u, v, added
