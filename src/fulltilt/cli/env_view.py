"""How `fulltilt env` looks: one screen, the same facts as its JSON."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fulltilt.machine.budget import CoreBudget
from fulltilt.machine.gpus import Gpu
from fulltilt.machine.inspection import Machine
from fulltilt.machine.memory import Disk
from fulltilt.machine.paths import OptionalPath
from fulltilt.words import disk_size, many, memory_size

_DOT = " · "
_SHARES = (("system", "bright_black"), ("training", "magenta"), ("loading", "green"), ("assist", "cyan"))


def show(machine: Machine, console: Console) -> None:
    """Print the machine."""
    console.print(_facts(machine))
    wide = console.width >= 120
    _section(console, "GPUs", _gpus(machine.gpus, wide=wide) or [Text(machine.gpu_problem or "none")])
    _section(console, "optional paths", [_paths(machine, wide=wide)])
    _section(console, _budget_title(machine.budget), [_budget(machine.budget, console.width - 4)])
    if not any(path.tried for path in machine.paths):
        console.print(Text("\n✓ is judged from what is installed; fulltilt env --try uses each once.", style="dim"))


def _section(console: Console, title: str, parts: Iterable[Table | Text]) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    for part in parts:
        console.print(Padding(part, (0, 0, 0, 2)))


def _facts(machine: Machine) -> Table:
    table = _grid()
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    cores, memory = machine.cores, machine.memory
    table.add_row("cores", _figure(f"{cores.usable} usable", cores.reason))
    ours = _figure(f"{memory_size(memory.usable_bytes)} usable", f"{memory_size(memory.available_bytes)} available")
    if memory.bound_by == "cgroup":
        ours.append(f"{_DOT}the cgroup {memory.limit_group} limits {memory_size(memory.total_bytes)}", style="dim")
    table.add_row("memory", ours)
    shm = machine.shared_memory
    table.add_row(
        "/dev/shm",
        Text("none: loader processes can't share batches", style="yellow")
        if shm is None
        else _figure(memory_size(shm.total_bytes), f"{memory_size(shm.free_bytes)} free"),
    )
    for label, figure in _disks(machine.disks):
        table.add_row(label, figure)
    table.add_row("versions", _versions(machine))
    return table


def _disks(disks: tuple[Disk, ...]) -> list[tuple[str, Text]]:
    """One line where both directories are on one disk, as far as their sizes can tell."""
    rows: dict[tuple[int | None, int | None, str | None], list[str]] = {}
    for disk in disks:
        rows.setdefault((disk.total_bytes, disk.free_bytes, disk.problem), []).append(disk.path or disk.use)
    shown: list[tuple[str, Text]] = []
    for (_, free, problem), names in rows.items():
        where = " and ".join(names)
        text = (
            Text(f"{where}: {problem}", style="yellow") if free is None else _figure(f"{disk_size(free)} free", where)
        )
        shown.append(("" if shown else "disk", text))
    return shown


def _versions(machine: Machine) -> Text:
    versions = machine.versions
    torch = f"torch {versions.torch}" if versions.torch else "no torch"
    known = [f"Python {versions.python}", torch]
    known += [f"CUDA {versions.cuda}"] if versions.cuda else []
    known += [f"triton {versions.triton}"] if versions.triton else []
    runs = f" for CUDA ≤ {versions.driver_cuda}" if versions.driver_cuda else ""
    known += [f"driver {versions.driver}{runs}"] if versions.driver else []
    return Text(_DOT.join(known))


def _gpus(gpus: tuple[Gpu, ...], *, wide: bool) -> list[Table | Text]:
    """Each GPU, and once below them why they have no CUDA index where the reason is common to all."""
    reasons = {gpu.cuda_index_reason for gpu in gpus}
    common = reasons.pop() if len(gpus) > 1 and len(reasons) == 1 else None
    shown: list[Table | Text] = [_gpu(gpu, wide=wide, why_no_index=common is None) for gpu in gpus]
    return [*shown, Text(f"no CUDA index: {common}", style="yellow")] if common else shown


def _gpu(gpu: Gpu, *, wide: bool, why_no_index: bool) -> Table:
    table = _grid()
    table.add_column(style="bold", min_width=6)
    table.add_column(overflow="fold")
    label = f"cuda:{gpu.cuda_index}" if gpu.cuda_index is not None else f"GPU {gpu.index}"
    title = Text(gpu.name or "unknown GPU", style="green" if gpu.problem is None else "red")
    memory = [
        gpu.memory_bytes and memory_size(gpu.memory_bytes),
        gpu.memory_free_bytes and f"{memory_size(gpu.memory_free_bytes)} free",
    ]
    chip = [
        gpu.multiprocessors and f"{gpu.multiprocessors} SMs",
        gpu.compute_capability and f"capability {gpu.compute_capability}",
        gpu.decoders is not None and f"{gpu.decoders} NVDEC",
        gpu.jpeg_engines is not None and f"{gpu.jpeg_engines} JPEG engines",
        gpu.gpm is not None and ("GPM" if gpu.gpm else "no GPM"),
    ]
    title.append("".join(_DOT + fact for fact in [*memory, *(chip if wide else [])] if fact), style="default")
    table.add_row(label, title)
    if not wide and any(chip):
        table.add_row("", _DOT.join(fact for fact in chip if fact))
    slice_name = "" if gpu.slice_index is None else f" slice {gpu.slice_index}"
    address = [f"NVML {gpu.index}{slice_name}", gpu.pci, gpu.uuid]
    table.add_row("", Text(_DOT.join(part for part in address if part), style="dim"))
    if why_no_index and gpu.cuda_index_reason and gpu.problem is None:
        table.add_row("", Text(f"no CUDA index: {gpu.cuda_index_reason}", style="yellow"))
    if gpu.problem:
        table.add_row("", Text(gpu.problem, style="red"))
    return table


def _paths(machine: Machine, *, wide: bool) -> Table:
    table = _grid()
    for _ in range(3 if wide else 2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for path in machine.paths:
        mark = Text("✓", style="green") if path.available else Text("✗", style="red")
        purpose = [Text(path.purpose, style="dim")] if wide else []
        table.add_row(mark, path.name, *purpose, _path_detail(path, machine.gpu_problem))
    return table


def _path_detail(path: OptionalPath, gpu_problem: str | None) -> Text:
    if path.available:
        return Text(f"{path.provider} {path.version}{', tried' if path.tried else ''}")
    return Text("needs a GPU" if path.reason == gpu_problem else path.reason or "", style="dim")


def _budget_title(budget: CoreBudget) -> str:
    return f"core budget for {many(budget.ranks, 'rank')}, to start from"


def _budget(budget: CoreBudget, width: int) -> Table:
    table = Table.grid()
    table.add_row(_budget_bar(budget, width))
    reasons = _grid()
    reasons.add_column(justify="right", style="bold")
    reasons.add_column(no_wrap=True)
    reasons.add_column(style="dim", overflow="fold")
    for name, style in _SHARES:
        share = getattr(budget, name)
        if share.value:
            reasons.add_row(str(share.value), Text(name, style=style), share.reason)
    workers = budget.workers_per_rank
    reasons.add_row(str(workers.value), "workers per rank", workers.reason)
    table.add_row(reasons)
    return table


def _budget_bar(budget: CoreBudget, width: int) -> Text:
    """A block per core where they fit."""
    cell = "██ " if budget.usable * 3 <= width else "█ " if budget.usable * 2 <= width else "█"
    bar = Text(no_wrap=True, overflow="crop")
    planned = 0
    for name, style in _SHARES:
        value = getattr(budget, name).value
        planned += value
        bar.append(cell * value, style=style)
    bar.append(cell.replace("█", "░") * (budget.usable - planned), style="bright_black")
    return bar


def _figure(main: str, rest: str) -> Text:
    return Text(main).append(_DOT + rest, style="dim")


def _grid() -> Table:
    return Table.grid(padding=(0, 2, 0, 0))
