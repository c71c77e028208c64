"""What each way of decoding a JPEG costs, as shares of the plain way: `python -m fulltilt.bench.decoding`.

All ways take turns on each photo, so that whatever else the machine does falls on all of them alike; a figure is the
median over photos and rounds, divided by the median of `exact`. Times themselves belong to one machine; shares travel.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fulltilt.bench.photos import photos
from fulltilt.decode import decode_into, probe

_ROUNDS = 7
_PHOTOS = 24

Way = Callable[[bytes, NDArray[np.uint8]], object]


def ways() -> dict[str, Way]:
    """What is compared; `exact` is what the others are a share of."""
    from PIL import Image

    def scaled(eighths: int) -> Way:
        def decode(data: bytes, room: NDArray[np.uint8]) -> object:
            header = probe(data)
            height, width = -(-header.height * eighths // 8), -(-header.width * eighths // 8)
            return simplejpeg.decode_jpeg(data, min_height=height, min_width=width, buffer=room)

        return decode

    return {
        "exact": decode_into,
        "fast": lambda data, room: decode_into(data, room, quality="fast"),
        "grey": lambda data, room: decode_into(data, room, channels=1),
        "Pillow": lambda data, _: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")),
        "header alone": lambda data, _: probe(data),
        **{f"{eighths}/8": scaled(eighths) for eighths in (1, 2, 3, 4, 5, 6, 7)},
        "4/8 fast": lambda data, room: decode_into(data, room, quality="fast", shrink=2),
    }


def shares(files: Sequence[bytes], rounds: int = _ROUNDS) -> tuple[float, dict[str, float]]:
    """Seconds per image of `exact`, and every way's median as a share of it."""
    room = np.zeros(max(probe(data).width * probe(data).height for data in files) * 3, np.uint8)
    compared = ways()
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(rounds):
        for data in files:
            for name, way in compared.items():
                begin = time.perf_counter()
                way(data, room)
                seconds[name].append(time.perf_counter() - begin)
    base = statistics.median(seconds["exact"])
    return base, {name: statistics.median(taken) / base for name, taken in seconds.items()}


def kinds() -> dict[str, list[bytes]]:
    """Photos of about 500×375: rich (80 KB), the same progressive, and plain (30 KB)."""
    from PIL import Image

    rich = list(photos(_PHOTOS))
    progressive = []
    for data in rich:
        file = io.BytesIO()
        Image.open(io.BytesIO(data)).save(file, "JPEG", quality="keep", progressive=True)
        progressive.append(file.getvalue())
    return {"80 KB": rich, "progressive": progressive, "30 KB": list(photos(_PHOTOS, target_bytes=30_000))}


def main() -> None:
    """Print the table."""
    found = {kind: shares(files) for kind, files in kinds().items()}
    print(
        "| share of exact | " + " | ".join(f"{kind} ({base * 1e3:.2f} ms)" for kind, (base, _) in found.items()) + " |"
    )
    print("|---" * (len(found) + 1) + "|")
    for name in ways():
        print(f"| {name} | " + " | ".join(f"{table[name]:.3g}" for _, table in found.values()) + " |")


if __name__ == "__main__":
    main()
