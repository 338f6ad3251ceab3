"""The lines of the live view, made from where a run stands: pure, so that they can be looked at without a terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.text import Text

from harness.experiment import Cell
from harness.observer import CellProgress
from results.report_format import size

# A rate is read over so long: shorter is nervous, longer is late.
_RATE_S = 3.0
_BAR = 20


@dataclass(slots=True)
class Now:
    """Where a run stands. `since` is when it began, on the clock that the view is drawn by."""

    cells: int = 0
    done: int = 0
    sessions: int = 0
    session: int = 0
    since: float = 0.0
    what: str = ""
    log: str = ""
    progress: CellProgress | None = None
    # (elapsed s, tokens that the server has generated) of the last few seconds of the cell
    tokens: deque[tuple[float, float]] = field(default_factory=deque)

    def idle(self, what: str, log: str = "") -> None:
        """Something goes on that sends no load; `log` is where it can be read."""
        self.what, self.log, self.progress = what, log, None
        self.tokens.clear()

    def running(self, what: str, progress: CellProgress) -> None:
        """A cell has got so far."""
        self.what, self.log, self.progress = what, "", progress
        total = progress.server.get("generation_tokens_total")
        if total is not None and (not self.tokens or self.tokens[-1][1] != total):
            self.tokens.append((progress.elapsed_s, total))
        while len(self.tokens) > 2 and self.tokens[-1][0] - self.tokens[0][0] > _RATE_S:
            self.tokens.popleft()

    def rate(self) -> float | None:
        """Output tokens a second: by the server's counter, else by the requests that have ended; None before there are any."""
        if self.progress is None:
            return None
        if len(self.tokens) > 1:
            (first, before), (last, after) = self.tokens[0], self.tokens[-1]
            return (after - before) / (last - first) if last > first else None
        elapsed = self.progress.elapsed_s
        return self.progress.tokens / elapsed if self.progress.tokens and elapsed > 0 else None


def view(now: Now, at: float, seconds_left: float | None, width: int) -> Text:
    """Where the run is, what it does, how fast, and the device where one is told of. No line is wider than `width`."""
    left = "ETA after a cell" if seconds_left is None else f"ETA {clock(seconds_left)}"
    if now.done >= now.cells:
        left = "no ETA: it depends on the answers"
    where = [f"cell {cells_text(now.done + 1, now.cells)}"]
    if now.sessions:
        where.append(f"session {cells_text(now.session, now.sessions)}")
    where += [f"{clock(at - now.since)} gone", left]
    words = " · ".join(where)
    # The bar is shortened before a word is cut.
    lines = [
        (f"{bar(_share(now), max(0, min(_BAR, width - len(words) - 1)))} {words}".lstrip(), "cyan"),
        (now.what, ""),
    ]
    if now.log:
        room = width - len("log ")
        # Its end tells which session it is of.
        lines.append((f"log {now.log if len(now.log) <= room else '…' + now.log[1 - room :]}", "dim"))
    if now.progress is not None:
        lines.append((_speed(now, now.progress), ""))
        lines += [(device_line(name, found), "dim") for name, found in now.progress.devices.items()]
    shown = [Text(words, style=style) for words, style in lines]
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(shown)


def _share(now: Now) -> float:
    """Of the run's cells, the one that runs counted by its requests."""
    inside = 0.0
    if now.progress is not None and now.progress.total:
        inside = min(1.0, now.progress.done / now.progress.total)
    return min(1.0, (now.done + inside) / now.cells) if now.cells else 0.0


def bar(share: float, width: int = _BAR) -> str:
    """`━━━━━━────`."""
    full = round(share * width)
    return "━" * full + "─" * (width - full)


def _speed(now: Now, progress: CellProgress) -> str:
    of = f"/{progress.total}" if progress.total else ""
    rate = now.rate()
    parts = [
        "– tok/s" if rate is None else f"{rate:,.0f} tok/s",
        f"{progress.done}{of} requests",
        f"{progress.in_flight} in flight",
        f"{progress.failed} failed",
    ]
    if (usage := progress.server.get("kv_usage")) is not None:
        parts.append(f"KV {usage:.0%}")
    return " · ".join(parts)


def device_line(name: str, found: Mapping[str, float | None]) -> str:
    """`GPU-1f3a: 97 % busy · 412 W · 1,980 MHz · 61 C · 40.1 GiB`, of what is known."""
    power = found.get("gpu.power_instant_w") or found.get("gpu.power_average_w")
    shown = (
        ("{:.0%} busy", found.get("gpu.busy")),
        ("{:.0%} of the memory bandwidth", found.get("gpu.dram_active")),
        ("{:.0f} W", power),
        ("{:,.0f} MHz", found.get("gpu.sm_clock_mhz")),
        ("{:.0f} C", found.get("gpu.temperature_c")),
    )
    parts = [words.format(value) for words, value in shown if value is not None]
    if (used := found.get("gpu.memory_used_bytes")) is not None:
        parts.append(size(used))
    return f"{name[:12]}: {' · '.join(parts) if parts else 'nothing read yet'}"


def cells_text(number: int, total: int) -> str:
    """`3/12`; beyond what was known to come (a search, blocks until intervals are narrow) just `13`."""
    return f"{number}/{total}" if number <= total else f"{number}"


def clock(seconds: float) -> str:
    """Minutes and seconds; hours where there are any."""
    whole = int(max(0.0, seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def describe(cell: Cell) -> str:
    """A cell in a few words."""
    value = "" if cell.load.value is None else f" {cell.load.value:g}"
    return f"{cell.engine.label} · {cell.load.mode}{value} · {cell.workload.label}"
