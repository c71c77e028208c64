"""One self-contained HTML page.

    samples ─► columns ─► series (gaps, envelopes) ─► svg (shapes) ─► chart (shapes and words) ─► page

`monitor_page` is the monitor's; markup, svg, chart and page know nothing of it and serve any report.
"""

from __future__ import annotations

from .monitor import monitor_page

__all__ = ["monitor_page"]
