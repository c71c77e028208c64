"""Training against its limit as a picture: one bar for each way to feed it. Standalone SVG, light and dark."""

from __future__ import annotations

from html import escape
from typing import Any

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _BOTTOM = 860, 330, 120, 26, 46, 14
_FONT = "font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif"
_STYLE = f"""
text {{ {_FONT}; fill: #24292f }} .title {{ font-weight: 600 }} .quiet {{ fill: #57606a }}
.ours {{ fill: #2da44e }} .other {{ fill: #8c959f }} .limit {{ stroke: #cf222e; stroke-dasharray: 4 3 }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6edf3 }} .quiet {{ fill: #9198a1 }} .ours {{ fill: #3fb950 }} .other {{ fill: #6e7681 }}
  .limit {{ stroke: #f85149 }}
}}"""


def chart(result: dict[str, Any]) -> str | None:
    """From the benchmark's JSON, a bar for every case that has a limit; None where there is none."""
    cases = [case for case in result["cases"] if "share" in case]
    if not cases:
        return None
    height = _TOP + _ROW * len(cases) + _BOTTOM
    limit_x = _LEFT + _span()
    shapes = [
        '<text class="title" x="12" y="20">Training from files, as a share of its limit</text>',
        f'<text class="quiet" x="{limit_x}" y="38" text-anchor="middle">batch already on the GPU</text>',
        *(shape for row, case in enumerate(cases) for shape in _bar(case, _TOP + _ROW * row)),
        f'<line class="limit" x1="{limit_x}" x2="{limit_x}" y1="{_TOP - 4}" y2="{height - _BOTTOM + 4}"/>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="Training from files, as a share of its limit"><style>{_STYLE}</style>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _bar(case: dict[str, Any], top: int) -> list[str]:
    rate, share = case["samples_per_second"], case["share"]
    length = max(1.0, min(share, 1.05) * _span())
    kind = "other" if case["title"].startswith("DataLoader") else "ours"
    return [
        f'<text x="{_LEFT - 10}" y="{top + 16}" text-anchor="end">{escape(case["title"])}</text>',
        f'<rect class="{kind}" x="{_LEFT}" y="{top + 3}" width="{length:.1f}" height="{_ROW - 8}" rx="3"/>',
        f'<text x="{_LEFT + _span() + 10}" y="{top + 16}">{100 * share:.1f} %</text>',
        f'<text class="quiet" x="{_WIDTH - 12}" y="{top + 16}" text-anchor="end">{rate:,.0f}/s</text>',
    ]


def _span() -> int:
    return _WIDTH - _LEFT - _RIGHT - 40
