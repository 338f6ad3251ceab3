"""Whether the GPU is in a state to be measured."""

from __future__ import annotations

from typing import Any

import pytest

from harness.doctor_gpu import examine_gpu, readable
from harness.telemetry.choose import Choice
from harness.telemetry.settings import TelemetrySource
from tests.harness.telemetry.conftest import stub as _stub
from tests.nvml.stub import BOARD, GIB, Script, Stub

stub = _stub
CODE = """
from harness.doctor_gpu import examine_gpu
from harness.telemetry import device_child
from harness.telemetry.settings import Telemetry
# This process is one of its own already.
device_child._ask = lambda what, words, timeout_s: device_child._answer(what, words)
out = {row.name: [row.found, row.words, row.brings] for row in examine_gpu(Telemetry(dcgm_url="http://127.0.0.1:1"))}
"""


def looked(stub: Stub, script: Script) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = stub.run(script, CODE)
    return found


def test_a_quiet_board_is_good_in_every_row(stub: Stub) -> None:
    found = looked(stub, Script().board(changes={"memory.used": GIB // 2, "busy.gpu": 0}))
    assert [name for name, row in found.items() if row[0] is False] == []
    assert found["clocks"][1] == "SM 1980 of 1980 MHz, memory 3201 of 3201 MHz"
    assert found["power limit"][1] == "limit 700 W, by default 700 W"
    assert BOARD in found["board"][1]
    assert "nvml" in found["telemetry"][1]


@pytest.mark.parametrize(
    ("changes", "row", "brings"),
    [
        ({"persistence": 0}, "persistence", f"sudo nvidia-smi -i {BOARD} -pm 1"),
        ({"power.limit": 500_000}, "power limit", f"sudo nvidia-smi -i {BOARD} -pl 700"),
        ({"ecc.uncorrected": 3}, "ECC", "resets the GPU"),
        ({"reasons": 0x40}, "clocks", "cooling"),
        ({"memory.used": 30 * GIB}, "in use", "nvidia-smi shows the processes"),
        ({"busy.gpu": 80}, "in use", "nvidia-smi shows the processes"),
        ({"gpm": 0}, "bandwidth", "DCGM exporter"),
        ({"temperature": 84}, "temperature", "airflow"),
    ],
)
def test_what_is_not_as_it_should_be_is_told_with_what_mends_it(
    stub: Stub, changes: dict[str, Any], row: str, brings: str
) -> None:
    quiet = {"memory.used": GIB // 2, "busy.gpu": 0}
    found = looked(stub, Script().board(changes={**quiet, **changes}))
    assert [name for name, r in found.items() if r[0] is False] == [row]
    assert brings in found[row][2]


def test_a_cold_board_is_no_fault_and_has_to_soak(stub: Stub) -> None:
    quiet = {"memory.used": GIB // 2, "busy.gpu": 0}
    found, words, brings = looked(stub, Script().board(changes={**quiet, "temperature": 31}))["temperature"]
    assert found is None
    assert "31 C: cold" in words
    assert f"sudo nvidia-smi -i {BOARD} -lgc" in brings
    assert looked(stub, Script().board(changes={**quiet, "temperature": 62}))["temperature"][0] is True


def test_a_machine_without_a_gpu_has_one_row_that_says_so() -> None:
    (row,) = examine_gpu(choice=Choice(TelemetrySource.NONE, (), {"nvml": "no library"}))
    assert (row.found, row.words) == (False, "no GPU is told of (nvml: no library)")
    assert not readable([row])
