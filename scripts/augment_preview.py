"""The documentation's picture of `fulltilt augment preview`, from a scene that is drawn here.

    python scripts/augment_preview.py

writes docs/images/augment-preview.png. `--scene FOLDER` keeps the scene and its mask as files.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "augment-preview.png"
MOST_BYTES = 400_000
WIDTH, HEIGHT, FINE = 480, 360, 3
CONFIG = """\
gpu_augmentation:
  horizontal_flip_prob: 0.5
  rotation_degrees: 15
  perspective: 0.3
  brightness: 0.3
  contrast: 0.3
  saturation: 0.5
  hue: 0.08
  erase_prob: 0.25
  erase_area: [0.02, 0.12]
  mask_fill: 255
"""
CAR, SIGN, TREE, IGNORED = 1, 2, 3, 255


def scene() -> tuple[Image.Image, Image.Image]:
    """A road at dusk with a car, a sign and trees, and the mask of those; the bonnet below is to be ignored."""
    width, height = WIDTH * FINE, HEIGHT * FINE
    rng = np.random.default_rng(7)
    image = Image.fromarray(_landscape(width, height, rng))
    labels = Image.new("L", image.size, 0)
    pen, mark = ImageDraw.Draw(image), ImageDraw.Draw(labels)

    for x, foot, tall in ((70, 216, 96), (128, 208, 66), (402, 212, 84), (452, 222, 118)):
        _tree(pen, mark, x * FINE, foot * FINE, tall * FINE, rng)
    _road(pen)
    _sign(pen, mark, 338 * FINE, 150 * FINE, 26 * FINE)
    _car(pen, mark, 168 * FINE, 196 * FINE, FINE)
    bonnet = [(0, height), (0, 340 * FINE), (150 * FINE, 322 * FINE), (330 * FINE, 322 * FINE), (width, 340 * FINE)]
    pen.polygon([*bonnet, (width, height)], fill=(24, 26, 32))
    mark.polygon([*bonnet, (width, height)], fill=IGNORED)

    small = image.filter(ImageFilter.GaussianBlur(0.8)).resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
    grain = rng.normal(0.0, 0.6, (HEIGHT, WIDTH, 1))
    picture = np.clip(np.asarray(small) + grain, 0, 255).astype(np.uint8)
    return Image.fromarray(picture), labels.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST)


def _landscape(width: int, height: int, rng: np.random.Generator) -> np.ndarray:
    """Sky with a low sun and thin clouds, two ranges of hills, grass."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    down = np.clip(y / 0.55, 0, 1)[..., None]
    sky = (1 - down) * np.array([70, 118, 190]) + down * np.array([250, 196, 140])
    glow = np.exp(-(((x - 0.24) / 0.16) ** 2 + ((y - 0.40) / 0.14) ** 2))[..., None]
    sky += glow * np.array([60, 50, 10])
    clouds = np.zeros_like(x)
    for octave in range(1, 6):
        phase = rng.uniform(0, 2 * math.pi, 2)
        clouds += (
            np.sin(x * 2.2 * 2**octave + phase[0] + 4 * y) * np.sin(y * 7 * 1.8**octave + phase[1] - 3 * x) / octave
        )
    sky += np.clip(clouds - 0.2, 0, 1)[..., None] * (1 - down) * 60
    out = sky
    for level, rough, colour in ((0.46, 0.035, (96, 112, 140)), (0.53, 0.022, (66, 92, 84))):
        ridge = level + sum(rough / k * np.sin(x * 7 * k + rng.uniform(0, 6)) for k in (1, 2, 3, 5))
        out = np.where((y > ridge)[..., None], np.array(colour) + (y - ridge)[..., None] * 80, out)
    grass = np.array([92, 124, 58]) + rng.normal(0, 8, (height, width, 1)) - (y - 0.58)[..., None] * 70
    return np.clip(np.where((y > 0.58)[..., None], grass, out), 0, 255).astype(np.uint8)


def _road(pen: ImageDraw.ImageDraw) -> None:
    far, near = 212 * FINE, HEIGHT * FINE
    middle = 232 * FINE
    pen.polygon(
        [(middle - 16 * FINE, far), (middle + 16 * FINE, far), (470 * FINE, near), (-10 * FINE, near)], (78, 78, 84)
    )
    for side in (-1, 1):
        pen.line([(middle + side * 14 * FINE, far), (middle + side * 215 * FINE, near)], (226, 222, 206), 2 * FINE)
    for k in range(7):
        top, end = (k / 7) ** 1.8, ((k + 0.5) / 7) ** 1.8
        ys = [far + (near - far) * part for part in (top, end)]
        half = [FINE * (0.6 + 4 * part) for part in (top, end)]
        left, right = ([(middle + side * h, y) for h, y in zip(half, ys, strict=True)] for side in (-1, 1))
        pen.polygon([*left, *reversed(right)], (240, 236, 220))


