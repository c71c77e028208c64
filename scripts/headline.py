"""The README's table: the baseline, what fulltilt reaches, and what that is of the limit, in two languages.

    benchmarks' JSON ─► figures by name ─► sentences with these names in braces

docs/benchmarks.md has every row of every result; this is the one table that somebody reads who has a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from withheld import read

from fulltilt.bench.commands import side_by_side
from fulltilt.bench.tables import markdown
from fulltilt.words import amount

Language = Literal["en", "zh"]
Words = Mapping[Language, str]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row; each cell may name figures of its result: `{fast:,.0f}`."""

    result: str
    """Under benchmarks/results, without .json."""
    what: Words
    usual: str | Words
    ours: str | Words
    gain: str | Words


COLUMNS: Mapping[Language, tuple[str, ...]] = {
    "en": ("workload", "baseline", "fulltilt", "compared", "result"),
    "zh": ("项目", "基线", "fulltilt", "对比", "数据来源"),
}


def _of_limit(share: str) -> Words:
    return {"en": f"{{{share}:.1f}} % of the limit", "zh": f"上限的 {{{share}:.1f}}%"}


def _command(name: str, *, en: str, zh: str) -> Line:
    return Line(
        result="h200/commands",
        what={"en": en, "zh": zh},
        usual={
            "en": f"as it is, watched first: {{{name}_before:,.0f}} img/s",
            "zh": f"原样运行（试验之前观测）：{{{name}_before:,.0f}} 张/秒",
        },
        ours={
            "en": f"the whole run: {{{name}_after:,.0f}} img/s",
            "zh": f"整个训练：{{{name}_after:,.0f}} 张/秒",
        },
        gain={"en": f"side by side **{{{name}_beside:.1f}}×**", "zh": f"交替试验中 **{{{name}_beside:.1f}}×**"},
    )


