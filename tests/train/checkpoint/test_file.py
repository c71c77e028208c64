"""One file: what is read is what was written, or an error that says so."""

from __future__ import annotations

import json
import os
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.errors import CheckpointError
from fulltilt.train.checkpoint.file import read_file, read_notes, write_file
from fulltilt.train.checkpoint.layout import Layout
from fulltilt.train.checkpoint.staging import Staging

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.complex32),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz),
]


def write(path, tensors, notes=None):
    staged = Staging().take(tensors)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_file(descriptor, staged.layout, notes or {}, staged.wait())
    finally:
        os.close(descriptor)
    return path


def raw(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return {
        **{str(d): torch.randint(0, 255, (3, 5, d.itemsize), dtype=torch.uint8).view(d) for d in DTYPES[:-4]},
        **{str(d): torch.randint(0, 2, (3, 5), dtype=torch.uint8).view(d) for d in DTYPES[-4:]},
        "scalar": torch.tensor(1.25),
        "empty": torch.empty(0, 3),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "1×1": torch.randn(6, 5, 1, 1).to(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 4).t(),
        "expanded": torch.randn(1, 3).expand(4, 3),
        "sliced": torch.randn(10, 10)[::2, 1:7:3],
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "ünicode \N{SNOWMAN}": torch.ones(1),
    }


def test_every_type_and_every_layout(tmp_path, tensors):
    read, notes = read_file(write(tmp_path / "x", tensors, {"step": 3, "loss": float("nan")}))
    assert notes["step"] == 3
    assert read.keys() == tensors.keys()
    for name, written in tensors.items():
        tensor = written.resolve_conj()
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(raw(read[name]), raw(tensor)), name
    assert read["channels_last"].is_contiguous(memory_format=torch.channels_last)
    assert read["transposed"].stride() == (1, 4)
    assert read["1×1"].stride() == tensors["1×1"].stride() == (5, 1, 5, 5)
    assert read["expanded"].is_contiguous()
    assert read["sliced"].untyped_storage().nbytes() == read["sliced"].nbytes


def test_it_is_a_safetensors_file(tmp_path, tensors):
    """By that format's rules: any reader of it finds the weights, row by row, without knowing us."""
    whole = write(tmp_path / "x", tensors).read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    assert all(type(value) is str for value in header.pop("__metadata__").values())
    end = 0
    sizes = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}
    for entry in header.values():
        begin, previous = entry["data_offsets"][0], end
        end = entry["data_offsets"][1]
        size = sizes.get(entry["dtype"], 1)
        assert begin == previous, "gaps are not allowed"
        assert begin % size == 0, "aligned"
        assert end - begin == size * torch.Size(entry["shape"]).numel()
    assert 8 + length + end == len(whole)
    begin, end = (8 + length + offset for offset in header["channels_last"]["data_offsets"])
    found = torch.frombuffer(bytearray(whole[begin:end]), dtype=torch.float32).view(header["channels_last"]["shape"])
    assert torch.equal(found, tensors["channels_last"])


def test_notes_are_read_without_the_data(tmp_path):
    path = write(tmp_path / "x", {"a": torch.ones(10)}, {"metric": 0.5})
    assert read_notes(path)["metric"] == 0.5


def test_any_flipped_bit_is_found(tmp_path):
    path = write(tmp_path / "x", {"a": torch.randn(100), "b": torch.randn(3, 4, 5, 6)}, {"tree": {"dict": []}})
    whole = path.read_bytes()
    draw = random.Random(0)
    for position in [*range(120), *(draw.randrange(len(whole)) for _ in range(300)), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            read_file(path)
    path.write_bytes(whole)
    read_file(path)


def test_any_truncation_is_found(tmp_path):
    path = write(tmp_path / "x", {"a": torch.randn(100)})
    whole = path.read_bytes()
    for length in [*range(60), *range(60, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"empty|ends within its header|has .* bytes"):
            read_file(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(CheckpointError, match="were written"):
        read_file(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_known(zipped, tmp_path):
    torch.save({"a": torch.zeros(3)}, tmp_path / "x", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"torch\.save has made it, .* model\.load_state_dict\("):
        read_file(tmp_path / "x")


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_other_file_is_refused(tmp_path_factory, content, length):
    path = tmp_path_factory.getbasetemp() / "other"
    for whole in (content, length.to_bytes(8, "little") + content):
        path.write_bytes(whole)
        with pytest.raises(CheckpointError):
            read_file(path)


def test_a_pickle_is_not_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"model": Bomb()}, tmp_path / "x")
    with pytest.raises(CheckpointError):
        read_file(tmp_path / "x")
    assert not (tmp_path / "executed").exists()


def test_no_tensors_at_all(tmp_path):
    assert Layout.of({}).data_bytes == 0
    assert read_file(write(tmp_path / "x", {}, {"a": 1}))[0] == {}
