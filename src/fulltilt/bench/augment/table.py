"""The result as a short table, and a line for every target."""

from __future__ import annotations

from rich.console import Console

from fulltilt.bench.augment.figures import AugmentBench, Peer, Timing
from fulltilt.bench.tables import console_or, figures_table, print_lines
from fulltilt.bench.target import target_lines
from fulltilt.words import amount


def show(found: AugmentBench, console: Console | None = None) -> None:
    console = console_or(console, columns=100)
    title = found.task.split(":", 1)[0]
    table = figures_table(
        f"Augmentation, {title}" + _rate(found), "GPU ms", "graph ms", "wall ms", "host µs", "floor", "× ours"
    )
    for case in found.cases:
        table.add_row(f"ours: {case.title}", *_times(case.timing), _share(case.timing, case.floor_ms), "")
    table.add_section()
    floor = found.cases[0].floor_ms if found.cases else None
    for peer in found.peers:
        if peer.timing is not None:
            faster = found.speedup(peer)
            table.add_row(
                _name(peer, found),
                *_times(peer.timing),
                _share(peer.timing, floor),
                "" if faster is None else f"{amount(faster)}×",
            )
    console.print(table)
    print_lines(console, lines(found))


def lines(found: AugmentBench) -> list[str]:
    """What the table can't say."""
    said = [f"{peer.name}: {peer.problem}" for peer in found.peers if peer.timing is None]
    said += [f"ours: {case.title}: {case.problem}" for case in found.cases if case.problem]
    said += [wrong for case in found.cases if (wrong := case.wrong()) is not None]
    said += target_lines(found.targets)
    checked = [case for case in found.cases if case.check is not None]
    if checked and found.right:
        said.append(f"{len(checked)} cases checked against the torch path, outputs poisoned: right.")
    if found.peers:
        said.append("floor: share of the GPU time that memory alone takes. × ours: wall time. Peers get floats.")
    if found.problem:
        said.append(found.problem)
    return said


def _rate(found: AugmentBench) -> str:
    return "" if found.copy_tb_per_s is None else f" (copy {found.copy_tb_per_s:.2f} TB/s)"


def _name(peer: Peer, found: AugmentBench) -> str:
    asked = bool(found.cases) and "masks" in found.cases[0].title
    return peer.name + (" (no masks)" if asked and not peer.masks and "images only" not in peer.name else "")


def _times(timing: Timing | None) -> tuple[str, ...]:
    if timing is None:
        return ("–",) * 4
    values = (timing.gpu_ms, timing.graph_ms, timing.wall_ms)
    host = "–" if timing.host_us is None else f"{timing.host_us:.0f}"
    return (*("–" if value is None else _ms(value) for value in values), host)


def _ms(value: float) -> str:
    return f"{value:.4f}" if value < 0.9995 else f"{value:.2f}"


def _share(timing: Timing | None, floor_ms: float | None) -> str:
    """How much of the time the memory alone would take."""
    if timing is None or timing.gpu_ms is None or floor_ms is None:
        return "–"
    share = 100 * floor_ms / timing.gpu_ms
    return "< 1 %" if share < 1 else f"{share:.0f} %"
