"""Levels and their results by hand."""

from __future__ import annotations

from harness.calibration import store
from harness.calibration.calibrate import Calibration
from harness.calibration.error import ClientError, Spread
from harness.calibration.level import Level, LevelResult

_NOTHING = Spread(0.0, 0.0, 0.0)


def result(level: Level, error_ms: float | None, *, lost: int = 0) -> LevelResult:
    """A level that was measured with such an error at p99."""
    error = ClientError(
        requests=100,
        lost=lost,
        tokens=1000,
        tokens_wrong=0,
        ttft_ms=_NOTHING,
        true_ttft_ms=_NOTHING,
        gap_ms=_NOTHING,
        true_gap_ms=_NOTHING,
        arrival_ms=Spread(error_ms, error_ms, error_ms),
        lag_ms=_NOTHING,
        late_ms=_NOTHING,
    )
    return LevelResult(level, error, 1.0, float(level.tokens_per_s or 0), 10.0, 0.1, 0.1, 0, "kernel")


def calibration() -> Calibration:
    """Of this machine, made up: 20,000 chunks/s at 5 ms, and 256 streams that were the most tried."""
    rate = [result(Level(256, 1000 * 256 / r, 10, 2), e) for r, e in ((10_000, 0.1), (20_000, 3), (40_000, 50))]
    streams = [result(Level(n, 100, 10, 2), 0.1) for n in (64, 256)]
    floor = result(Level(1, 0, 1, 200), 0.1)
    return Calibration(store.machine(), "2026-01-02T03:04:05Z", "1.2.3", True, floor, rate, streams)