def _tree(
    pen: ImageDraw.ImageDraw, mark: ImageDraw.ImageDraw, x: float, foot: float, tall: float, rng: np.random.Generator
) -> None:
    trunk = [x - tall * 0.05, foot - tall * 0.45, x + tall * 0.05, foot]
    pen.rectangle(trunk, (74, 54, 40))
    mark.rectangle(trunk, TREE)
    for _ in range(46):
        angle, far = rng.uniform(0, 2 * math.pi), math.sqrt(rng.uniform(0, 1))
        cx, cy = x + math.cos(angle) * far * tall * 0.30, foot - tall * 0.66 + math.sin(angle) * far * tall * 0.34
        r, light = tall * rng.uniform(0.07, 0.13), int(rng.uniform(-16, 24)) + int(12 * (x - cx) / (tall * 0.3))
        pen.ellipse([cx - r, cy - r, cx + r, cy + r], (52 + light, 86 + light, 44 + light // 2))
        mark.ellipse([cx - r, cy - r, cx + r, cy + r], TREE)


def _sign(pen: ImageDraw.ImageDraw, mark: ImageDraw.ImageDraw, x: float, y: float, r: float) -> None:
    pole = [x - r * 0.12, y, x + r * 0.12, y + r * 3.3]
    pen.rectangle(pole, (150, 152, 156))
    mark.rectangle(pole, SIGN)
    for scale, colour in ((1.0, (196, 30, 38)), (0.76, (246, 244, 240))):
        pen.ellipse([x - r * scale, y - r * scale, x + r * scale, y + r * scale], colour)
    mark.ellipse([x - r, y - r, x + r, y + r], SIGN)
    pen.text(
        (x, y),
        "50",
        (28, 28, 30),
        ImageFont.load_default(r * 0.95),
        anchor="mm",
        stroke_width=2,
        stroke_fill=(28, 28, 30),
    )


def _car(pen: ImageDraw.ImageDraw, mark: ImageDraw.ImageDraw, x: float, y: float, s: float) -> None:
    """From behind, in the right-hand lane."""

    def box(left: float, top: float, right: float, bottom: float) -> list[float]:
        return [x + left * s, y + top * s, x + right * s, y + bottom * s]

    def shape(*points: tuple[float, float]) -> list[tuple[float, float]]:
        return [(x + px * s, y + py * s) for px, py in points]

    pen.ellipse(box(52, 64, 152, 80), (52, 52, 58))
    cabin = shape((74, 22), (84, 2), (122, 2), (132, 22))
    for left in (62, 126):
        pen.rounded_rectangle(box(left, 54, left + 16, 76), 4 * s, (22, 22, 26))
        mark.rounded_rectangle(box(left, 54, left + 16, 76), 4 * s, CAR)
    pen.polygon(cabin, (36, 84, 128))
    pen.rounded_rectangle(box(60, 20, 144, 66), 8 * s, (46, 104, 156))
    pen.polygon(shape((80, 20), (87, 6), (119, 6), (126, 20)), (58, 74, 92))
    pen.polygon(shape((88, 20), (96, 6), (104, 6), (97, 20)), (120, 140, 158))
    mark.polygon(cabin, CAR)
    mark.rounded_rectangle(box(60, 20, 144, 66), 8 * s, CAR)
    for left in (64, 124):
        pen.rounded_rectangle(box(left, 32, left + 16, 42), 3 * s, (255, 92, 70))
    pen.rounded_rectangle(box(86, 42, 118, 54), 2 * s, (236, 234, 222))
    pen.text((x + 102 * s, y + 48 * s), "FT 97", (40, 42, 48), ImageFont.load_default(9 * s), anchor="mm")
    pen.rectangle(box(60, 58, 144, 62), (28, 66, 100))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", type=Path, help="keep the scene's files in this folder")
    folder = parser.parse_args().scene
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) if folder is None else folder
        image, labels = scene()
        image.save(home / "road.png")
        labels.save(home / "road-mask.png")
        (home / "augment.yaml").write_text(CONFIG, encoding="utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "fulltilt", "augment", "preview", home / "road.png"),
                *("--mask", home / "road-mask.png", "--config", home / "augment.yaml"),
                *("--columns", "5", "--size", "152", "-o", PICTURE),
            ],
            check=True,
        )
    # 256 colours, chosen first and dithered then (Pillow doesn't dither while it chooses): a third of the bytes.
    picture = Image.open(PICTURE)
    palette = picture.quantize(256, kmeans=2)
    picture.quantize(256, palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size} bytes")
    if PICTURE.stat().st_size > MOST_BYTES:
        sys.exit(f"more than {MOST_BYTES} bytes")


if __name__ == "__main__":
    main()
