"""One level: so many streams at such a pace, from the product's own load client, against a truth server."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.calibration.error import ClientError, client_error
from harness.load.build import PlannedBody, anti_lock_lengths, build_plan
from harness.load.process import LoadProcess, LoadResult
from harness.loads import ConcurrencyLoad
from harness.truth.process import TruthServer
from harness.truth.schedule import Schedule
from harness.truth.words import MODEL_NAME
from results.client_load import busiest_second
from results.clock import NS_PER_S
from results.events import read_chunks, read_requests

_POLL_S = 0.2
_PROMPT = list(range(128))


@dataclass(frozen=True, slots=True)
class Level:
    """A closed loop of `streams`, `rounds` requests each, of `tokens` tokens (the first of each slot is shorter)."""

    streams: int
    gap_ms: float
    tokens: int
    rounds: int
    ttft_ms: float = 100.0
    early_head: bool = False

    @classmethod
    def lasting(cls, streams: int, gap_ms: float, seconds: float) -> Level:
        """A level of about so many seconds: at least two rounds, of at most 128 tokens."""
        tokens = max(2, min(128, round(seconds * 500 / gap_ms)))
        one = (100.0 + gap_ms * tokens) / 1000
        return cls(streams, gap_ms, tokens, max(2, round(seconds / one)))

    @property
    def tokens_per_s(self) -> float | None:
        """While all streams decode, if the server keeps its schedule."""
        return self.streams * 1000 / self.gap_ms if self.gap_ms else None

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        return self.rounds * (self.ttft_ms + self.gap_ms * self.tokens) / 1000


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What came of a level. `tokens_per_s` is over the whole of it, `busiest_chunks_per_s` that of its busiest second;
    `cpu_share` and `server_cpu_share` are of one core."""

    level: Level
    error: ClientError
    tokens_per_s: float
    busiest_chunks_per_s: float
    cpu_us_per_token: float | None
    cpu_share: float
    server_cpu_share: float
    coalesced: int
    receive_stamps: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.error.to_dict(), "asked_tokens_per_s": self.level.tokens_per_s}


def run_level(server: TruthServer, level: Level, *, seed: int = 0) -> LevelResult:
    """Send the level's load and hold what came against the server's stamps. Raises LoadWorkerError, TruthServerError."""
    server.set_schedule(Schedule(ttft_ms=level.ttft_ms, gap_ms=level.gap_ms, seed=seed, early_head=level.early_head))
    server.collect()  # forget what was before
    before = server.state()["cpu_s"]
    count = level.streams * level.rounds
    load = ConcurrencyLoad(concurrency=level.streams, requests=count)
    lengths = anti_lock_lengths([level.tokens] * count, level.streams, seed)
    bodies = [PlannedBody(f"r{i}", body(n), len(_PROMPT), n) for i, n in enumerate(lengths)]
    with tempfile.TemporaryDirectory(prefix="dyno-level-") as name:
        folder = Path(name)
        out = folder / "out"
        out.mkdir()
        plan = build_plan(load, bodies, url=server.url, folder=folder / "plan")
        result = _run(plan, out)
        truth = server.collect()
        error = client_error(read_requests(out), read_chunks(out), truth)
    span = (result.ended - result.started) / NS_PER_S
    cpu, wall = float(result.client["cpu_s"]), float(result.client["wall_s"])
    return LevelResult(
        level=level,
        error=error,
        tokens_per_s=error.tokens / span if span else 0.0,
        busiest_chunks_per_s=busiest_second(truth.sent),
        cpu_us_per_token=cpu * 1e6 / error.tokens if error.tokens else None,
        cpu_share=cpu / wall if wall else 0.0,
        server_cpu_share=(server.state()["cpu_s"] - before) / span if span else 0.0,
        coalesced=int(result.client["coalesced_events"]),
        receive_stamps=str(result.client["receive_stamps"]),
    )


def body(tokens: int, **more: Any) -> bytes:
    """A request as a sweep sends it to a server that counts as it goes."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"model": MODEL_NAME, "prompt": _PROMPT, "max_tokens": tokens, "ignore_eos": True}
    return orjson.dumps({**fields, "stream": True, "stream_options": options, **more})


def _run(plan: Any, out: Path) -> LoadResult:
    with LoadProcess() as load:
        load.start(plan, out)
        while not load.finished:
            load.poll()
            time.sleep(_POLL_S)
        return load.wait(120)
