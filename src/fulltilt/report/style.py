"""How a page looks: two palettes, one for paper and one for the night, and the layout.

The series keep apart for colour-blind eyes (blue against orange first). Lines have a contrast of 3:1 with their ground,
words of 4.5:1; the tests compute both.
"""

from __future__ import annotations

LIGHT = {
    "paper": "#faf9f6",
    "card": "#ffffff",
    "ink": "#1a1d21",
    "soft": "#59626d",
    "hair": "#e3e1db",
    "grid": "#edebe6",
    "hole": "#f3f1ec",
    "blue": "#0067a6",
    "orange": "#c2540a",
    "green": "#007a5a",
    "purple": "#96478a",
    "olive": "#756800",
    "good": "#00694c",
    "warn": "#855500",
    "bad": "#b02a1e",
    "quiet": "#59626d",
}
DARK = {
    "paper": "#0f1215",
    "card": "#161a1f",
    "ink": "#e9ebee",
    "soft": "#9ba5b0",
    "hair": "#2b3139",
    "grid": "#232930",
    "hole": "#1d2228",
    "blue": "#5ab6ef",
    "orange": "#f39c46",
    "green": "#3fcb9e",
    "purple": "#df97cc",
    "olive": "#cfc256",
    "good": "#46d0a2",
    "warn": "#efbc50",
    "bad": "#ff8c7d",
    "quiet": "#9ba5b0",
}
# Light to dark on paper, dark to light at night: more ink is always more load.
HEAT_LIGHT = [
    "#eef0f1",
    "#dde7ec",
    "#c7dce6",
    "#abcede",
    "#8abbd4",
    "#66a6c9",
    "#448dba",
    "#2973a6",
    "#14568b",
    "#0a3967",
]
HEAT_DARK = [
    "#1c2127",
    "#1c2c37",
    "#1c394a",
    "#1b485e",
    "#1c5973",
    "#236c8a",
    "#3082a1",
    "#4a9bb7",
    "#77b8cc",
    "#b8dfe7",
]

SERIES_COLOURS = ("blue", "orange", "green", "purple", "olive")


def css() -> str:
    """The whole style sheet."""
    light, dark = _variables(LIGHT, HEAT_LIGHT), _variables(DARK, HEAT_DARK)
    series = "".join(f".{name}{{--c:var(--{name})}}" for name in SERIES_COLOURS)
    heat = "".join(f".h{level}{{--c:var(--h{level})}}" for level in range(len(HEAT_LIGHT)))
    themes = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{themes}{series}{heat}{_LAYOUT}"


def _variables(colours: dict[str, str], heat: list[str]) -> str:
    named = {**colours, **{f"h{level}": colour for level, colour in enumerate(heat)}}
    return "".join(f"--{name}:{colour};" for name, colour in named.items())


