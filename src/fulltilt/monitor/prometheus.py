"""The last sample for Prometheus, over HTTP. A figure that was not measured has no line."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from fulltilt.errors import InputError
from fulltilt.machine.closing import Closing
from fulltilt.machine.sample import CpuSample, GpuSample, ProcessSample, Sample
from fulltilt.monitor.latest import Latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Metric(NamedTuple):
    field: str
    name: str
    help: str
    scale: float = 1.0


_GPU = (
    _Metric("util", "gpu_utilization_ratio", "Share of time in which some kernel ran (not how much it used).", 0.01),
    _Metric("sm", "gpu_sm_activity_ratio", "Share of the multiprocessors that had work (GPM).", 0.01),
    _Metric("occupancy", "gpu_sm_occupancy_ratio", "Share of the warp slots in use (GPM).", 0.01),
    _Metric("tensor", "gpu_tensor_activity_ratio", "Share of time with busy tensor cores (GPM).", 0.01),
    _Metric("dram", "gpu_dram_activity_ratio", "Share of the memory bandwidth in use (GPM).", 0.01),
    _Metric("mem_used", "gpu_memory_used_bytes", "GPU memory in use."),
    _Metric("mem_total", "gpu_memory_total_bytes", "GPU memory there is."),
    _Metric("temp", "gpu_temperature_celsius", "GPU temperature."),
    _Metric("power_w", "gpu_power_watts", "GPU power draw."),
    _Metric("clock_sm_mhz", "gpu_sm_clock_hertz", "Clock of the multiprocessors.", 1e6),
    _Metric("pcie_rx_mb_s", "gpu_pcie_receive_bytes_per_second", "PCIe traffic to the GPU.", 1e6),
    _Metric("pcie_tx_mb_s", "gpu_pcie_transmit_bytes_per_second", "PCIe traffic from the GPU.", 1e6),
)
_CPU = (
    _Metric("util", "cpu_utilization_ratio", "Mean utilisation of the usable cores.", 0.01),
    _Metric("iowait", "cpu_iowait_ratio", "Share of time in which cores waited for a disk.", 0.01),
    _Metric("ram_used", "memory_used_bytes", "RAM in use."),
    _Metric("ram_total", "memory_total_bytes", "RAM there is."),
    _Metric("disk_read_mb_s", "disk_read_bytes_per_second", "Reads from disks.", 1e6),
)
_PROCESS = (
    _Metric("cpu", "process_cpu_cores", "Cores that the watched process tree keeps busy.", 0.01),
    _Metric("ram_used", "process_memory_bytes", "Resident memory of the watched process tree."),
    _Metric("count", "process_count", "Processes in the watched tree."),
)


def exposition(sample: Sample) -> str:
    """The sample in Prometheus' text format."""
    lines: list[str] = []
    for metric in _GPU:
        lines += _family(metric, (({"gpu": gpu.label}, gpu) for gpu in sample.gpus))
    if sample.gpus:
        info = _Metric("name", "gpu_info", "Which card a GPU is.")
        lines += _head(info)
        for gpu in sample.gpus:
            labels = {"gpu": gpu.label, "name": gpu.name or "", "uuid": gpu.uuid or ""}
            lines.append(f"fulltilt_gpu_info{_labels(labels)} 1")
    lost = _Metric("lost", "gpu_lost", "1 when the GPU stopped answering.")
    if sample.gpus:
        lines += _head(lost)
        lines += [f"fulltilt_gpu_lost{_labels({'gpu': gpu.label})} {int(gpu.lost is not None)}" for gpu in sample.gpus]
    for metric in _CPU:
        lines += _family(metric, [({}, sample.cpu)])
    if sample.cpu.cores is not None:
        core = _Metric("cores", "cpu_core_utilization_ratio", "Utilisation of each usable core.")
        lines += _head(core)
        cores = enumerate(sample.cpu.cores)
        lines += [f"fulltilt_{core.name}{_labels({'core': str(n)})} {_number(busy * 0.01)}" for n, busy in cores]
    if sample.process is not None:
        for metric in _PROCESS:
            lines += _family(metric, [({"pid": str(sample.process.pid)}, sample.process)])
    return "\n".join(lines) + "\n"


def _family(metric: _Metric, parts: Any) -> Iterator[str]:
    part: GpuSample | CpuSample | ProcessSample
    begun = False
    for labels, part in parts:
        value = getattr(part, metric.field)
        if value is None:
            continue
        if not begun:
            yield from _head(metric)
            begun = True
        yield f"fulltilt_{metric.name}{_labels(labels)} {_number(value * metric.scale)}"


def _head(metric: _Metric) -> tuple[str, str]:
    return f"# HELP fulltilt_{metric.name} {metric.help}", f"# TYPE fulltilt_{metric.name} gauge"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def parse_address(text: str) -> tuple[str, int]:
    """`9400`, `0.0.0.0:9400` or `[::1]:9400`; the loopback address unless another is given."""
    host, colon, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535 or (colon and not host):
        raise InputError(f"--prometheus: expected PORT or HOST:PORT with a port from 0 to 65535, found {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


class Exporter(Closing):
    """Serves /metrics from a thread; port 0 lets the system choose one."""

    def __init__(self, host: str, port: int) -> None:
        self._body = b""
        self._latest = Latest()
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0  # a client that says nothing must not hold a thread for as long as the monitor runs

            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in ("/", "/metrics"):
                    self.send_error(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
                    return
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(exporter._body)))
                self.end_headers()
                self.wfile.write(exporter._body)

            def log_message(self, format: str, *args: Any) -> None:
                pass  # a line per scrape would tear the live view

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that went away is its own affair; a traceback would tear the live view

        shown = f"[{host}]" if ":" in host else host
        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            why = error.strerror or str(error)
            raise InputError(
                f"--prometheus: can't listen on {shown}:{port} ({why}); name an address of this machine and a free port"
            ) from None
        self.address = f"{shown}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="fulltilt-prometheus", daemon=True)
        self._thread.start()

    def update(self, sample: Sample) -> None:
        """Serve this sample from now on."""
        self._body = exposition(self._latest.complete(sample)).encode()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