LINES = (
    Line(
        result="h200/scripts",
        what={
            "en": "An unmodified ResNet-50 script under `fulltilt run`",
            "zh": "普通的 ResNet-50 脚本，不改一行，用 `fulltilt run` 运行",
        },
        usual={
            "en": "plain `python`: {resnet50_plain_before:,.0f} img/s",
            "zh": "原样运行：{resnet50_plain_before:,.0f} 张/秒",
        },
        ours={"en": "{resnet50_plain_after:,.0f} img/s", "zh": "{resnet50_plain_after:,.0f} 张/秒"},
        gain="**{resnet50_plain_times:.1f}×**",
    ),
    Line(
        result="h200/scripts",
        what={
            "en": "An unmodified U-Net script with OpenCV augmentation under `fulltilt run`",
            "zh": "普通的 U-Net 脚本（OpenCV 增强），同样不改一行",
        },
        usual={
            "en": "plain `python`: {unet_plain_before:,.0f} img/s",
            "zh": "原样运行：{unet_plain_before:,.0f} 张/秒",
        },
        ours={"en": "{unet_plain_after:,.0f} img/s", "zh": "{unet_plain_after:,.0f} 张/秒"},
        gain="**{unet_plain_times:.1f}×**",
    ),
    _command(
        "timm",
        en="timm's `train.py` with ResNet-50 under `fulltilt run`",
        zh="timm 自带的 train.py（ResNet-50），同样不改一行",
    ),
    _command(
        "lightning",
        en="A script in the style of Lightning's introduction under `fulltilt run`",
        zh="按 Lightning 入门教程写的脚本，同样不改一行",
    ),
    _command(
        "huggingface",
        en="A Hugging Face Trainer script under `fulltilt run`",
        zh="使用 Hugging Face Trainer 的脚本，同样不改一行",
    ),
    Line(
        result="h200/feed",
        what={"en": "ResNet-50 trained from JPEG files by `feed`", "zh": "ResNet-50 从 JPEG 文件训练，使用 `feed`"},
        usual={
            "en": "the step alone, its batch on the GPU: {train_limit:,.0f} img/s",
            "zh": "只有训练步、批次已在 GPU 上：{train_limit:,.0f} 张/秒",
        },
        ours={"en": "{fast:,.0f} img/s", "zh": "{fast:,.0f} 张/秒"},
        gain=_of_limit("fast_share"),
    ),
    Line(
        result="h200/feed",
        what={
            "en": "The same with 4 cores, part of the decoding on the GPU",
            "zh": "同上，但只有 4 核，GPU 分担一部分解码",
        },
        usual={
            "en": "CPU decoding only, 3 decoders: {cores_4_cpu:,.0f} img/s",
            "zh": "只用 CPU 核（3 个解码进程）：{cores_4_cpu:,.0f} 张/秒",
        },
        ours={"en": "{cores_4:,.0f} img/s", "zh": "{cores_4:,.0f} 张/秒"},
        gain={
            "en": "{cores_4_share:.1f} % of its run's limit, {cores_limit:,.0f} img/s",
            "zh": "该次运行上限（{cores_limit:,.0f} 张/秒）的 {cores_4_share:.1f}%",
        },
    ),
    Line(
        result="h200/augment",
        what={
            "en": "`GPUAugmentation`, 32 images of 512² with masks",
            "zh": "`GPUAugmentation`：32 张 512² 图像及其掩码",
        },
        usual={
            "en": "Kornia: {kornia:.2f} ms, {kornia_gpu:.2f} of them the GPU's",
            "zh": "Kornia：{kornia:.2f} ms，其中 GPU {kornia_gpu:.2f} ms",
        },
        ours="{task:.3f} ms",
        gain="**{kornia_times:.0f}×**",
    ),
    Line(
        result="h200/train",
        what={
            "en": "`Trainer` on ResNet-50, with logging, metrics and progress bar",
            "zh": "`Trainer` 训练 ResNet-50，含日志、指标和进度条",
        },
        usual={
            "en": "the fastest hand-written step: {resnet50_hand:,.0f} img/s",
            "zh": "手写的最快训练步：{resnet50_hand:,.0f} 张/秒",
        },
        ours={"en": "{resnet50_loop:,.0f} img/s", "zh": "{resnet50_loop:,.0f} 张/秒"},
        gain={"en": "{resnet50_loop_share:.1f} % of the baseline", "zh": "达到其 {resnet50_loop_share:.1f}%"},
    ),
    Line(
        result="h200/train",
        what={"en": "`Trainer` on sensor windows held in memory", "zh": "`Trainer` 训练内存中的传感器窗口数据"},
        usual={
            "en": "a plain loop over a DataLoader, eager: {windows_plain:,.0f}/s",
            "zh": "遍历 DataLoader 的普通循环（eager）：{windows_plain:,.0f} 样本/秒",
        },
        ours={"en": "{windows_memory:,.0f}/s", "zh": "{windows_memory:,.0f} 样本/秒"},
        gain="**{windows_memory_times:.0f}×**",
    ),
    Line(
        result="h200/assist",
        what={
            "en": "IoU, Dice and AUROC of a U-Net at every step, computed on CPU threads",
            "zh": "U-Net 每一步都计算 IoU、Dice、AUROC，在 CPU 上并行完成",
        },
        usual={"en": "computed in the loop: {loop:,.0f} img/s", "zh": "写在循环里：{loop:,.0f} 张/秒"},
        ours={"en": "{beside:,.0f} img/s", "zh": "{beside:,.0f} 张/秒"},
        gain={
            "en": "{beside_share:.1f} % of the rate without metrics",
            "zh": "相当于不算指标时的 {beside_share:.1f}%",
        },
    ),
    Line(
        result="h200/video",
        what={"en": "Decoding 720p video on CPU cores and NVDEC together", "zh": "CPU 与 NVDEC 一起解码 720p 视频"},
        usual={"en": "OpenCV: {opencv_alone:,.0f} frames/s", "zh": "OpenCV：{opencv_alone:,.0f} 帧/秒"},
        ours={"en": "{both:,.0f} frames/s", "zh": "{both:,.0f} 帧/秒"},
        gain="**{both_times:.1f}×**",
    ),
    Line(
        result="h200/video",
        what={"en": "Random training clips of 16 frames of 224²", "zh": "随机抽取训练片段（16 帧，224²）"},
        usual={
            "en": "DataLoader with PyAV: {loader_alone:,.0f} clips/s",
            "zh": "DataLoader + PyAV：{loader_alone:,.0f} 段/秒",
        },
        ours={
            "en": "{feed_shared:,.0f} clips/s, {feed_cached:,.0f} from a cache",
            "zh": "{feed_shared:,.0f} 段/秒；有缓存时 {feed_cached:,.0f}",
        },
        gain="**{clips_times:.1f}×**",
    ),
    Line(
        result="h200/observe",
        what={"en": "Overhead of `diagnose` on a 10 ms step", "zh": "`diagnose` 给 10 ms 的训练步带来的开销"},
        usual="",
        ours="{added_10:.2f} ms",
        gain={"en": "{share_10:.1f} %", "zh": "{share_10:.1f}%"},
    ),
    Line(
        result="h200/monitor",
        what={"en": "Overhead of `monitor`, without its live view", "zh": "`monitor` 给机器带来的开销（不开实时界面）"},
        usual="",
        ours={"en": "{core_percent:.2f} % of one core", "zh": "单个核的 {core_percent:.2f}%"},
        gain="",
    ),
)
GUIDES = "h200/guides"
_PEERS = {"lightning_tuned": "Lightning", "accelerate_tuned": "Accelerate"}


