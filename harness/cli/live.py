"""What a running sweep shows: one live line on a terminal, a calm line an event elsewhere, nothing when quiet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.experiment import Cell
from harness.observer import CellProgress, Observer


def observer_for(console: Console, quiet: bool) -> Observer:
    """The listener that suits the output: quiet, terminal, or plain text."""
    if quiet:
        return Observer()
    return LiveObserver(console) if console.is_terminal else LineObserver(console)


def describe(cell: Cell) -> str:
    """A cell in a few words."""
    return f"{cell.engine.label} · {cell.load.mode} {cell.load.value} · {cell.workload.label}"


def describe_result(cell: Cell, summary: Mapping[str, Any]) -> str:
    """A measured cell on one line: throughput, TTFT, TPOT, verdict."""
    whole = summary.get("whole") or {}
    parts = [
        f"{_number(whole.get('output_tokens_per_s'))} tok/s",
        f"TTFT {_number((whole.get('ttft_ms') or {}).get('p50'))} ms",
        f"TPOT {_number((whole.get('tpot_ms') or {}).get('p50'))} ms",
        str(summary.get("verdict")),
    ]
    return f"{describe(cell)}: {', '.join(parts)}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class _Counting(Observer):
    """Counts cells and estimates the time left from what cells (with their share of start-ups) have cost so far."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = self._measured = 0
        self._start = time.monotonic()

    def run_started(self, total: int, already_done: int) -> None:
        self._total, self._done, self._start = total, already_done, time.monotonic()
        if already_done:
            self._console.print(f"{already_done} of {total} cells are committed already and are not run again.")

    def cell_done(self, cell: Cell, summary: Mapping[str, Any]) -> None:
        self._done += 1
        self._measured += 1
        style = {"VALID": "", "SUSPECT": "yellow", "INVALID": "red"}.get(str(summary.get("verdict")), "")
        self._print(f"[{self._done}/{self._total}] {describe_result(cell, summary)}", style)

    def engine_failed(self, engine: str, message: str) -> None:
        self._print(message, "red")

    def run_interrupted(self) -> None:
        self._print("Interrupted: stopping what runs.", "yellow")

    def eta(self) -> str:
        if not self._measured:
            return "ETA after the first cell"
        left = (self._total - self._done) * (time.monotonic() - self._start) / self._measured
        return f"ETA {clock(left)}"

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


class LineObserver(_Counting):
    """For logs and pipes: one line an event, nothing that moves."""

    def session_starting(self, engine: str, block: int, log: str) -> None:
        self._print(
            f"Starting {engine} (block {block}, log {log})" if log else f"Attaching to {engine} (block {block})"
        )

    def session_ready(self, engine: str, elapsed_s: float) -> None:
        self._print(f"{engine} is ready after {elapsed_s:.1f} s")


class LiveObserver(_Counting):
    """For a terminal: finished cells scroll by above one line that tells what is going on now."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=5, transient=True)

    def session_starting(self, engine: str, block: int, log: str) -> None:
        self._live.start()
        self._show(f"starting {engine} (log {log})" if log else f"attaching to {engine}")

    def session_waiting(self, engine: str, elapsed_s: float) -> None:
        self._show(f"waiting for {engine} to be ready · {clock(elapsed_s)}")

    def session_ready(self, engine: str, elapsed_s: float) -> None:
        self._print(f"{engine} is ready after {elapsed_s:.1f} s", "dim")

    def session_ended(self, engine: str) -> None:
        self._live.stop()

    def engine_failed(self, engine: str, message: str) -> None:
        self._live.stop()
        super().engine_failed(engine, message)

    def cell_started(self, cell: Cell) -> None:
        self._show(f"{describe(cell)} · warming up")

    def cell_progress(self, cell: Cell, progress: CellProgress) -> None:
        parts = [describe(cell), f"{progress.done}/{progress.total} requests", f"{progress.in_flight} in flight"]
        if progress.failed:
            parts.append(f"{progress.failed} failed")
        # Tokens are counted when their request has ended: before that there is no rate to show.
        if progress.tokens and progress.elapsed_s > 0:
            parts.append(f"{progress.tokens / progress.elapsed_s:,.0f} tok/s")
        usage = progress.server.get("kv_usage")
        if usage is not None:
            parts.append(f"KV {usage:.0%}")
        self._show(" · ".join(parts))

    def _show(self, what: str) -> None:
        # Where we are and how long it takes come first: a narrow terminal cuts the end.
        where = f"cell {min(self._done + 1, self._total)}/{self._total} · {self.eta()}"
        self._live.update(Text(f"{where} · {what}", style="cyan", overflow="ellipsis", no_wrap=True))

    def _print(self, text: str, style: str = "") -> None:
        self._live.console.print(Text(text, style=style), soft_wrap=True)
