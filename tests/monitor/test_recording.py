"""Recordings: what is written reads back, what is broken is named, what was cut short is forgiven."""

from __future__ import annotations

import os

import pytest
from tests.monitor.samples import series

from fulltilt.errors import InputError, RecordingError
from fulltilt.machine.sample import GpuSample, ProcessSample, Sample
from fulltilt.monitor.recording import RecordingWriter, only_gpus, read_recording


def write(path, samples):
    with RecordingWriter(path) as writer:
        for sample in samples:
            writer.write(sample)
    return path


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "run.jsonl", series([10.0, 20.0, 30.0]))


def test_what_is_written_reads_back(file):
    assert [*read_recording(file).samples] == series([10.0, 20.0, 30.0])


def test_each_line_is_in_the_file_before_the_next(tmp_path):
    writer = RecordingWriter(tmp_path / "run.jsonl")
    for count, sample in enumerate(series([1.0, 2.0]), start=1):
        writer.write(sample)
        assert len(read_recording(writer.path).samples) == count
    writer.close()


def test_a_last_line_cut_anywhere_costs_one_sample(file):
    whole = file.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last + 1, len(whole) - 1):
        file.write_bytes(whole[:end])
        recording = read_recording(file)
        assert len(recording.samples) == 2
        assert "line 3: cut short" in recording.warning
    file.write_bytes(whole[:-1])  # only the newline is missing: nothing is lost
    assert len(read_recording(file).samples) == 3


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('{"t": 2, "gpus"', 'found \'{"t": 2, "gpus"\''),
        ("[1, 2]", "found '[1, 2]'"),
        ("\x00\x01", "line 2"),
        ("[" * 100_000, "recursion"),
        ('{"t": 2, "gpus": [{"util": 3}]}', "'gpus.index' is missing"),
        ('{"t": 0.5}', "'t' must not go back, found 0.5 after 1"),
    ],
)
def test_a_broken_line_in_the_middle_is_named(file, line, names):
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], line + "\n", *lines[1:]]))
    with pytest.raises(RecordingError) as caught:
        read_recording(file)
    assert caught.value.line == 2
    assert f"{file}, line 2: expected one sample as JSON" in str(caught.value)
    assert names in str(caught.value)


def test_bytes_that_are_no_text_are_named(file):
    file.write_bytes(b"\xff\xfe\x00\n" + file.read_bytes())
    with pytest.raises(RecordingError, match="line 1"):
        read_recording(file)


@pytest.mark.parametrize("content", ["", "\n\n", '{"t": 1'])
def test_a_file_without_samples_is_refused(tmp_path, content):
    file = tmp_path / "empty.jsonl"
    file.write_text(content)
    with pytest.raises(RecordingError, match="holds no samples"):
        read_recording(file)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RecordingError, match="No such file"):
        read_recording(tmp_path / "none.jsonl")


def test_a_recording_is_never_written_over(file):
    before = file.read_bytes()
    with pytest.raises(InputError, match="already holds something"):
        RecordingWriter(file)
    assert file.read_bytes() == before


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="can't write"):
        RecordingWriter(tmp_path / "none" / "run.jsonl")
    with pytest.raises(InputError, match="can't write"):
        RecordingWriter(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
def test_a_process_whose_name_is_not_utf_8_is_recorded(tmp_path):
    name = os.fsdecode(b"entra\xeener")
    sample = Sample(t=1.0, process=ProcessSample(pid=7, name=name))
    with RecordingWriter(tmp_path / "run.jsonl") as writer:
        writer.write(sample)
    assert read_recording(tmp_path / "run.jsonl").samples[0].process.name == name


def test_a_full_disk_ends_the_recording_not_the_monitor():
    from pathlib import Path

    with RecordingWriter(Path("/dev/full")) as writer:
        for sample in series([1.0, 2.0]):
            writer.write(sample)
        assert writer.problem == "--record: /dev/full ends after 0 samples (No space left on device)"


def test_gpus_are_chosen_in_a_recording_too():
    samples = [
        Sample(t=1, gpus=(GpuSample(index=0, uuid="GPU-a"), GpuSample(index=1, slice=0), GpuSample(index=1, slice=1))),
        Sample(t=2, gpus=(GpuSample(index=0), GpuSample(index=1, slice=0))),
    ]
    chosen = only_gpus(samples, ["GPU-a"])
    assert [[gpu.label for gpu in sample.gpus] for sample in chosen] == [["0"], ["0"]]
    assert [gpu.label for gpu in only_gpus(samples, ["1"])[0].gpus] == ["1:0", "1:1"]
    assert only_gpus(samples, []) == samples
    with pytest.raises(InputError, match=r"no GPU '7' in the recording; there are: 0, 1:0, 1:1"):
        only_gpus(samples, ["0", "7"])