def headline(language: Language, results: Path) -> str:
    """The table. What has no result yet has no row."""
    rows = [_row(line, language, results) for line in (*_guide_lines(results), *LINES) if _file(line, results).exists()]
    return markdown(COLUMNS[language], [row for row in rows if row is not None]) + "\n"


def _file(line: Line, results: Path) -> Path:
    return results / f"{line.result}.json"


def _row(line: Line, language: Language, results: Path) -> tuple[str, ...] | None:
    """None where a figure is missing: it failed, or is withheld."""
    known = _FIGURES[line.result](read(results, f"{line.result}.json"))
    cells = (line.what, line.usual, line.ours, line.gain)
    try:
        said = [(cell if isinstance(cell, str) else cell[language]).format_map(known) for cell in cells]
    except KeyError:
        return None
    name = line.result.split("/")[-1]
    return *said, f"[{name}.json](benchmarks/results/{line.result}.json)"


def _guide_lines(results: Path) -> list[Line]:
    """Whole trainings: each workload of which both sides were measured."""
    file = results / f"{GUIDES}.json"
    known = _guides(read(results, f"{GUIDES}.json")) if file.exists() else {}
    titles: Mapping[str, Words] = {
        "segmentation": {"en": "Segmentation recipe, validation included", "zh": "分割任务（含验证）"},
        "classification": {"en": "Classification recipe, validation included", "zh": "分类任务（含验证）"},
        "forecast": {"en": "Forecast recipe, validation included", "zh": "预测任务（含验证）"},
        "video": {"en": "Video recipe, validation included", "zh": "视频任务（含验证）"},
    }
    return [
        Line(
            result=GUIDES,
            what=title,
            usual={
                "en": f"plain loop, before the guide's advice: {amount(known[f'{name}_before'])}/s",
                "zh": f"普通循环，优化前的设置：{amount(known[f'{name}_before'])} 样本/秒",
            },
            ours={
                "en": f"{amount(known[f'{name}_after'])}/s",
                "zh": f"{amount(known[f'{name}_after'])} 样本/秒",
            },
            gain=_against_peers(name, known),
        )
        for name, title in titles.items()
        if f"{name}_times" in known
    ]


