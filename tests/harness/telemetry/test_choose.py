"""Who is asked about the device: in order, quickly, with the reason for each that was passed over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from backends.devices import NoDevices
from harness.telemetry.choose import ORDER, Choice, choose, session_telemetry
from harness.telemetry.devices import DeviceInfo
from harness.telemetry.settings import NoTelemetryError, Telemetry, TelemetrySource, TelemetryUnavailableError
from results.errors import UsageError
from tests.nvml.stub import BOARD, Script, Stub, no_driver
from tests.waiting import LONG_S

BOARD_INFO = DeviceInfo("GPU-a", "x", 0)


def gone(telemetry: Telemetry) -> list[DeviceInfo]:
    raise TelemetryUnavailableError("not here")


def there(telemetry: Telemetry) -> list[DeviceInfo]:
    return [BOARD_INFO]


def looks(*answering: TelemetrySource) -> dict[TelemetrySource, Callable[[Telemetry], list[DeviceInfo]]]:
    return {source: there if source in answering else gone for source in ORDER}


@pytest.mark.parametrize("first", ORDER)
def test_the_first_that_answers_is_taken_and_the_others_have_their_reasons(first: TelemetrySource) -> None:
    later = ORDER[ORDER.index(first) :]
    choice = choose(Telemetry(), looks(*later))
    assert choice.source is first
    assert choice.why_not == {str(s): "not here" for s in ORDER[: ORDER.index(first)]}


def test_a_source_that_was_asked_for_is_the_only_one_tried() -> None:
    choice = choose(Telemetry(source=TelemetrySource.NVML), looks(TelemetrySource.NVIDIA_SMI))
    assert (choice.source, dict(choice.why_not)) == (TelemetrySource.NONE, {"nvml": "not here"})


@pytest.mark.parametrize("telemetry", [Telemetry(source=TelemetrySource.NONE), Telemetry(interval_s=0)])
def test_off_is_off_and_nobody_is_asked(telemetry: Telemetry) -> None:
    choice = choose(telemetry, looks(*ORDER))
    assert (choice.source, choice.words) == (TelemetrySource.NONE, "telemetry was turned off")


def test_what_is_required_and_not_there_ends_the_run_as_an_environment_that_failed() -> None:
    with pytest.raises(NoTelemetryError, match="nvml: not here") as caught:
        choose(Telemetry(required=True), looks())
    assert caught.value.exit_code == 4


@no_driver
def test_a_machine_without_any_of_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    choice = choose(Telemetry(dcgm_url="http://127.0.0.1:1"))
    assert choice.source is TelemetrySource.NONE
    assert set(choice.why_not) == {"dcgm", "nvml", "nvidia-smi"}
    assert choice.why_not["nvml"] == "no libnvidia-ml.so.1 on this machine"


CHOOSE = """
from harness.telemetry.choose import choose
from harness.telemetry.settings import Telemetry
choice = choose(Telemetry(dcgm_url="http://127.0.0.1:1"))
out = [str(choice.source), dict(choice.why_not), [d.uuid for d in choice.devices]]
"""


def test_a_driver_and_a_library_that_do_not_match_are_named(stub: Stub) -> None:
    source, why_not, _ = stub.run(Script().board().say("code nvmlInitWithFlags 18"), CHOOSE, PATH="/nonexistent")
    assert source == "none"
    assert why_not["nvml"].startswith("driver/library version mismatch")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["code nvmlInitWithFlags 9"], "the driver is not loaded"),
        (["code nvmlDeviceGetCount_v2 999"], "unknown error"),
        (["code nvmlDeviceGetHandleByIndex_v2 15"], "the GPU is lost"),
    ],
)
def test_nvml_that_starts_without_a_usable_board_is_no_source(stub: Stub, lines: list[str], words: str) -> None:
    _, why_not, _ = stub.run(Script().board().say(*lines), CHOOSE, PATH="/nonexistent")
    assert why_not["nvml"].startswith(words)


def test_nvml_without_any_board_is_no_source(stub: Stub) -> None:
    _, why_not, _ = stub.run(Script(), CHOOSE, PATH="/nonexistent")
    assert why_not["nvml"] == "no GPU found (nvmlDeviceGetCount)"


def test_nvml_is_taken_where_it_answers(stub: Stub) -> None:
    source, _, uuids = stub.run(Script().board(), CHOOSE)
    assert (source, uuids) == ("nvml", [BOARD])


def test_a_driver_that_hangs_at_the_start_holds_up_a_child_only(stub: Stub) -> None:
    code = """
from harness.telemetry.device_child import nvml_devices
try:
    nvml_devices(timeout_s=1.0)
except Exception as error:
    out = str(error)
"""
    assert stub.run(Script().board().say("hang nvmlInitWithFlags 600"), code) == "NVML did not answer within 1 s"


def test_the_supervisors_probe_reads_memory_and_keeps_the_baseline(stub: Stub) -> None:
    code = f"""
from harness.telemetry.device_child import DeviceMemory
probe = DeviceMemory(["{BOARD}", "GPU-none"])
out = [dict(probe.memory_used()), probe.first]
"""
    used, first = stub.run(Script().board(), code)
    assert used == first == {BOARD: 20 * 2**30}


def session(env: dict[str, str], url: str | None = None, **changes: Any) -> dict[str, Any]:
    boards = (DeviceInfo("GPU-a", "x", 0), DeviceInfo("GPU-b", "x", 1))
    found = session_telemetry(Telemetry(**changes), env, url, Choice(TelemetrySource.DCGM, boards))
    assert isinstance(found.probe, NoDevices)
    return found.record()


def test_a_session_samples_what_its_own_server_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    uuids = [[d["uuid"] for d in session(env)["devices"]] for env in ({}, {"CUDA_VISIBLE_DEVICES": "1"})]
    assert uuids == [["GPU-a"], ["GPU-b"]]
    attached = session({}, url="http://127.0.0.1:8000")
    assert len(attached["devices"]) == 2
    assert "not known" in attached["warnings"][0]
    named = session({}, devices=("GPU-b",))
    assert ([d["uuid"] for d in named["devices"]], named["chosen"]) == (["GPU-b"], True)
    with pytest.raises(UsageError, match="twice"):
        session({"CUDA_VISIBLE_DEVICES": "0,0"})


def test_looking_never_loads_the_binding_into_the_runner() -> None:
    code = (
        "import sys; from harness.telemetry.choose import choose; from harness.telemetry.settings import Telemetry; "
        "choose(Telemetry(dcgm_url='http://127.0.0.1:1')); print('pynvml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S, check=True)
    assert done.stdout.strip() == "False"


def test_devices_here_say_nothing_of_a_server_elsewhere() -> None:
    found = session_telemetry(Telemetry(), {}, "http://192.0.2.7:8000").record()
    assert (found["source"], found["devices"]) == ("none", [])
    assert "another machine" in found["why_not"]["none"]
    with pytest.raises(NoTelemetryError, match="another machine"):
        session_telemetry(Telemetry(required=True), {}, "http://192.0.2.7:8000")
    off = session_telemetry(Telemetry(interval_s=0), {}, "http://192.0.2.7:8000").record()
    assert off["why_not"] == {"none": "telemetry was turned off"}
