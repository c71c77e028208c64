"""Causes by family. Each family is one function: figures in, findings out; it knows nothing of the others."""

from __future__ import annotations

from .between import between
from .loading import loading
from .machine import machine, slow_rank
from .moving import moving
from .stages import stages
from .step import step

FAMILIES = (loading, stages, moving, between, step, machine)

__all__ = ["FAMILIES", "slow_rank"]
