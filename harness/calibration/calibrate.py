"""The calibration of a machine: the floor of the transport, and the ceilings in chunks/s and in streams."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from harness.calibration.ladder import BARS_MS, Ceiling, ceiling, climb
from harness.calibration.level import Level, LevelResult, run_level
from harness.calibration.store import machine
from harness.truth.process import TruthServer

# A server that answers at once over loopback: more than this and the transport itself delays (Nagle, delayed ACK, a proxy).
FLOOR_BAR_MS = 5.0
FLOOR = Level(streams=1, gap_ms=0, tokens=1, rounds=200, ttft_ms=0, early_head=True)
_RATE_STREAMS = 256
_RATES = (5_000, 10_000, 20_000, 35_000, 50_000, 70_000, 100_000, 150_000, 200_000)
_QUICK_RATES = (10_000, 30_000, 60_000, 120_000)
_STREAMS = (64, 256, 1024, 4096)
_QUICK_STREAMS = (256, 1024)
_STREAM_GAP_MS = 100.0
_SPARE_DESCRIPTORS = 256

Say = Callable[[str, LevelResult], None]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found. `rate` and `streams` are the levels run, in order; `quick`: fewer and shorter ones."""

    machine: dict[str, Any]
    date: str
    version: str
    quick: bool
    floor: LevelResult
    rate: list[LevelResult]
    streams: list[LevelResult]

    def ceilings(self) -> dict[str, dict[str, Ceiling]]:
        """By what is counted, then by bar."""
        return {
            "chunks_per_s": {_bar(b): ceiling(self.rate, b, lambda r: r.busiest_chunks_per_s) for b in BARS_MS},
            "streams": {_bar(b): ceiling(self.streams, b, lambda r: float(r.level.streams)) for b in BARS_MS},
        }

    @property
    def floor_good(self) -> bool:
        """Does the transport add less than its bar?"""
        return self.floor.error.ttft_ms.p50 is not None and self.floor.error.ttft_ms.p50 < FLOOR_BAR_MS

    def to_dict(self) -> dict[str, Any]:
        """As it is stored; what cells carry of it is `cell_ceiling`."""
        return {
            "schema": 1,
            "machine": self.machine,
            "date": self.date,
            "version": self.version,
            "quick": self.quick,
            "floor_ttft_ms": asdict(self.floor.error.ttft_ms),
            "floor_good": self.floor_good,
            "ceilings": {w: {bar: asdict(c) for bar, c in by.items()} for w, by in self.ceilings().items()},
            "rate_levels": [r.to_dict() for r in self.rate],
            "stream_levels": [r.to_dict() for r in self.streams],
        }


def calibrate(*, quick: bool = False, say: Say = lambda kind, result: None) -> Calibration:
    """Measure this machine's client: one to two minutes, `quick` 20 s. Raises what the load worker and the truth server raise."""
    from importlib.metadata import version

    seconds = 1.2 if quick else 4.0
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    room = max(64, most - _SPARE_DESCRIPTORS) if most != resource.RLIM_INFINITY else 1 << 20
    rates = [
        Level.lasting(_RATE_STREAMS, 1000 * _RATE_STREAMS / r, seconds) for r in (_QUICK_RATES if quick else _RATES)
    ]
    streams = [Level.lasting(n, _STREAM_GAP_MS, seconds) for n in (_QUICK_STREAMS if quick else _STREAMS) if n <= room]
    with TruthServer() as server:

        def run(kind: str) -> Callable[[Level], LevelResult]:
            def once(level: Level) -> LevelResult:
                result = run_level(server, level)
                say(kind, result)
                return result

            return once

        floor = run("floor")(FLOOR)
        halvings = 0 if quick else 2
        rate = climb(rates, run("rate"), halvings=halvings, between=lambda a, b: _faster(a, b, seconds))
        found = climb(streams, run("streams"), halvings=halvings // 2, between=lambda a, b: _more(a, b, seconds))
    return Calibration(
        machine=machine(),
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        version=version("llm-dyno"),
        quick=quick,
        floor=floor,
        rate=rate,
        streams=found,
    )


def _faster(a: Level, b: Level, seconds: float) -> Level | None:
    assert a.tokens_per_s is not None
    assert b.tokens_per_s is not None
    middle = (a.tokens_per_s + b.tokens_per_s) / 2
    return (
        Level.lasting(a.streams, 1000 * a.streams / middle, seconds) if b.tokens_per_s > 1.1 * a.tokens_per_s else None
    )


def _more(a: Level, b: Level, seconds: float) -> Level | None:
    return Level.lasting((a.streams + b.streams) // 2, a.gap_ms, seconds) if b.streams > 1.1 * a.streams else None


def _bar(bar_ms: float) -> str:
    return f"{bar_ms:g}_ms"
