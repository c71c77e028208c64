"""One self-contained HTML page.

    samples ─► columns ─► series (gaps, envelopes) ─► svg (shapes) ─► chart (shapes and words) ─► page

`monitor_page` is the monitor's, `diagnosis_page` that of diagnose and run; markup, svg, chart and page know neither.
"""

from __future__ import annotations

from .diagnosis import diagnosis_page
from .monitor import monitor_page

__all__ = ["diagnosis_page", "monitor_page"]
