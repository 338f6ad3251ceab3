"""GPM: hardware counters of Hopper and newer, as means between two samples. The source of memory bandwidth."""

from __future__ import annotations

import math
from typing import Any

from harness.telemetry.nvml_calls import CANNOT, Calls, NvmlError
from harness.telemetry.nvml_metrics import Target
from harness.telemetry.sample import Sample
from results.clock import NS_PER_MS, now_ns

# (GPM's id, our metric, what one unit of GPM is in ours)
_PERCENT, _MIB = 0.01, float(1 << 20)
GPM_METRICS: tuple[tuple[int, str, float], ...] = (
    (10, "gpu.dram_active", _PERCENT),
    (2, "gpu.sm_active", _PERCENT),
    (3, "gpu.sm_occupancy", _PERCENT),
    (5, "gpu.tensor_active", _PERCENT),
    (20, "gpu.pcie_tx_bytes_per_s", _MIB),
    (21, "gpu.pcie_rx_bytes_per_s", _MIB),
)
METRIC_NAMES = tuple(name for _, name, _ in GPM_METRICS)
# NVIDIA asks for more than 100 ms between two samples; twice that keeps clear of the edge.
LEAST_NS = 200 * NS_PER_MS


class Gpm:
    """The pair of samples of one device. `absent` says why there is nothing to read, or is None."""

    def __init__(self, calls: Calls, target: Target) -> None:
        self._calls, self._target = calls, target
        self._last: tuple[Any, int] | None = None
        self._spare: Any = None
        self._request: Any = None
        self.absent: str | None = None
        try:
            if not calls("GpmQueryDeviceSupport", target.board).isSupportedDevice:
                self.absent = "needs GPM, which this device does not have (Hopper or newer)"
                return
            self._spare, other = calls("GpmSampleAlloc"), calls("GpmSampleAlloc")
            self._last = (self._take(other), now_ns())
        except NvmlError as error:
            self.absent = error.words

    def sample(self, source: str) -> list[Sample]:
        """The means since the sample before, which tile the time; nothing while less than 200 ms have passed.

        Raises NvmlError when a sample cannot be taken; the pair is then kept, and the next mean covers the gap too.
        """
        if self._last is None or now_ns() - self._last[1] < LEAST_NS:
            return []
        first, t0 = self._last
        second = self._take(self._spare)
        t1 = now_ns()
        self._last, self._spare = (second, t1), first
        request = self._filled(first, second)
        self._calls("GpmMetricsGet", request)
        out = []
        for i, (_, name, unit) in enumerate(GPM_METRICS):
            metric = request.metrics[i]
            value, why = _value(metric.nvmlReturn, metric.value * unit)
            out.append(Sample(source, name, t0, t1, value, why, self._target.info.uuid))
        return out

    def _take(self, into: Any) -> Any:
        info = self._target.info
        if info.parent is None:
            return self._calls("GpmSampleGet", self._target.board, into)
        instance = self._calls("DeviceGetGpuInstanceId", self._target.handle)
        return self._calls("GpmMigSampleGet", self._target.board, instance, into)

    def _filled(self, first: Any, second: Any) -> Any:
        """The request, made once: it is 19 KB, and a fresh one a tick costs more than the call."""
        if self._request is None:
            nvml = self._calls.nvml
            self._request = nvml.c_nvmlGpmMetricsGet_t()
            self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            self._request.numMetrics = len(GPM_METRICS)
            for i, (number, _, _) in enumerate(GPM_METRICS):
                self._request.metrics[i].metricId = number
        self._request.sample1, self._request.sample2 = first, second
        return self._request


def _value(code: int, value: float) -> tuple[float | None, str | None]:
    """Each metric has a code of its own, and a value that is not a number although the code says it is fine."""
    if code:
        return None, NvmlError("nvmlGpmMetricsGet", code).words if code in CANNOT else f"GPM says error {code} of it"
    if not math.isfinite(value):
        return None, "GPM gave no number"
    return value, None
