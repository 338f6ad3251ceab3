"""Which boards a server sees, by UUID, from every form of CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest

from harness.telemetry.devices import DeviceInfo, chosen_devices, visible_devices
from results.errors import UsageError

BOARDS = [DeviceInfo(f"GPU-{letter}", "NVIDIA H100", index) for index, letter in enumerate("abcd")]
INSTANCE = DeviceInfo("MIG-uuid-of-d", "NVIDIA H100 MIG", 3, parent="GPU-d")


@pytest.mark.parametrize(
    ("value", "boards"),
    [
        (None, ("GPU-a", "GPU-b", "GPU-c", "GPU-d")),
        ("3,1", ("GPU-d", "GPU-b")),
        ("1,3", ("GPU-b", "GPU-d")),
        ("GPU-b", ("GPU-b",)),
        ("gpu-B", ("GPU-b",)),
        (" 2 , 0 ", ("GPU-c", "GPU-a")),
        ("", ()),
        ("   ", ()),
        ("-1", ()),
        ("3,-1,1", ("GPU-d",)),
        ("1gpu2", ("GPU-b",)),
        ("0,9,1", ("GPU-a",)),
        ("0,NoSuch,1", ("GPU-a",)),
        ("99999999999999999999", ()),
        ("0,,1", ("GPU-a",)),
    ],
)
def test_the_boards_that_a_value_leaves_visible(value: str | None, boards: tuple[str, ...]) -> None:
    assert visible_devices(value, BOARDS).uuids == boards


def test_an_instance_is_sampled_itself_and_stands_for_its_board() -> None:
    found = visible_devices("MIG-uuid-of-d", [*BOARDS, INSTANCE])
    assert (found.uuids, found.boards) == (("MIG-uuid-of-d",), ("GPU-d",))


def test_the_index_of_a_divided_board_means_its_first_instance_and_nothing_after_it() -> None:
    found = visible_devices("3,0", [*BOARDS, INSTANCE])
    assert found.uuids == ("MIG-uuid-of-d",)
    assert any("first instance" in w for w in found.warnings)


def test_the_old_form_of_an_instance_leads_to_its_board() -> None:
    board = DeviceInfo("GPU-0a1b2c3d-0000-0000-0000-000000000001", "NVIDIA A100", 0)
    found = visible_devices("MIG-GPU-0a1b2c3d-0000-0000-0000-000000000001/3/0", [board])
    assert found.uuids == (board.uuid,)
    assert found.warnings


def test_the_beginning_of_a_uuid_names_a_board_where_only_one_begins_so() -> None:
    boards = [DeviceInfo("GPU-8932f937-aa", "x", 0), DeviceInfo("GPU-8932aaaa-bb", "x", 1)]
    assert visible_devices("GPU-8932f", boards).uuids == ("GPU-8932f937-aa",)
    both = visible_devices("GPU-8932", boards)
    assert both.uuids == ()
    assert "fits 2 devices" in both.warnings[0]


@pytest.mark.parametrize("value", ["0,0", "0,GPU-a", "GPU-b,1", "3,MIG-uuid-of-d"])
def test_a_device_named_twice_is_refused_as_cuda_refuses_it(value: str) -> None:
    with pytest.raises(UsageError, match="twice"):
        visible_devices(value, [*BOARDS, INSTANCE])


def test_indices_of_mixed_models_are_doubtful_unless_cuda_counts_by_bus() -> None:
    mixed = [*BOARDS[:2], DeviceInfo("GPU-z", "NVIDIA L4", 2)]
    assert any("CUDA_DEVICE_ORDER" in w for w in visible_devices("1", mixed).warnings)
    assert not visible_devices("1", mixed, "PCI_BUS_ID").warnings
    assert not visible_devices("GPU-z", mixed).warnings
    assert not visible_devices("1", BOARDS).warnings


def test_devices_named_in_the_experiment_must_fit_exactly_one() -> None:
    assert chosen_devices(["gpu-c", "GPU-a"], BOARDS).uuids == ("GPU-c", "GPU-a")
    for wrong in ("GPU-", "GPU-x"):
        with pytest.raises(UsageError, match=r"There are: GPU-a"):
            chosen_devices([wrong], BOARDS)
