"""CUDA indices under CUDA_VISIBLE_DEVICES: certain, or absent with the reason."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fulltilt.machine.visibility import Unit, visibility

H200 = [
    Unit(uuid=f"GPU-{first}d8f0a1c-52a5-6f0e", pci=f"0000:{bus:02x}:00.0", name="NVIDIA H200")
    for first, bus in (("4", 0x19), ("5", 0x3B), ("6", 0x4C), ("6", 0x5D))
]
H200[3] = Unit(uuid="GPU-6d8f0a1c-ffff", pci="0000:5d:00.0", name="NVIDIA H200")
MIXED = [
    Unit(uuid="GPU-aa", pci="0000:3b:00.0", name="Tesla V100"),
    Unit(uuid="GPU-bb", pci="0000:19:00.0", name="NVIDIA H200"),
]
SLICES = [
    Unit(uuid="MIG-11", pci="0000:87:00.0", name="A100 MIG 3g.20gb", mig=True),
    Unit(uuid="MIG-22", pci="0000:87:00.0", name="A100 MIG 2g.10gb", mig=True),
]


def indices(units, visible=None, order=None):
    environment = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    seen = visibility(units, {key: value for key, value in environment.items() if value is not None})
    return [found.index for found in seen.indices]


def reasons(units, visible=None, order=None):
    environment = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    seen = visibility(units, {key: value for key, value in environment.items() if value is not None})
    return [found.reason for found in seen.indices]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("2", [None, None, 0, None]),
        ("3,1", [None, 1, None, 0]),
        (" 3 , 1", [None, 1, None, 0]),
        ("", [None] * 4),
        ("-1", [None] * 4),
        ("NoDevFiles", [None] * 4),
        ("1,-1,2", [None, 0, None, None]),  # the list ends at the first that is none
        ("0,9,1", [0, None, None, None]),
        ("1,1", [None] * 4),  # named twice: nothing is visible
        ("1gpu,2ampere", [None, 0, 1, None]),  # CUDA reads digits up to the first letter
        ("GPU-5d8f0a1c-52a5-6f0e", [None, 0, None, None]),
        ("GPU-5,GPU-4", [1, 0, None, None]),  # the beginning of a UUID is enough
        ("GPU-6", [None] * 4),  # unless it is the beginning of two
        ("GPU-5,GPU-6,GPU-4", [None, 0, None, None]),
        ("GPU-5,0", [None, 0, None, None]),  # one kind of name per list
        ("GPU-5,GPU-5d8f", [None] * 4),
        ("GPU-5,GPU-6,GPU-5", [None] * 4),  # though the list had ended before
        ("GPU-zz", [None] * 4),
    ],
)
def test_four_alike(visible, expected):
    assert indices(H200, visible) == expected


def test_the_hidden_ones_say_by_what():
    assert reasons(H200, "0")[1:] == ["hidden by CUDA_VISIBLE_DEVICES=0"] * 3


def test_different_gpus_have_no_certain_number_in_cudas_default_order():
    assert indices(MIXED) == [None, None]
    assert indices(MIXED, "0") == [None, None]
    assert all("fastest first" in reason for reason in reasons(MIXED))


def test_different_gpus_in_pci_order_are_certain():
    assert indices(MIXED, order="PCI_BUS_ID") == [1, 0]  # by address, whatever the driver's order
    assert indices(MIXED, "0", order="PCI_BUS_ID") == [None, 0]


def test_a_uuid_is_certain_in_any_order():
    assert indices(MIXED, "GPU-aa") == [0, None]
    assert indices(MIXED, "GPU-bb,GPU-aa") == [1, 0]


def test_one_gpu_is_certain():
    assert indices(MIXED[:1]) == [0]


def test_slices_are_certain_by_uuid_only():
    assert indices(SLICES) == [None, None]
    assert "MIG" in reasons(SLICES)[0]
    assert indices(SLICES, "MIG-22") == [None, 0]
    assert indices(SLICES, "MIG-22,MIG-11") == [None, 0]  # CUDA promises the first one
    assert "first MIG slice" in reasons(SLICES, "MIG-22,MIG-11")[0]


def test_the_old_form_of_a_slices_name_is_not_guessed_at():
    assert (
        reasons(SLICES, "MIG-GPU-c5dd6a4e/2/0")
        == ["CUDA_VISIBLE_DEVICES names a slice in the old form; name it by UUID"] * 2
    )


def test_beside_a_gpu_that_cannot_be_read_numbers_are_uncertain_and_uuids_are_not():
    units = [Unit(uuid=None, pci=None, name=None, readable=False), *H200[:2]]
    assert indices(units) == [None] * 3
    assert visibility(units, {}).count == 2
    assert indices(units, "GPU-5") == [None, None, 0]


@pytest.mark.parametrize(("visible", "count"), [(None, 4), ("0,2", 2), ("", 0), ("7", 0), ("GPU-4,GPU-5", 2)])
def test_how_many_are_visible(visible, count):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visibility(H200, environment).count == count


def test_how_many_is_known_even_where_the_numbers_are_not():
    assert visibility(MIXED, {"CUDA_VISIBLE_DEVICES": "1"}).count == 1


entries = st.sampled_from(
    ["0", "1", "3", "7", "-1", "+2", " 1", "2x", "", "x", "GPU-4", "GPU-5", "GPU-6", "GPU-6d8f0a1c-f", "GPU-", "MIG-11"]
)


@given(st.lists(entries, min_size=1, max_size=5).map(",".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=500)
def test_the_reading_is_pytorchs(monkeypatch, visible):
    """Against PyTorch's own reading of the variable, which counts devices without starting CUDA."""
    from torch import cuda

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    chosen = cuda._parse_visible_devices()
    if chosen and isinstance(chosen[0], str):
        chosen = cuda._transform_uuid_to_ordinals(chosen, [unit.uuid for unit in H200])
    beyond = next((at for at, number in enumerate(chosen) if number >= len(H200)), len(chosen))
    expected = [None] * len(H200)
    for index, number in enumerate(chosen[:beyond]):
        expected[number] = index
    assert indices(H200, visible) == expected
