"""What a running sweep shows: a few live lines on a terminal, a calm line an event elsewhere, nothing when quiet."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.cli.live_view import Now, cells_text, clock, describe, view
from harness.eta import CostSoFar
from harness.experiment import Cell
from harness.observer import CellProgress, Observer
from results.report_shapes import workload_info


def observer_for(console: Console, quiet: bool) -> Observer:
    """The listener that suits the output: quiet, terminal, or plain text (also where colours are forced into a pipe)."""
    if quiet:
        return Observer()
    moves = console.is_terminal and console.file.isatty() and not console.is_dumb_terminal
    return LiveObserver(console) if moves else LineObserver(console)


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


# Seconds between lines that say in a log that a server is not ready yet.
_STILL_S = 30.0


class LineObserver(Observer):
    """For logs and pipes: one line an event, nothing that moves. A long start says every half minute that it goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = 0
        self._still_s = _STILL_S

    def run_started(self, planned: Sequence[Cell], committed: Collection[str]) -> None:
        self._total, self._done = len(planned), len(committed)
        if committed:
            self._print(f"{self._done} of {self._total} cells are committed already and are not run again.")

    def session_starting(self, engine: str, block: int, log: str) -> None:
        self._still_s = _STILL_S
        self._print(
            f"Starting {engine} (block {block}, log {log})" if log else f"Attaching to {engine} (block {block})"
        )

    def session_waiting(self, engine: str, elapsed_s: float, limit_s: float, phase: str) -> None:
        if elapsed_s >= self._still_s:
            self._still_s = elapsed_s + _STILL_S
            far = f" ({phase})" if phase else ""
            self._print(f"{engine} is not ready yet after {elapsed_s:.0f} s of at most {limit_s:,.0f} s{far}", "dim")

    def session_ready(self, engine: str, elapsed_s: float) -> None:
        self._print(f"{engine} is ready after {elapsed_s:.1f} s", "dim")

    def cell_done(self, cell: Cell, summary: Mapping[str, Any]) -> None:
        self._done += 1
        style = {"VALID": "", "SUSPECT": "yellow", "INVALID": "red"}.get(str(summary.get("verdict")), "")
        self._print(f"[{cells_text(self._done, self._total)}] {describe_result(cell, summary)}", style)

    def cell_skipped(self, entry: Mapping[str, Any]) -> None:
        self._done += 1
        load, why = entry["load"], entry["skipped"]["words"]
        what = f"{entry['engine']} · {load['mode']} {load['value']} · {workload_info(entry['workload']).label}"
        self._print(f"[{cells_text(self._done, self._total)}] {what}: left out, {why}", "yellow")

    def engine_failed(self, engine: str, message: str) -> None:
        # The whole of it, with the next step, stands at the end, where nothing scrolls it away.
        self._print(f"{engine} is left out from here on: {message.split('. ')[0].rstrip('.')}.", "red")

    def run_interrupted(self) -> None:
        self._print("Interrupted: stopping what runs.", "yellow")

    def _print(self, text: str, style: str = "") -> None:
        # One line an event in a file, whatever its length; on a terminal broken between words.
        self._console.print(Text(text, style=style), soft_wrap=not self._console.is_terminal)


class LiveObserver(LineObserver):
    """For a terminal: finished cells scroll by above a few lines that tell what is going on now."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._cost = CostSoFar()
        self._now = Now()
        self._live = self._new_live()

    def run_started(self, planned: Sequence[Cell], committed: Collection[str]) -> None:
        super().run_started(planned, committed)
        self._cost = CostSoFar(planned, committed)
        sessions = {(c.engine.label, c.block) for c in planned if c.id not in committed}
        self._now = Now(cells=self._total, done=self._done, sessions=len(sessions), since=time.monotonic())

    def session_starting(self, engine: str, block: int, log: str) -> None:
        self._cost.session_began(engine, block, time.monotonic())
        self._now.session += 1
        self._now.idle(f"starting {engine}" if log else f"attaching to {engine}", log)
        if not self._live.is_started:
            # One that was stopped remembers its height, and would wipe that much of what was printed since.
            self._live = self._new_live()
            self._live.start()

    def session_waiting(self, engine: str, elapsed_s: float, limit_s: float, phase: str) -> None:
        parts = [f"{clock(elapsed_s)} of at most {clock(limit_s)}", *([phase] if phase else [])]
        self._now.idle(f"waiting for {engine} to be ready · {' · '.join(parts)}", self._now.log)

    def session_ended(self, engine: str) -> None:
        self._cost.session_ended(time.monotonic())
        self._live.stop()

    def run_ended(self) -> None:
        self._live.stop()  # of a start that was interrupted no end is told

    def engine_failed(self, engine: str, message: str) -> None:
        self._live.stop()
        super().engine_failed(engine, message)

    def cell_started(self, cell: Cell) -> None:
        self._cost.cell_began(time.monotonic())
        self._now.idle(f"{describe(cell)} · warming up")

    def cell_progress(self, cell: Cell, progress: CellProgress) -> None:
        self._now.running(describe(cell), progress)

    def cell_done(self, cell: Cell, summary: Mapping[str, Any]) -> None:
        self._cost.cell_ended(cell, time.monotonic())
        super().cell_done(cell, summary)
        self._now.done = self._done

    def cell_skipped(self, entry: Mapping[str, Any]) -> None:
        self._cost.left_out(str(entry.get("id")))
        super().cell_skipped(entry)
        self._now.done = self._done

    def _new_live(self) -> Live:
        """Not started before there is something to show; drawn anew four times a second, so that the clocks go on."""
        return Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=self._view)

    def _view(self) -> Text:
        at = time.monotonic()
        return view(self._now, at, self._cost.seconds_left(at), self._console.width)