_LAYOUT = """
*{box-sizing:border-box}
:root{color-scheme:light dark}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font-size:15px;line-height:1.5;font-variant-numeric:tabular-nums;
  font-family:-apple-system,BlinkMacSystemFont,"Segoe UI",Roboto,"Helvetica Neue",Arial,"Liberation Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:36px 24px 56px}
h1,h2,h3,h4,p,ul,figure,dl,dd{margin:0;padding:0}
h1{font-size:26px;line-height:1.2;font-weight:650;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:20px;line-height:1.25;font-weight:650}
h3{font-size:15px;font-weight:650;overflow-wrap:anywhere}
h4{font-size:13px;font-weight:650}
small,em,i{font-style:normal}
svg{display:block;width:100%;height:100%;overflow:visible}
path,rect{vector-effect:non-scaling-stroke}
code{font:13px/1.4 ui-monospace,SFMono-Regular,Menlo,"Liberation Mono",monospace}
.eyebrow{color:var(--soft);font-size:12px;font-weight:600;letter-spacing:.08em;text-transform:uppercase;
  margin-bottom:6px}
.meta{color:var(--soft);margin-top:6px;overflow-wrap:anywhere}
.meta span:not(:last-child)::after{content:"·";margin:0 .5em}
.card{background:var(--card);border:1px solid var(--hair);border-radius:10px;padding:24px;margin-top:20px}
.card>*+*{margin-top:20px}
.good{color:var(--good)}
.warn{color:var(--warn)}
.bad{color:var(--bad)}
.quiet{color:var(--quiet)}

.verdict{display:grid;grid-template-columns:minmax(0,1fr) auto;gap:0 24px;align-items:end}
.what{color:var(--soft);font-size:13px;overflow-wrap:anywhere}
.word{white-space:nowrap}
.word svg{display:inline-block;width:.7em;height:.7em;margin-right:.35em;fill:currentColor}
.verdict .word{font-size:34px;line-height:1.2;font-weight:680;letter-spacing:-.02em}
.verdict .mean{text-align:right}
.verdict .mean b{display:block;font-size:34px;line-height:1.2;font-weight:300;letter-spacing:-.02em;white-space:nowrap}
.verdict .mean small{color:var(--soft);font-size:13px}
.verdict .why{grid-column:1/-1;max-width:96ch;margin-top:8px;text-wrap:pretty}
.verdict .rule{grid-column:1/-1;color:var(--soft);font-size:13px}
.flags{display:grid;gap:8px;list-style:none}
.flags li{border-left:3px solid var(--bad);padding:1px 0 1px 12px;max-width:96ch;overflow-wrap:anywhere}
.flags b{margin-right:.5em}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(128px,1fr));gap:14px 20px;padding:14px 0;
  border:solid var(--hair);border-width:1px 0}
.tiles dt{color:var(--soft);font-size:12px;white-space:nowrap}
.tiles dd{font-size:19px;line-height:1.35;font-weight:500;white-space:nowrap}
.tiles small{font-size:13px;font-weight:400;color:var(--soft);margin-left:.25em}

.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:24px 36px}
.chart figcaption{display:flex;flex-wrap:wrap;gap:0 18px;align-items:baseline;justify-content:space-between;
  margin-bottom:10px}
.small figcaption{display:block}
.legend{display:flex;flex-wrap:wrap;gap:0 16px;font-size:12px;color:var(--soft)}
.legend .item{white-space:nowrap}
.legend .lead{font-style:italic}
.legend .value{color:var(--ink);font-weight:600}
.key{display:inline-block;width:14px;height:3px;border-radius:2px;background:var(--c);vertical-align:middle;
  margin-right:6px}
.key.nothing{--c:var(--hole);height:10px;border:1px solid var(--hair)}
.heat .key{width:10px;height:10px;border-radius:0;margin:0}
.heat .value:not(:empty){margin-left:10px}
.frame{display:flex;padding-bottom:20px}
.plot{position:relative;flex:1;min-width:0;height:120px;touch-action:pan-y}
.large .plot{height:230px}
.heat .plot{height:clamp(calc(var(--rows)*3px),calc(var(--rows)*14px),max(224px,calc(var(--rows)*3px)))}
.y-axis{position:relative;flex:none;width:34px}
.x-axis{position:absolute;left:0;right:0;top:100%}
.y-axis span,.x-axis span,.guide-label,.beside span,.beside em{position:absolute;font-size:11px;line-height:1;
  color:var(--soft);white-space:nowrap;pointer-events:none}
.y-axis span{right:8px;transform:translateY(50%)}
.x-axis span{top:5px;transform:translateX(-50%)}
.x-axis .first{transform:none}
.x-axis .last{transform:translateX(-100%)}
.guide-label{right:4px;margin-bottom:4px;text-shadow:0 0 3px var(--card),0 0 3px var(--card),0 0 3px var(--card)}
.line{fill:none;stroke:var(--c);stroke-width:1.5;stroke-linejoin:round;stroke-linecap:round}
.large .line{stroke-width:1.75}
.line.dot{stroke-width:4}
.area{fill:var(--c);opacity:.1}
.band{fill:var(--c);opacity:.2}
.grid{fill:none;stroke:var(--grid);stroke-width:1}
.guide{fill:none;stroke:var(--soft);stroke-width:1;stroke-dasharray:1 3}
.hole{fill:var(--hole)}
.heat-map svg{shape-rendering:crispEdges}
path.heat{fill:none;stroke:var(--c);stroke-width:1;vector-effect:none}
.note{color:var(--soft);font-size:12.5px;max-width:112ch;margin-top:8px}

.beside{display:flex;flex:none}
.zones{position:relative;width:96px}
.zones span{left:24px;transform:translateY(50%)}
.zones .here{color:var(--ink);font-weight:650}
.zones i{position:absolute;left:12px;background:var(--blue)}
.zones .spread{width:2px;margin-left:-1px}
.zones .middle{width:11px;height:11px;margin:0 0 -5.5px -5.5px;border-radius:50%;border:2px solid var(--card)}
.beside em{top:100%;margin-top:5px}
.zones em{left:24px}
.histogram{position:relative;width:150px}
.bars{fill:var(--c);opacity:.8}
.histogram .mean{stroke:var(--ink);stroke-width:1.25;fill:none}

table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:12px;white-space:nowrap}
td,th{padding:7px 18px 7px 0;border-bottom:1px solid var(--hair)}
tr:last-child td{border-bottom:0}
td:last-child,th:last-child{padding-right:0}
.num{text-align:right;white-space:nowrap}
td .word{font-weight:650}
.trace{height:28px;min-width:200px}
.scroll{overflow-x:auto}
td a{color:inherit;white-space:nowrap}
.next{display:grid;gap:10px;list-style:none}
.next code{display:inline-block;background:var(--hole);border:1px solid var(--hair);border-radius:5px;padding:3px 9px;
  margin-right:.4em;overflow-wrap:anywhere}
summary{cursor:pointer;font-weight:650;font-size:15px}
details>*+*{margin-top:12px}
footer{color:var(--soft);font-size:12px;margin-top:24px}
.cursor{position:absolute;top:0;bottom:0;width:1px;background:var(--soft);pointer-events:none}
.cursor[data-t]::after{content:attr(data-t);position:absolute;top:100%;left:0;transform:translateX(-50%);
  margin-top:2px;padding:2px 5px;border-radius:3px;background:var(--ink);color:var(--card);font-size:11px;
  line-height:1.1;white-space:nowrap}

@media (max-width:640px){
main{padding:20px 12px 32px}
.card{padding:16px 14px;border-radius:8px}
h1{font-size:21px}
.verdict .word,.verdict .mean b{font-size:25px}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}
.tiles dd{font-size:17px}
.large .plot{height:200px}
.legend .lead{flex-basis:100%}
.x-axis span:nth-child(even){display:none}
.y-axis{width:28px}
.y-axis span{right:6px}
.zones{width:78px}
.zones span{left:16px}
.zones i{left:8px}
.histogram{width:44px}
.histogram em{display:none}
.zones em{left:16px}
}
@media print{
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{font-size:13px;background:none}
.charts{grid-template-columns:1fr 1fr}
details:not([open]){display:none}
main{max-width:none;padding:0}
.card{border-width:1px 0 0;border-radius:0;padding:14px 0 0}
.chart,.tiles,.verdict,.flags,tr{break-inside:avoid}
.cursor{display:none}
}
"""
