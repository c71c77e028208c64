"""Why a script trains below its limit: observations and limits in, findings out. Pure.

observation, replay, loader ─► figures (seconds per step, the model) ─► findings by family ─► ranked ─► Diagnosis
"""

from __future__ import annotations

from .diagnosis import diagnose
from .finding import Diagnosis, Finding, Limits, LossCurves, Outcome, Trial

__all__ = ["Diagnosis", "Finding", "Limits", "LossCurves", "Outcome", "Trial", "diagnose"]
