"""The places that numbers have: in the settings vector, among a sample's uniforms, in a sample's row.

Shared by the torch form (`draws.py`, `reference.py`) and the kernels, which reach them through the module
(`layout.Column.GAIN`): Triton takes such constants at compile time.
"""

from __future__ import annotations

import zlib
from enum import IntEnum, IntFlag, auto
from pathlib import Path


class Slot(IntEnum):
    """The order of the numbers in a settings vector."""

    HORIZONTAL_FLIP_PROB = 0
    VERTICAL_FLIP_PROB = auto()
    QUARTER_TURN_PROB = auto()
    ROTATION_LO = auto()
    ROTATION_HI = auto()
    SCALE_LO = auto()
    SCALE_HI = auto()
    TRANSLATE_X = auto()
    TRANSLATE_Y = auto()
    SHEAR_X = auto()
    SHEAR_Y = auto()
    PERSPECTIVE_PROB = auto()
    PERSPECTIVE = auto()
    AREA_LO = auto()
    AREA_HI = auto()
    LOG_RATIO_LO = auto()
    LOG_RATIO_HI = auto()
    BRIGHTNESS_LO = auto()
    BRIGHTNESS_HI = auto()
    CONTRAST_LO = auto()
    CONTRAST_HI = auto()
    CONTRAST_PIVOT = auto()
    SATURATION_LO = auto()
    SATURATION_HI = auto()
    HUE_LO = auto()
    HUE_HI = auto()
    GRAY_PROB = auto()
    INVERT_PROB = auto()
    GAMMA_LO = auto()
    GAMMA_HI = auto()
    SOLARIZE_PROB = auto()
    SOLARIZE_THRESHOLD = auto()
    POSTERIZE_PROB = auto()
    POSTERIZE_BITS = auto()
    NOISE_STD = auto()
    ERASE_PROB = auto()
    ERASE_AREA_LO = auto()
    ERASE_AREA_HI = auto()
    ERASE_LOG_RATIO_LO = auto()
    ERASE_LOG_RATIO_HI = auto()
    BLUR_PROB = auto()
    BLUR_SIGMA_LO = auto()
    BLUR_SIGMA_HI = auto()


class Uniform(IntEnum):
    """Which of a sample's uniform numbers serves which purpose; four come from one block of the generator.

    Never renumber: it would change every draw that somebody has trained with.
    """

    HORIZONTAL_FLIP = 0
    VERTICAL_FLIP = 1
    QUARTER_TURN = 2
    TURNS = 3
    ROTATION = 4
    SCALE = 5
    TRANSLATE_X = 6
    TRANSLATE_Y = 7
    SHEAR_X = 8
    SHEAR_Y = 9
    CROP_X = 10
    CROP_Y = 11
    PERSPECTIVE_IF = 12
    BRIGHTNESS = 16
    CONTRAST = 17
    SATURATION = 18
    HUE = 19
    GRAY = 20
    INVERT = 21
    GAMMA = 22
    SOLARIZE = 23
    POSTERIZE = 24
    ERASE_IF = 25
    BLUR_IF = 26
    BLUR = 27
    ERASE_AREA = 28
    ERASE_RATIO = 29
    ERASE_X = 30
    ERASE_Y = 31
    PERSPECTIVE = 32
    """Eight numbers: x and y of each corner, clockwise from the top left."""
    CROP = 40
    """Twenty numbers: area and ratio of each of ten attempts."""
    NOISE_KEY = 60
    """Two words, taken as bits: the key of the sample's own noise."""


UNIFORMS = 64
CROP_ATTEMPTS = 10


class Column(IntEnum):
    """Where each number of a sample's row stands."""

    MATRIX = 0
    """Nine numbers, row by row: output pixel (x, y, 1) → input pixel, pixel centres at whole numbers."""
    SPREAD_X = 9
    """Input pixels per output pixel along x: how wide the filter is and how soft the border."""
    SPREAD_Y = 10
    GAIN = 11
    """colour' = gain · colour + gray_gain · gray(colour) + offset: all linear colour operations in one."""
    GRAY_GAIN = 12
    OFFSET = 13
    HUE = 14
    GAMMA = 15
    SOLARIZE = 16
    """Threshold; 2 where the sample is not solarised."""
    POSTERIZE = 17
    """Step between levels on the 0 to 255 scale; 0 where the sample is not posterised."""
    NOISE = 18
    """Standard deviation on the [0, 1] scale."""
    ERASE = 19
    """Four numbers: left, top, right, bottom in output pixels; empty where nothing is erased."""
    BLUR = 23
    """Sigma in output pixels; 0 where the sample is not blurred."""
    NOISE_KEY = 24
    """Two 32-bit words, stored as the bits of floats."""


ROW = 26
"""Numbers in a row."""


class Ops(IntFlag):
    """Which groups of operations a kernel contains: from the settings once, not from strength or ranges."""

    TURN = auto()
    """Flips and quarter turns."""
    AFFINE = auto()
    PERSPECTIVE = auto()
    RESIZED_CROP = auto()
    RANDOM_CROP = auto()
    COLOUR = auto()
    GRAY = auto()
    MEAN_PIVOT = auto()
    HUE = auto()
    GAMMA = auto()
    SOLARIZE = auto()
    POSTERIZE = auto()
    NOISE = auto()
    ERASE = auto()
    BLUR = auto()
    OUTSIDE = auto()
    """Samples may show what lies outside the image."""
    SHRINK = auto()
    """An output pixel may cover more than one input pixel."""
    ANTIALIAS = auto()
    """Spreads are measured; otherwise they are 1."""
    CENTRE = auto()
    """Nothing random: the box is the whole image or a centred crop."""


GRAY_RED, GRAY_GREEN, GRAY_BLUE = 0.299, 0.587, 0.114

REVISION = zlib.crc32(Path(__file__).read_bytes())
"""Handed to the kernels as a constant: Triton's cache on disk doesn't see a change in this file otherwise."""
