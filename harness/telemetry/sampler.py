"""The sampler's own process: `python -m harness.telemetry.sampler`, its configuration as one JSON line on stdin.

It lives as long as a session and appends rows to a file as it goes, so that whatever kills it, or the harness, what was
sampled before is there. The end of stdin means: stop. Host, server and device are sampled by a thread each, so that a server
or a driver that does not answer leaves no hole in the others' series.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from backends.base import MetricRule
from harness.child import die_with_parent
from harness.telemetry.device_config import DeviceConfig, device_thread
from harness.telemetry.host import HostSampler
from harness.telemetry.sample import Sample
from harness.telemetry.server import ServerSampler
from results.clock import NS_PER_S, now_ns


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """`server` is null where the server offers no metrics. `interval_s` is the aim; a slow read delays the next."""

    out: str
    interval_s: float
    root_pid: int | None
    url: str | None = None
    metrics_path: str | None = None
    rules: tuple[tuple[str, tuple[str, ...]], ...] = ()
    key_env: str | None = None
    device: DeviceConfig | None = None
    # Import path of what reads the metrics page, where that is no Prometheus text.
    reader: str | None = None
    # The process that answers requests, where it does so in its main thread.
    api_pid: int | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SamplerConfig:
        rules = tuple((neutral, tuple(names)) for neutral, names in data.pop("rules", ()))
        device = data.pop("device", None)
        return cls(rules=rules, device=DeviceConfig.from_dict(device) if device else None, **data)


class _Writer:
    """Appends samples as JSON lines, whole lines only, from several threads."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._lock = file, threading.Lock()

    def write(self, samples: list[Sample]) -> None:
        text = "".join(json.dumps(s.row(), separators=(",", ":")) + "\n" for s in samples)
        with self._lock:
            self._file.write(text)
            self._file.flush()


def sample_until(stop: threading.Event, interval_s: float, read: Callable[[], list[Sample]], writer: _Writer) -> None:
    """Read on an absolute timeline (no drift); after a read that ran over, skip to the next due instant."""
    step = int(interval_s * NS_PER_S)
    due = now_ns()
    while True:
        writer.write(read())
        due = max(due + step, now_ns())
        if stop.wait((due - now_ns()) / NS_PER_S):
            writer.write(read())
            return


def main() -> int:
    """Sample until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides; Ctrl-C reaches the whole foreground group.
    die_with_parent()
    config = SamplerConfig.from_json(json.loads(sys.stdin.readline()))
    stop = threading.Event()
    with open(config.out, "a", encoding="utf-8") as file:
        writer = _Writer(file)
        readers = [HostSampler(config.root_pid, config.api_pid).sample]
        if config.url and config.metrics_path and config.rules:
            rules = [MetricRule(neutral, names) for neutral, names in config.rules]
            timeout_s = max(1.0, config.interval_s)
            server = ServerSampler(config.url, config.metrics_path, rules, config.key_env, timeout_s, config.reader)
            readers.append(server.sample)
        threads = [
            threading.Thread(target=sample_until, args=(stop, config.interval_s, read, writer), daemon=True)
            for read in readers
        ]
        for thread in threads:
            thread.start()
        device = device_thread(config.device, config.root_pid, writer.write) if config.device else None
        if device is not None:
            device.start()
        while sys.stdin.readline():
            pass
        stop.set()
        if device is not None:
            device.stop()
        for thread in threads:
            thread.join(timeout=5)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
