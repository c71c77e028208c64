"""`fulltilt monitor` as a real process: real signals, a real terminal, a real kill; the driver is the fake one."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import until

ROOT = Path(__file__).parents[2]
ALTERNATE_ON, ALTERNATE_OFF, CURSOR_OFF, CURSOR_ON = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def with_driver(tmp_path):
    """An environment in which `import pynvml` is the fake driver, set up by the given code."""

    def make(setup):
        folder = tmp_path / "driver"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(
            "import sys\n"
            "from types import SimpleNamespace\n"
            f"sys.path.append({str(ROOT)!r})\n"
            "from tests.machine.fake_nvml import *\n"
            "def util(percent):\n"
            "    return lambda: SimpleNamespace(gpu=percent() if callable(percent) else percent, memory=0)\n"
            "error = None\n"
            f"{setup}\n"
            "sys.modules['pynvml'] = FakeNvml(gpus, init_error=error)\n"
        )
        return {**os.environ, "PYTHONPATH": str(folder), "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}

    return make


ONE_BUSY = "gpus = [h200()]\ngpus[0].answers['nvmlDeviceGetUtilizationRates'] = util(97)"
NO_DRIVER = "gpus, error = [], 'NVML_ERROR_LIBRARY_NOT_FOUND'"


def command(*args):
    return [sys.executable, "-m", "fulltilt", "monitor", *map(str, args)]


def run(*args, env=None):
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=60, env=env, check=False)


@contextmanager
def started(*args, env):
    with subprocess.Popen(
        command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_a_short_watch_ends_with_the_summary(with_driver):
    done = run("--interval", 0.1, "--duration", 0.5, env=with_driver(ONE_BUSY))
    assert done.returncode == 0
    assert done.stderr == ""
    assert re.match(r"[1-5] samples? over 0\.\d s", done.stdout), "a busy machine may miss some"
    assert "GPU 0  NVIDIA H200" in done.stdout
    assert re.search(r"utilisation\s+97.0 % ± 0.0", done.stdout)
    assert "small-kernels" in done.stdout, "the fake card's SM activity is zero"
    assert "\x1b" not in done.stdout, "no colours and no live view where there is no terminal"


def test_json_is_all_that_standard_output_holds(with_driver):
    done = run("--interval", 0.1, "--duration", 0.3, "--json", env=with_driver(ONE_BUSY))
    flat = json.loads(done.stdout)
    assert flat["gpus"][0]["verdict"] == "small-kernels"
    assert 1 <= flat["samples"] <= 3


def test_without_a_driver_the_cpu_goes_on_after_one_sentence(with_driver):
    done = run("--interval", 0.1, "--duration", 0.3, "--json", env=with_driver(NO_DRIVER))
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "no NVIDIA driver is installed" in done.stderr
    flat = json.loads(done.stdout)
    assert flat["gpus"] == []
    assert flat["cpu"]["util"]["mean"] >= 0


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["--interval", "0"], 2, "--interval: expected 0.1 to 3600 seconds, found 0"),
        (["--interval", "-1"], 2, "--interval: expected 0.1 to 3600 seconds, found -1"),
        (["--interval", "nan"], 2, "--interval: expected 0.1 to 3600 seconds, found nan"),
        (["--duration", "0.5"], 2, "--duration: expected at least one interval (1 seconds), found 0.5"),
        (["--fail-under", "120"], 2, "--fail-under: expected a percentage from 0 to 100, found 120"),
        (["--gpu", "9"], 2, "--gpu: there is no GPU '9'; there are: 0 (GPU-"),
        (["--pid", "-5"], 2, "--pid: no process -5 is running"),
        (["--record", "/nowhere/run.jsonl"], 2, "--record: can't write /nowhere/run.jsonl (No such file or directory)"),
        (["--record", "a" * 300], 2, "(File name too long); name a file"),
        (["--html", "/nowhere/page.html"], 2, "--html: there is no folder /nowhere"),
        (["--replay", "/nowhere/run.jsonl"], 2, "can't read /nowhere/run.jsonl"),
        (["--replay", "a", "--record", "b"], 2, "--replay reads a recording, so --record has nothing to do"),
        (["--prometheus", "http"], 2, "--prometheus: expected PORT or HOST:PORT"),
    ],
)
def test_bad_input_is_one_line_and_a_status(with_driver, args, status, says):
    done = run(*args, env=with_driver(ONE_BUSY))
    assert done.returncode == status
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_port_in_use_is_one_line(with_driver):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("--prometheus", taken.getsockname()[1], env=with_driver(ONE_BUSY))
    assert done.returncode == 2
    assert "Address already in use" in done.stderr


@pytest.mark.parametrize(
    ("driver", "percent", "status", "says"),
    [
        (ONE_BUSY, 85, 0, ""),
        (ONE_BUSY, 98, 1, "--fail-under 98: mean utilisation too low on GPU 0 at 97.0 %"),
        (NO_DRIVER, 85, 3, "--fail-under 85: no GPU's utilisation was measured"),
    ],
)
def test_fail_under_is_a_status_for_scripts(with_driver, driver, percent, status, says):
    done = run("--interval", 0.1, "--duration", 0.2, "--fail-under", percent, env=with_driver(driver))
    assert done.returncode == status
    assert says in done.stderr
    assert re.match("[12] sample", done.stdout), "the summary comes all the same"


def test_fail_under_counts_a_lost_gpu_as_too_low(tmp_path):
    file = tmp_path / "run.jsonl"
    healthy, lost = '{"index": 0, "util": 97}', '{"index": 1, "lost": "gone"}'
    file.write_text(f'{{"t": 1, "gpus": [{healthy}, {lost}]}}\n')
    done = run("--replay", file, "--fail-under", 85)
    assert done.returncode == 1
    assert "too low on GPU 1, which stopped answering" in done.stderr


def test_a_broken_recording_names_the_line(tmp_path, with_driver):
    file = tmp_path / "run.jsonl"
    file.write_text('{"t": 1, "cpu": {}}\n{"t": 2,\n{"t": 3, "cpu": {}}\n')
    done = run("--replay", file)
    assert done.returncode == 2
    assert f"{file}, line 2: expected one sample as JSON" in done.stderr


def test_a_locale_without_the_letters_gets_the_summary_all_the_same():
    recording = ROOT / "tests" / "monitor" / "recordings" / "starved.jsonl"
    done = run("--replay", recording, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "26.5 % ? 4.2" in done.stdout


def test_a_recording_replays_to_the_same_figures_and_a_page(tmp_path, with_driver):
    file, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    live = run("--interval", 0.1, "--duration", 1, "--record", file, "--json", env=with_driver(ONE_BUSY))
    again = run("--replay", file, "--json", "--html", page)
    assert again.returncode == 0
    assert json.loads(again.stdout)["gpus"][0]["util"] == json.loads(live.stdout)["gpus"][0]["util"]
    assert page.read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert f"wrote {page}" in again.stderr
    twice = run("--interval", 0.1, "--duration", 1, "--record", file, env=with_driver(ONE_BUSY))
    assert twice.returncode == 2
    assert "already holds something" in twice.stderr


def test_a_page_straight_from_the_machine(tmp_path, with_driver):
    page = tmp_path / "now.html"
    done = run("--interval", 0.1, "--duration", 0.5, "--html", page, env=with_driver(ONE_BUSY))
    assert done.returncode == 0
    assert "NVIDIA H200" in page.read_text(encoding="utf-8")


def test_killed_with_9_while_recording_the_file_replays(tmp_path, with_driver):
    file = tmp_path / "run.jsonl"
    with started("--interval", 0.1, "--record", file, env=with_driver(ONE_BUSY)) as process:
        until(lambda: file.exists() and file.read_bytes().count(b"\n") >= 5)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
    count = file.read_bytes().count(b"\n")
    done = run("--replay", file, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["samples"] >= count


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_summary_and_0(tmp_path, with_driver, number):
    file = tmp_path / "run.jsonl"
    with started("--interval", 0.1, "--record", file, env=with_driver(ONE_BUSY)) as process:
        until(lambda: file.exists() and file.read_bytes().count(b"\n") >= 3)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "GPU 0  NVIDIA H200" in out
    assert err == ""


def test_a_gpu_lost_on_the_way_is_named_and_the_other_goes_on(with_driver):
    lose = (
        "gpus = [h200(), h200(number=1)]\n"
        "answered = []\n"
        "def fading():\n"
        "    answered.append(1)\n"
        "    if len(answered) > 3:\n"
        "        gpus[0].fail('NVML_ERROR_GPU_IS_LOST')\n"
        "        return Refuse('NVML_ERROR_GPU_IS_LOST')\n"
        "    return SimpleNamespace(gpu=50, memory=0)\n"
        "gpus[0].answers['nvmlDeviceGetUtilizationRates'] = fading\n"
        "gpus[1].answers['nvmlDeviceGetUtilizationRates'] = util(97)\n"
    )
    done = run("--interval", 0.1, "--duration", 2, "--json", env=with_driver(lose))
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "GPU 0: the GPU stopped answering" in done.stderr
    first, second = json.loads(done.stdout)["gpus"]
    assert "stopped answering" in first["lost"]
    assert first["util"]["mean"] == 50
    assert second["util"]["mean"] == 97
    assert "lost" not in second


def test_a_process_that_ends_ends_the_watch_with_a_clear_line(tmp_path, with_driver):
    file = tmp_path / "run.jsonl"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as watched:
        options = ("--interval", 0.1, "--pid", watched.pid, "--record", file)
        with started(*options, env=with_driver(ONE_BUSY)) as process:
            until(lambda: file.exists() and file.read_bytes().count(b"\n") >= 3)
            watched.communicate(b"\n")
            out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert re.search(rf"process {watched.pid} \(.+\) has ended", err)
    assert f"Process {watched.pid}" in out


def test_prometheus_is_scraped_while_it_runs(with_driver):
    with started("--interval", 0.1, "--prometheus", 0, env=with_driver(ONE_BUSY)) as process:
        address = re.search(r"http://\S+", process.stderr.readline())[0]

        def metrics():
            with urllib.request.urlopen(address, timeout=5) as answer:
                return answer.read().decode()

        until(lambda: 'fulltilt_gpu_utilization_ratio{gpu="0"} 0.97' in metrics())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert address.startswith("http://127.0.0.1:"), "the loopback unless another is given"
    assert process.returncode == 0


# Makes the terminal on standard input the controlling one, so that a ^C typed into it is a SIGINT.
ON_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "os.setsid()\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


class Terminal:
    """A real pseudo-terminal with a process on it."""

    def __init__(self, args, env, rows=40, columns=120):
        self.ours, its = pty.openpty()
        termios.tcsetwinsize(its, (rows, columns))
        self.before = termios.tcgetattr(its)
        self.its = its
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *args], stdin=its, stdout=its, stderr=its, env=env
        )
        self.seen = ""

    def read(self, seconds=0.05):
        while select.select([self.ours], [], [], seconds)[0]:
            self.seen += os.read(self.ours, 65536).decode(errors="replace")
        return self.seen

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.its)


@pytest.fixture
def terminal():
    opened = []

    def start(args, env, **size):
        opened.append(Terminal(args, env, **size))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    "end", [lambda shown: os.write(shown.ours, b"\x03"), lambda shown: shown.process.send_signal(signal.SIGTERM)]
)
def test_ctrl_c_leaves_the_live_view_with_summary_and_the_terminal_as_it_was(with_driver, terminal, end):
    shown = terminal(command("--interval", 0.2), with_driver(ONE_BUSY))
    until(lambda: "some kernel ran" in shown.read())
    assert ALTERNATE_ON in shown.seen
    assert CURSOR_OFF in shown.seen
    end(shown)
    until(lambda: shown.read() is None or shown.process.poll() is not None)
    out = shown.read(0.3)
    assert shown.process.returncode == 0
    assert out.rindex(ALTERNATE_OFF) > out.rindex(ALTERNATE_ON)
    assert out.rindex(CURSOR_ON) > out.rindex(CURSOR_OFF)
    assert "NVIDIA H200" in out[out.rindex(ALTERNATE_OFF) :], "the summary is on the screen that stays"
    assert termios.tcgetattr(shown.its) == shown.before


def test_a_dumb_terminal_gets_the_summary_only(with_driver, terminal):
    shown = terminal(command("--interval", 0.1, "--duration", 0.3), {**with_driver(ONE_BUSY), "TERM": "dumb"})
    until(lambda: shown.read() is None or shown.process.poll() is not None)
    out = shown.read(0.3)
    assert shown.process.returncode == 0
    assert ALTERNATE_ON not in out
    assert re.search("[1-3] sample", out)


def test_a_narrow_terminal_breaks_rows_between_words_and_a_file_keeps_them_whole():
    recording = ROOT / "tests" / "monitor" / "recordings" / "starved.jsonl"
    plain = run("--replay", recording).stdout
    coloured = run("--replay", recording, env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "70"}).stdout
    shown = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert max(map(len, plain.splitlines())) > 100
    assert max(map(len, shown.splitlines())) <= 70
    assert shown.split() == plain.split()
    flag = shown.splitlines().index(next(line for line in shown.splitlines() if line.startswith("  flag")))
    assert re.match(r" {15}\S", shown.splitlines()[flag + 1])
