"""fulltilt inside somebody else's loop: what it waited for, said at its end.

loop.py          any loop of torch's, as a `with` block     summary.py       all its steps, as data and as a line (pure)
lightning.py     a callback for Lightning                   huggingface.py   a callback for Hugging Face's Trainer

All three watch with the hooks of `fulltilt diagnose` (launch/): the same phases, and no second way to find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulltilt.lazy import on_first_use

if TYPE_CHECKING:
    from fulltilt.integrations.huggingface import HuggingFaceCallback as HuggingFaceCallback
    from fulltilt.integrations.lightning import LightningCallback as LightningCallback
    from fulltilt.integrations.loop import Watching as Watching
    from fulltilt.integrations.loop import watching as watching
    from fulltilt.integrations.summary import LoopSummary as LoopSummary

__all__ = ["HuggingFaceCallback", "LightningCallback", "LoopSummary", "Watching", "watching"]

# Imported on first use: each callback needs its library, which others need not have.
_HOMES = {
    "HuggingFaceCallback": "huggingface",
    "LightningCallback": "lightning",
    "LoopSummary": "summary",
    "Watching": "loop",
    "watching": "loop",
}

__getattr__ = on_first_use(__name__, _HOMES)
