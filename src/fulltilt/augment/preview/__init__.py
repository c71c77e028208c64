"""What settings do, as one labelled picture.

files ─► pictures ─► grid: each setting alone (effects), then all together ─► sheet, masks drawn over (overlay)
"""

from fulltilt.augment.preview.grid import CELL_PIXELS, COLUMNS, preview, working_pixels
from fulltilt.augment.preview.pictures import Picture, find_pictures, read_picture

__all__ = ["CELL_PIXELS", "COLUMNS", "Picture", "find_pictures", "preview", "read_picture", "working_pixels"]
