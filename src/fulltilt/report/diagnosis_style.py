"""How the diagnosis page looks beyond what all pages share: a colour for each phase, bars, findings, diffs.

A bar's colour is its phase. Rates have none: what was reached is filled, what bounds it is an outline.
"""

from __future__ import annotations

from fulltilt.measure.observation import Phase

PHASES_LIGHT: dict[Phase, str] = {
    "data wait": "#b02a1e",
    "epoch start": "#c9638f",
    "copy": "#c2540a",
    "forward": "#0067a6",
    "backward": "#00808a",
    "optimizer": "#007a5a",
    "sync": "#96478a",
    "logging": "#756800",
    "eval": "#5b5fc7",
    "checkpoint": "#8a5a44",
    "other": "#7a838d",
}
PHASES_DARK: dict[Phase, str] = {
    "data wait": "#ff8c7d",
    "epoch start": "#f5a3c4",
    "copy": "#f39c46",
    "forward": "#5ab6ef",
    "backward": "#4fc3cf",
    "optimizer": "#3fcb9e",
    "sync": "#df97cc",
    "logging": "#cfc256",
    "eval": "#a5a8f7",
    "checkpoint": "#d0a48c",
    "other": "#87919b",
}
RATES_LIGHT = {"as-it-is": "#59626d", "planned": "#1a1d21", "ceiling": "#59626d", "alone": "#59626d"}
RATES_DARK = {"as-it-is": "#6f7984", "planned": "#e9ebee", "ceiling": "#9ba5b0", "alone": "#9ba5b0"}
"""Of the first card's bars: greys, none of them that of the phase *other*."""


def diagnosis_css() -> str:
    light, dark = (
        "".join(
            [f".p-{name.replace(' ', '-')}{{--c:{colour}}}" for name, colour in phases.items()]
            + [f".{name}{{--c:{colour}}}" for name, colour in rates.items()]
        )
        for phases, rates in ((PHASES_LIGHT, RATES_LIGHT), (PHASES_DARK, RATES_DARK))
    )
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}{_LAYOUT}"


_LAYOUT = """
.key.box{width:10px;height:10px;border-radius:2px}
.band-key{--c:var(--orange);opacity:.3}
.verdict .mean{display:flex;flex-direction:column-reverse}
.rates{display:grid;gap:8px}
.rates .row{display:grid;grid-template-columns:150px minmax(0,1fr) 150px;gap:14px;align-items:center}
.rates .bar{height:16px;border-radius:3px;background:var(--c);min-width:2px}
.rates .ceiling,.rates .alone{background:none;border:2px solid var(--c)}
.rates .alone{border-style:dashed}
.rates .lane{background:var(--hole);border-radius:3px}
.rates b{text-align:right;font-weight:600;white-space:nowrap}
.average{display:grid;grid-template-columns:64px minmax(0,1fr) 70px;gap:14px;align-items:center}
.average+.average{margin-top:8px}
.average b{text-align:right;font-weight:600;white-space:nowrap}
.stack{display:flex;height:30px;border-radius:4px;overflow:hidden;gap:1px}
.stack i{background:var(--c);flex-basis:0;min-width:1px}
.legend small{color:var(--soft)}
.steps,.curve{position:relative;flex:1;min-width:0;height:230px;touch-action:pan-y;user-select:none;overflow:visible}
.steps svg{overflow:hidden;cursor:crosshair}
.column{fill:var(--c)}
.ends{position:absolute;left:0;right:0;top:100%;display:flex;justify-content:space-between;font-size:11px;
  line-height:1;color:var(--soft);padding-top:5px}
.brush{position:absolute;top:0;bottom:0;background:var(--ink);opacity:.12;pointer-events:none}
.pointed{color:var(--ink)}
.pointed:empty{display:none}
.reset{font:inherit;font-size:12px;color:var(--ink);background:var(--hole);border:1px solid var(--hair);
  border-radius:5px;padding:0 8px;cursor:pointer}
.large .line.wide{stroke-width:6;opacity:.5}
.findings{list-style:none;padding:0;margin-bottom:0;display:grid;gap:22px}
.findings>li{display:grid;grid-template-columns:84px minmax(0,1fr);gap:4px 18px}
.findings .gain{font-size:22px;line-height:1.2;font-weight:650;letter-spacing:-.01em;text-align:right;
  white-space:nowrap}
.findings .gain small{display:block;font-size:11px;font-weight:400;letter-spacing:0;color:var(--soft);
  white-space:normal}
.findings .gain.unknown{font-weight:300;color:var(--soft)}
.findings h3{font-size:16px;line-height:1.35}
.findings h3 small{font-weight:400;color:var(--soft);margin-left:.5em;white-space:nowrap}
.findings ul{list-style:none;color:var(--soft);font-size:13.5px;margin-top:4px}
.findings .fix{margin-top:8px;overflow-wrap:anywhere}
.findings .fix::before{content:"→ ";color:var(--good);font-weight:650}
pre{margin:8px 0 0;padding:10px 12px;background:var(--hole);border:1px solid var(--hair);border-radius:6px;
  overflow-x:auto;font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,"Liberation Mono",monospace}
.diff{white-space:pre-wrap;overflow-wrap:anywhere}
.diff span{display:block;padding-left:6ch;text-indent:-6ch}
pre .add{color:var(--good)}
pre .del{color:var(--bad)}
pre .at{color:var(--soft)}
.stages{display:grid;grid-template-columns:max-content minmax(0,1fr) max-content;gap:6px 14px;align-items:center;
  font-size:13px}
.stages .bar{height:12px;border-radius:3px;background:var(--soft);min-width:2px;position:relative;overflow:hidden}
.stages .waited{position:absolute;right:0;top:0;bottom:0;background:var(--orange)}
.stages b{font-weight:600;text-align:right;white-space:nowrap}
.kept td{font-weight:500}
td .mark{font-weight:650}
.facts{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 18px;font-size:13.5px}
.facts dt{color:var(--soft)}
.facts dd{overflow-wrap:anywhere}
.notes{color:var(--soft);font-size:13.5px;padding-left:1.1em}
@media (max-width:640px){
.verdict{grid-template-columns:minmax(0,1fr)}
.verdict .mean{text-align:left}
.verdict .mean b{font-size:19px}
.verdict .mean{flex-direction:row;gap:8px;align-items:baseline}
.trials thead{display:none}
.trials tr{display:grid;grid-template-columns:minmax(0,1fr) auto;gap:0 12px;padding:9px 0;
  border-bottom:1px solid var(--hair)}
.trials tr:last-child{border-bottom:0}
.trials td{border:0;padding:0;white-space:normal}
.trials td:first-child{grid-column:1/-1;font-weight:500}
.trials td:nth-child(2){text-align:left}
.trials td:nth-child(3){text-align:right}
.trials td:last-child{grid-column:1/-1;color:var(--soft)}
.rates .row{grid-template-columns:minmax(0,1fr) auto;gap:2px 10px}
.rates .lane{grid-column:1/-1;grid-row:2}
.average{grid-template-columns:48px minmax(0,1fr) 62px;gap:8px;font-size:13px}
.findings>li{grid-template-columns:minmax(0,1fr)}
.findings .gain{text-align:left}
.findings .gain small{display:inline;margin-left:.5em}
.steps,.curve{height:200px}
.stages{grid-template-columns:minmax(70px,max-content) minmax(0,1fr) max-content;gap:6px 10px}
}
@media print{.reset{display:none}.findings>li{break-inside:avoid}}
"""
