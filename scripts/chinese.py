"""The README's tables for README.zh-CN.md: titles and headings in Chinese; rows are named as the results name them."""

from __future__ import annotations

import re

TITLES = {
    "The guides' workloads": "指南中的四个训练任务",
    "The monitor": "监控",
    "Augmentation": "数据增强",
    "The feed": "数据供给（feed）",
    "Workers, found by itself": "自动确定 worker 数",
    "Training": "训练",
    "Ordinary scripts under `fulltilt run`": "普通脚本交给 `fulltilt run`",
    "Video": "视频",
}
COLUMNS = {
    "measured": "实测",
    "wanted": "目标",
    "GPU": "GPU 时间",
    "wall": "实际耗时",
    "ours is faster": "我们快多少",
    "samples": "样本/秒",
    "against": "对比",
    "share": "占比",
    "before": "优化前",
    "after": "优化后",
    "limit": "上限",
    "faster": "提速",
    "what is left": "剩余瓶颈",
    "decoded": "解码",
    "against before": "相对优化前",
    "of the limit": "占上限",
    "GPU utilisation": "GPU 利用率",
    "waits": "等待数据",
    "GPU memory": "显存",
    "metric": "指标",
}
_TITLE = re.compile(r"^\*\*(.+?)\.\*\* (`.+?`) on (.+?), (\d+) cores: (.*)$", re.MULTILINE)
_HEADING = re.compile(r"^(\|.*\|)\n(?=\| ---)", re.MULTILINE)


def in_chinese(block: str) -> str:
    """What stands between the README's marks, for the Chinese one."""
    return _HEADING.sub(_heading, _TITLE.sub(_title, block))


def _title(match: re.Match[str]) -> str:
    title, command, gpus, cores, source = match.groups()
    machine = "无 GPU" if gpus == "no GPU" else gpus
    return f"**{TITLES.get(title, title)}**：{command}，{machine}，{cores} 核，{source}"


def _heading(match: re.Match[str]) -> str:
    cells = [cell.strip() for cell in match[1].strip("|").split("|")]
    return "| " + " | ".join(COLUMNS.get(cell, cell) for cell in cells) + " |\n"
