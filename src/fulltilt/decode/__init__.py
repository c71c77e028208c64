"""Bytes → pixels. Numpy, simplejpeg and (for what is not JPEG, on first use) Pillow: no torch, so that a decoder's
process starts in a tenth of a second. Decoding on the GPU is in `fulltilt.decode.gpu`.

    header    what an image is: size, mode, orientation
    recognise `probe`: the header, from the first bytes
    markers   JPEG's header
    jpeg      JPEG's pixels, through libjpeg-turbo
    png       PNG's header
    pillow    every other format
    still     `decode`, `decode_into`: either of the two, upright, into the caller's memory
    mask      labels: integers in, the same integers out
    gpu       JPEG in batches on the device, by nvJPEG (`nvjpeg`)
"""

from __future__ import annotations

from fulltilt.decode.header import Header
from fulltilt.decode.jpeg import Quality
from fulltilt.decode.mask import decode_mask, decode_mask_into, label_dtype
from fulltilt.decode.recognise import probe
from fulltilt.decode.still import decode, decode_into, pick_shrink, size_of

__all__ = [
    "Header",
    "Quality",
    "decode",
    "decode_into",
    "decode_mask",
    "decode_mask_into",
    "label_dtype",
    "pick_shrink",
    "probe",
    "size_of",
]
