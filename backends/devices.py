"""What supervision needs to know of devices. The sampler lives on a higher floor, so it is passed in as a probe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

# Drivers and other processes move this much without anybody holding memory.
TOLERANCE_BYTES = 256 << 20


class DeviceProbe(Protocol):
    """Reads memory of the devices a server may use."""

    def memory_used(self) -> Mapping[str, int]:
        """Bytes in use per device, whoever uses them."""


class NoDevices:
    """No device to wait for."""

    def memory_used(self) -> Mapping[str, int]:
        return {}


def wait_memory_back(devices: DeviceProbe, baseline: Mapping[str, int], timeout_s: float) -> dict[str, int]:
    """Wait until no device holds more than it did in `baseline`; the bytes above it per device where that fails."""
    deadline = time.monotonic() + timeout_s
    while True:
        used = devices.memory_used()
        more = {name: used[name] - before for name, before in baseline.items() if name in used}
        held = {name: extra for name, extra in more.items() if extra > TOLERANCE_BYTES}
        if not held or time.monotonic() > deadline:
            return held
        time.sleep(0.2)
