"""What is to be seen: a disc on textured ground that rests or drifts slowly, and now and then does something.

A video follows from (seed, number) alone: its script, the actions with their first and last frames, and its pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ACTIONS = ("sweep", "bounce", "pulse", "blink")
"""From side to side, up and down, larger and smaller, dark and bright. Numbers begin with 1: 0 is none of them."""
LEAST_FRAMES, MOST_FRAMES = 16, 48
_LEAST_GAP, _MOST_GAP = 8, 28
_REACH = 0.22
"""How far the disc goes, of the picture's shorter side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One of `ACTIONS`, from a frame on and up to another, which is not part of it."""

    kind: str
    start: int
    end: int


def script(frames: int, seed: int, number: int) -> list[Action]:
    """The actions of a video of at least `LEAST_FRAMES` + 2 frames, in their order; there is at least one."""
    random = np.random.default_rng((seed, number, 0))
    found: list[Action] = []
    at = int(random.integers(1, min(_LEAST_GAP, frames - LEAST_FRAMES)))
    while at + LEAST_FRAMES < frames:
        length = min(int(random.integers(LEAST_FRAMES, MOST_FRAMES + 1)), frames - 1 - at)
        found.append(Action(kind=str(random.choice(ACTIONS)), start=at, end=at + length))
        at += length + int(random.integers(_LEAST_GAP, _MOST_GAP + 1))
    return found


def pictures(frames: int, height: int, width: int, seed: int, number: int) -> Iterator[NDArray[np.uint8]]:
    """The video's pictures, height × width × 3."""
    random = np.random.default_rng((seed, number, 1))
    ground = _ground(random, height, width)
    colour = random.uniform(170, 255, 3).astype(np.float32)
    side = min(height, width)
    for row, column, size, light in _course(random, frames, script(frames, seed, number)):
        picture = ground.copy()
        centre, radius = (row * height, column * width), size * side
        top, left = (max(0, math.floor(at - radius - 1)) for at in centre)
        bottom, right = (math.ceil(at + radius + 2) for at in centre)
        part = picture[top:bottom, left:right]
        y = np.arange(top, top + part.shape[0], dtype=np.float32)[:, None] + 0.5 - centre[0]
        x = np.arange(left, left + part.shape[1], dtype=np.float32)[None] + 0.5 - centre[1]
        cover = np.clip(radius - np.hypot(y, x) + 0.5, 0, 1)[..., None]
        part += cover * (light * colour - part)
        picture += random.normal(0, 6)  # the light flickers
        yield np.clip(picture, 0, 255).astype(np.uint8)


def _ground(random: np.random.Generator, height: int, width: int) -> NDArray[np.float32]:
    cell = max(4, min(height, width) // 8)
    small = random.uniform(-15, 15, (height // cell + 2, width // cell + 2, 3)).astype(np.float32)
    small += random.uniform(30, 90, 3).astype(np.float32)
    return np.kron(small, np.ones((cell, cell, 1), np.float32))[:height, :width]


def _course(random: np.random.Generator, frames: int, actions: list[Action]) -> NDArray[np.float64]:
    """Row and column of the disc's centre and its radius, as parts of the picture, and its light, for every frame."""
    homes = random.uniform(0.35, 0.65, (len(actions) + 1, 2))
    usual = random.uniform(0.13, 0.18)
    found = np.empty((frames, 4))
    found[:, 2:] = usual, 1.0
    before = 0
    for number, action in enumerate(actions):
        here, gone = homes[number], action.start - before
        if gone:  # drifts on to where the next action takes place
            share = (np.arange(gone) / gone)[:, None]
            since = homes[max(0, number - 1)]
            found[before : action.start, :2] = since + share * (here - since)
        found[action.start : action.end] = _moves(random, action, here, usual)
        before = action.end
    found[before:, :2] = homes[len(actions) - 1]
    return found


def _moves(random: np.random.Generator, action: Action, home: NDArray[np.float64], usual: float) -> NDArray[np.float64]:
    length = action.end - action.start
    angle = 2 * np.pi * np.arange(1, length + 1) / random.uniform(7, 11)
    reach, way = _REACH * random.uniform(0.8, 1.2), float(random.choice((-1, 1)))
    row, column, size, light = (np.zeros(length) for _ in range(4))
    if action.kind == "sweep":
        column = way * reach * np.sin(angle)
    elif action.kind == "bounce":
        row = way * reach * np.sin(angle)
    elif action.kind == "pulse":
        size = 0.6 * usual * np.sin(angle)
    else:
        light = (np.cos(angle) - 1) / 2
    return np.stack([home[0] + row, home[1] + column, usual + size, 1 + light], axis=1)
