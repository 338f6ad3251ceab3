"""What supervision needs to know of devices. The sampler lives on a higher floor, so it is passed in as a probe."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

# Drivers and other processes move this much without anybody holding memory.
TOLERANCE_BYTES = 256 << 20


class DeviceProbe(Protocol):
    """Reads memory of the devices a server may use."""

    def memory_used(self) -> Mapping[str, int]:
        """Bytes in use per device, whoever uses them."""


@runtime_checkable
class NamesHolders(Protocol):
    """A probe that also tells who is on the devices."""

    def holders(self) -> Mapping[str, Collection[int]]:
        """Processes on each device, as its driver numbers them (in a container: by numbers of the host)."""


class NoDevices:
    """No device to wait for."""

    def memory_used(self) -> Mapping[str, int]:
        return {}


def memory_words(devices: DeviceProbe, baseline: Mapping[str, int], ours: Collection[int]) -> str:
    """What a server that ran out of memory found: memory before its launch and now, and who else is there; "" for none."""
    used = devices.memory_used()
    holders = devices.holders() if isinstance(devices, NamesHolders) else {}
    parts = []
    for name, now in used.items():
        before = f"{baseline[name] / 2**30:.1f} GiB before the launch, " if name in baseline else ""
        others = sorted(set(holders.get(name, ())) - set(ours))
        on_it = f", held by process {', '.join(map(str, others))}" if others else ""
        parts.append(f"{name} had {before}{now / 2**30:.1f} GiB in use now{on_it}")
    return f"Device memory: {'; '.join(parts)}." if parts else ""


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
