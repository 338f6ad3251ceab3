"""Sampling a device on a grid of its own, in a thread of its own, so that a driver call that hangs holds up nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from harness.telemetry.nvml_calls import Running
from harness.telemetry.sample import Sample
from results.clock import NS_PER_S, now_ns

Write = Callable[[list[Sample]], None]
MISSED = "gpu.missed_ticks"
HANGS = "gpu.call_hangs"
_HANG_S = 1.0
_WATCH_S = 0.5
# How long the end of sampling waits for a call that does not return. The process ends all the same.
_STOP_S = 0.5


class DeviceSampler(Protocol):
    """Reads devices. `running` is the call under way, if any (read from another thread)."""

    @property
    def source(self) -> str: ...

    @property
    def running(self) -> Running | None: ...

    def sample(self) -> list[Sample]: ...


class DeviceThread:
    """Owns the sampling thread and its watchdog; both are daemons, so neither keeps the process alive."""

    def __init__(self, open_sampler: Callable[[], DeviceSampler], source: str, interval_s: float, write: Write) -> None:
        self._open, self._source, self._step = open_sampler, source, int(interval_s * NS_PER_S)
        self._write, self._stop = write, threading.Event()
        self._sampler: DeviceSampler | None = None
        self._began = now_ns()
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._watch = threading.Thread(target=self._look, name="device-watchdog", daemon=True)

    def start(self) -> None:
        self._began = now_ns()
        self._thread.start()
        self._watch.start()

    def stop(self) -> None:
        """End sampling with a last reading; a call that hangs is left behind."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            self._sampler = self._open()
            self._keep_sampling(self._sampler)
        except Exception as error:  # whatever it was, the cell's samples must say why there are none
            self._tell_absent(str(error) or type(error).__name__)

    def _keep_sampling(self, sampler: DeviceSampler) -> None:
        due = now_ns()
        while True:
            self._write(sampler.sample())
            due = self._next(due, now_ns())
            if self._stop.wait((due - now_ns()) / NS_PER_S):
                self._write(sampler.sample())
                return

    def _next(self, due: int, now: int) -> int:
        """The next instant of the grid; those that a long reading ran over are counted, not caught up with."""
        missed = max(0, (now - due) // self._step)
        if missed:
            self._write([Sample(self._source, MISSED, due, now, float(missed))])
        return due + (missed + 1) * self._step

    def _tell_absent(self, why: str) -> None:
        while True:
            self._write([Sample.gauge(self._source, "gpu.telemetry", None, why)])
            if self._stop.wait(1.0):
                return

    def _look(self) -> None:
        """Say so while a call does not return: a cell that runs meanwhile must find the reason, not silence."""
        while not self._stop.wait(_WATCH_S):
            opening = Running("opening it", self._began) if self._thread.is_alive() else None
            running = self._sampler.running if self._sampler is not None else opening
            if running is not None and running.seconds > _HANG_S:
                words = f"{running.call} has not returned for {running.seconds:.0f} s"
                self._write([Sample.gauge(self._source, HANGS, None, words)])
