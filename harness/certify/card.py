"""The error card of a load tool: what it reports beside the truth. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.certify.reported import Figures, Reported
from harness.certify.tool import ToolRun
from harness.truth.stamps import Truth


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `error` is reported minus true; None where either is not known."""

    name: str
    unit: str
    true: float | None
    reported: float | None

    @property
    def error(self) -> float | None:
        return None if self.true is None or self.reported is None else self.reported - self.true

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True, slots=True)
class Card:
    """A tool's errors. `others`: requests beside those that it reports; `late_ms_p99`: the server's own lateness."""

    reported: Reported
    version: str | None
    rows: tuple[Row, ...]
    tool: ToolRun
    others: int
    late_ms_p99: float | None

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    @property
    def cpu_us_per_token(self) -> float | None:
        """CPU of the tool's processes over the true number of tokens (start-up and report included)."""
        tokens = self.row("output tokens").true
        return self.tool.cpu_s * 1e6 / tokens if tokens else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "tool": self.reported.tool,
            "version": self.version,
            "command": self.tool.command,
            "figures": {row.name: row.to_dict() for row in self.rows},
            "cpu_s": self.tool.cpu_s,
            "cpu_us_per_token": self.cpu_us_per_token,
            "wall_s": self.tool.wall_s,
            "requests_not_measured": self.others,
            "server_late_ms_p99": self.late_ms_p99,
            "tpot_called": self.reported.tpot_called,
            "note": self.reported.note,
        }


def error_card(truth: Truth, reported: Reported, tool: ToolRun, version: str | None) -> Card:
    """The tool's figures against those of the requests it measured: those of its ids, else the last so many that were
    answered in full (what a tool sends beside them, it sends before, to warm up)."""
    whole = truth.whole
    if reported.id_prefix is not None:
        measured = whole.take(np.flatnonzero([str(name).startswith(reported.id_prefix) for name in whole.request_id]))
    else:
        measured = whole.last(reported.requests) if reported.requests else whole
    seconds = measured.duration_s()
    tokens = int(measured.output_tokens.sum())
    rows = (
        *_distribution("TTFT", measured.ttft_ms(), reported.ttft_ms),
        *_distribution("TPOT", measured.tpot_ms(), reported.tpot_ms),
        Row("output tokens/s", "tokens/s", tokens / seconds if seconds else None, reported.output_tokens_per_s),
        Row("output tokens", "tokens", tokens, reported.output_tokens),
        Row("requests", "requests", len(measured), reported.requests),
    )
    late = measured.late_ms()
    return Card(
        reported=reported,
        version=version or reported.version,
        rows=rows,
        tool=tool,
        others=len(whole) - len(measured),
        late_ms_p99=float(np.quantile(late, 0.99)) if len(late) else None,
    )


def _distribution(name: str, true_ms: Any, reported: Figures) -> Sequence[Row]:
    p50, p99 = (float(v) for v in np.quantile(true_ms, (0.5, 0.99))) if len(true_ms) else (None, None)
    mean = float(np.mean(true_ms)) if len(true_ms) else None
    return (
        Row(f"{name} mean", "ms", mean, reported.mean),
        Row(f"{name} p50", "ms", p50, reported.p50),
        Row(f"{name} p99", "ms", p99, reported.p99),
    )
