"""The metrics, scraped by a real HTTP client."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest

from fulltilt.errors import InputError
from fulltilt.machine.sample import CpuSample, GpuSample, ProcessSample, Sample
from fulltilt.monitor.prometheus import CONTENT_TYPE, Exporter, exposition, parse_address

SAMPLE = Sample(
    t=1,
    gpus=(
        GpuSample(index=0, name='NVIDIA "H200"', uuid="GPU-a", util=34, sm=23.4, mem_used=6171787264, temp=41),
        GpuSample(index=1, lost="gone"),
    ),
    cpu=CpuSample(util=6.2, iowait=0.0, cores=(99.0, 1.2)),
    process=ProcessSample(pid=7, cpu=250.0),
)


def scrape(exporter, path="/metrics"):
    with urllib.request.urlopen(f"http://{exporter.address}{path}", timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def _ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.fixture
def exporter():
    with Exporter("127.0.0.1", 0) as running:
        yield running


def test_a_client_scrapes_the_last_sample(exporter):
    exporter.update(SAMPLE)
    kind, text = scrape(exporter)
    assert kind == CONTENT_TYPE
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['fulltilt_gpu_utilization_ratio{gpu="0"}'] == "0.34"
    assert values['fulltilt_gpu_sm_activity_ratio{gpu="0"}'] == "0.234"
    assert values['fulltilt_gpu_memory_used_bytes{gpu="0"}'] == "6171787264"
    assert values['fulltilt_gpu_lost{gpu="1"}'] == "1"
    assert values['fulltilt_gpu_info{gpu="0",name="NVIDIA \\"H200\\"",uuid="GPU-a"}'] == "1"
    assert values['fulltilt_cpu_core_utilization_ratio{core="0"}'] == "0.99"
    assert values["fulltilt_cpu_iowait_ratio"] == "0"
    assert values['fulltilt_process_cpu_cores{pid="7"}'] == "2.5"
    assert not [name for name in values if "power" in name], "what was not measured has no line"
    assert 'fulltilt_gpu_utilization_ratio{gpu="1"}' not in values


def test_every_family_has_help_and_type_before_its_values():
    seen, values = set(), 0
    for line in exposition(SAMPLE).splitlines():
        if line.startswith("# "):
            word, name = line.split(" ")[1:3]
            seen.add((word, name))
        else:
            name = re.match(r"[a-z_]+", line)[0]
            assert {("HELP", name), ("TYPE", name)} <= seen
            values += 1
    assert values


def test_figures_that_are_taken_less_often_stay_until_the_next(exporter):
    exporter.update(Sample(t=1, gpus=(GpuSample(index=0, util=1, pcie_rx_mb_s=12.0),)))
    exporter.update(Sample(t=2, gpus=(GpuSample(index=0),)))
    text = scrape(exporter)[1]
    assert 'fulltilt_gpu_pcie_receive_bytes_per_second{gpu="0"} 12000000' in text
    assert "fulltilt_gpu_utilization_ratio" not in text, "a figure that every sample should have is not made up"


def test_a_lost_gpu_keeps_its_name_and_no_old_figures(exporter):
    exporter.update(Sample(t=1, gpus=(GpuSample(index=0, name="H200", util=1, pcie_rx_mb_s=12.0),)))
    exporter.update(Sample(t=2, gpus=(GpuSample(index=0, lost="gone"),)))
    text = scrape(exporter)[1]
    assert 'name="H200"' in text
    assert "fulltilt_gpu_pcie_receive_bytes_per_second" not in text


def test_a_client_that_breaks_off_leaves_no_trace(exporter, capfd):
    host, port = exporter.address.split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET /me")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    assert scrape(exporter)[1] == ""
    until = time.monotonic() + 10
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < until, "a client that left still holds a thread"
        time.sleep(0.01)
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not _ipv6(), reason="this machine has no IPv6 loopback")
def test_an_ipv6_address_is_written_as_urls_have_it():
    with Exporter("::1", 0) as running:
        assert running.address.startswith("[::1]:")
        assert scrape(running)[1] == ""


def test_before_the_first_sample_there_is_nothing_and_elsewhere_a_hint(exporter):
    assert scrape(exporter)[1] == ""
    with pytest.raises(urllib.error.HTTPError, match="metrics are at /metrics") as caught:
        scrape(exporter, "/other")
    caught.value.close()


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"can't listen on 127.0.0.1:{port} \(Address already in use\)"):
            Exporter("127.0.0.1", port)


@pytest.mark.parametrize(
    ("text", "address"),
    [("9400", ("127.0.0.1", 9400)), ("0.0.0.0:9400", ("0.0.0.0", 9400)), ("[::1]:9400", ("::1", 9400))],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "²", "70000", "-1", ":9400", "host:"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InputError, match=r"expected PORT or HOST:PORT"):
        parse_address(text)