def _against_peers(name: str, known: Mapping[str, float]) -> Words:
    """How many times *before*, and how many times the faster framework of those tuned by hand."""
    ours = known[f"{name}_times"]
    times = f"**{ours:.1f}×**"
    peers = {said: known[f"{name}_times_{key}"] for key, said in _PEERS.items() if f"{name}_times_{key}" in known}
    if not peers:
        return {"en": times, "zh": times}
    fastest = max(peers, key=lambda said: peers[said])
    more = ours / peers[fastest]
    return {
        "en": f"{times}; {more:.1f}× {fastest}, tuned by hand",
        "zh": f"{times}；手工调优的 {fastest} 的 {more:.1f}×",
    }


def _scripts(result: Result) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in result["cases"]:
        name, before, after = one["script"], one["before"], one["after"]
        found |= {f"{name}_before": before, f"{name}_after": after, f"{name}_times": after / before}
    return found


def _commands(result: Result) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in result["cases"]:
        figures = {"before": one["before"], "after": one["after"], "beside": side_by_side(one)}
        found |= {f"{one['name']}_{figure}": value for figure, value in figures.items() if value is not None}
    return found


def _rates(result: Result, *, prefix: str | None = None) -> dict[str, float]:
    """Each case's rate under its key, its share in percent under KEY_share."""
    found: dict[str, float] = {}
    for case in result["cases"]:
        name = case["key"] if prefix is None else f"{case[prefix]}_{case['key']}"
        rates = (case.get(f"{unit}_per_second") for unit in ("samples", "frames", "clips"))
        if (rate := next((rate for rate in rates if rate is not None), None)) is not None:
            found[name] = rate
        if "share" in case:
            found[f"{name}_share"] = 100 * case["share"]
    return found


def _augment(result: Result) -> dict[str, float]:
    found = {case["key"]: case["wall_ms"] for case in result["cases"]}
    kornia = next(peer for peer in result["peers"] if peer["name"] == "Kornia")
    return found | {"kornia": kornia["wall_ms"], "kornia_gpu": kornia["gpu_ms"], "kornia_times": kornia["speedup"]}


def _train(result: Result) -> dict[str, float]:
    found = _rates(result, prefix="workload")
    by_hand = [
        rate for name, rate in found.items() if name.startswith("resnet50_hand_") and not name.endswith("_share")
    ]
    return found | {
        "resnet50_hand": max(by_hand),
        "windows_memory_times": found["windows_memory"] / found["windows_plain"],
    }


def _video(result: Result) -> dict[str, float]:
    found = _rates(result)
    return found | {
        "both_times": found["both"] / found["opencv_alone"],
        "clips_times": found["feed_shared"] / found["loader_alone"],
    }


def _guides(result: Result) -> dict[str, float]:
    """Rates of the whole training, validations in it, as the speed-up beside them is."""
    found = {f"{case['workload']}_{case['key']}": case["overall_per_second"] for case in result["cases"]
             if "overall_per_second" in case}  # fmt: skip
    times = {f"{case['workload']}_times" + ("" if case["key"] == "after" else f"_{case['key']}"): case["speed_up"]
             for case in result["cases"] if "speed_up" in case and "problem" not in case}  # fmt: skip
    return found | times


def _observe(result: Result) -> dict[str, float]:
    cost = next(cost for cost in result["costs"] if cost["asked_ms"] == 10.0)
    return {"added_10": cost["added_ms"], "share_10": 100 * cost["share"]}


def _monitor(result: Result) -> dict[str, float]:
    alone = [cost for cost in result["costs"] if not cost["live_view"]]
    return {"core_percent": max(alone, key=lambda cost: cost["interval_seconds"])["core_percent"]}


_FIGURES: Mapping[str, Callable[[Result], dict[str, float]]] = {
    GUIDES: _guides,
    "h200/scripts": _scripts,
    "h200/commands": _commands,
    "h200/feed": _rates,
    "h200/augment": _augment,
    "h200/train": _train,
    "h200/assist": _rates,
    "h200/video": _video,
    "h200/observe": _observe,
    "h200/monitor": _monitor,
}
