"""What must be so after a server's end before the next one may start: its processes gone, its port free, its memory back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backends.devices import DeviceProbe, wait_memory_back
from backends.failures import LeftBehindError
from backends.ports import port_holder, wait_port_free

_PORT_FREE_S = 5.0
_MEMORY_BACK_S = 30.0


def require_nothing_left(
    processes: Sequence[int], host: str, port: int | None, devices: DeviceProbe, baseline: Mapping[str, int]
) -> None:
    """Wait until the port is free and no device holds more than in `baseline`. Raises LeftBehindError; at once where some of
    the server's `processes` still run."""
    if processes:
        raise LeftBehindError(
            f"The server was stopped but {len(processes)} of its processes cannot be ended: {list(processes)}. "
            "They may hang in a driver call; nothing can be measured beside them."
        )
    if port is not None and not wait_port_free(host, port, _PORT_FREE_S):
        raise LeftBehindError(
            f"The server was stopped but port {port} is still held by {port_holder(port) or 'someone'}."
        )
    if held := wait_memory_back(devices, baseline, _MEMORY_BACK_S):
        more = ", ".join(f"{name} {extra / 2**20:.0f} MiB" for name, extra in held.items())
        raise LeftBehindError(
            f"The server was stopped but device memory is not back {_MEMORY_BACK_S:g} s later: {more} above the level "
            "before its launch. Something else started using the device, or the driver still cleans up."
        )
