"""A child that opens NVML, prints what was asked as JSON, and ends: `python -m harness.telemetry.device_child list|memory|holders|sample`.

NVML is never opened in the runner's own process: a driver that hangs would take the run with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.telemetry.devices import DeviceInfo
from harness.telemetry.sample import Sample
from harness.telemetry.settings import TelemetryUnavailableError

if TYPE_CHECKING:
    from harness.telemetry.nvml_calls import Calls

# Without persistence mode the driver wakes each board for this, which takes seconds.
_TIMEOUT_S = 15.0


def nvml_devices(timeout_s: float = _TIMEOUT_S) -> list[DeviceInfo]:
    """Every board and MIG instance that NVML shows. Raises TelemetryUnavailableError with the reason there is none."""
    return [DeviceInfo.from_dict(item) for item in _ask("list", (), timeout_s)]


def nvml_readings(uuids: Sequence[str], timeout_s: float = _TIMEOUT_S) -> list[Sample]:
    """Two rounds of everything, so that means between two samples are among it. Raises TelemetryUnavailableError."""
    return [
        Sample(source, metric, t0, t1, value, reason, device)
        for source, metric, device, t0, t1, value, reason in _ask("sample", uuids, timeout_s)
    ]


class DeviceMemory:
    """Memory in use on some devices: the supervisor's probe. `first` keeps the first reading, the baseline.

    A reading that fails tells nothing (no entry), so it never holds up the end of a server.
    """

    def __init__(self, uuids: Sequence[str], timeout_s: float = _TIMEOUT_S) -> None:
        self._uuids, self._timeout_s = tuple(uuids), timeout_s
        self.first: dict[str, int] | None = None
        self.why: str | None = None

    def memory_used(self) -> Mapping[str, int]:
        """Bytes in use per device UUID, whoever uses them."""
        used: dict[str, int] = {}
        if self._uuids:
            try:
                used = {str(k): int(v) for k, v in _ask("memory", self._uuids, self._timeout_s).items()}
            except TelemetryUnavailableError as error:
                self.why = str(error)
        if self.first is None:
            self.first = dict(used)
        return used

    def holders(self) -> Mapping[str, list[int]]:
        """Processes that compute on each device, by the driver's numbers."""
        try:
            found = _ask("holders", self._uuids, self._timeout_s) if self._uuids else {}
        except TelemetryUnavailableError as error:
            self.why = str(error)
            return {}
        return {str(uuid): [int(pid) for pid in pids] for uuid, pids in found.items()}


def _ask(what: str, words: Sequence[str], timeout_s: float) -> Any:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "harness.telemetry.device_child", what, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TelemetryUnavailableError(f"NVML did not answer within {timeout_s:g} s") from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TelemetryUnavailableError(f"the process that asks NVML failed: {said[:200]}") from None
    if "error" in answer:
        raise TelemetryUnavailableError(str(answer["error"]))
    return answer["value"]


def _answer(what: str, words: Sequence[str]) -> Any:
    from harness.telemetry.nvml_calls import NvmlError, open_nvml
    from harness.telemetry.nvml_devices import list_devices, memory_used

    if what == "sample":
        return _two_rounds(words)
    calls = open_nvml()
    if what == "list":
        return [info.to_dict() for info in list_devices(calls)]
    if what == "holders":
        return {uuid: _holders(calls, uuid) for uuid in words}
    used = {}
    for uuid in words:
        try:
            used[uuid] = int(memory_used(calls, calls("DeviceGetHandleByUUID", uuid), uuid)[0])
        except NvmlError:
            continue  # boards with unified memory have no figure of their own
    return used


def _holders(calls: Calls, uuid: str) -> list[int]:
    from harness.telemetry.nvml_calls import NvmlError

    try:
        return [int(p.pid) for p in calls("DeviceGetComputeRunningProcesses", calls("DeviceGetHandleByUUID", uuid))]
    except NvmlError:
        return []


def _two_rounds(uuids: Sequence[str]) -> list[list[object]]:
    import time

    from harness.telemetry.nvml import NvmlSampler

    sampler = NvmlSampler(uuids)
    rows = [sample.row() for sample in sampler.sample()]
    time.sleep(0.25)
    return rows + [sample.row() for sample in sampler.sample()]


def main() -> int:
    """One answer on stdout."""
    try:
        print(json.dumps({"value": _answer(sys.argv[1], sys.argv[2:])}))
    except TelemetryUnavailableError as error:
        print(json.dumps({"error": str(error)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
