"""What a cell's warm-up was: kept with the cell, since its requests are in no figure and its events are not kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from harness.load.process import LoadResult
from results.events import read_requests
from results.schema import Outcome
from results.scope import span_ms


@dataclass(frozen=True, slots=True)
class WarmUp:
    """`e2e_ms_p50`: the median time from the send to the last token of those answered in full, None where none was.
    `ended`: when it was through (monotonic ns). `why`: why nothing was recorded of it, None where something was."""

    requests: int
    ok: int
    e2e_ms_p50: float | None
    ended: int
    why: str | None = None

    @classmethod
    def of(cls, result: LoadResult, folder: Path, faults: list[str]) -> Self:
        """From the event files in `folder` and what its worker said; `faults`: the codes of what went wrong so far."""
        if not result.issued:
            why = f"nothing was recorded of it ({', '.join(dict.fromkeys(faults)) or 'no request was sent'})"
            return cls(0, 0, None, result.ended, why)
        requests = read_requests(folder)
        ok = requests.outcome == str(Outcome.OK)
        took = span_ms(requests.sent, requests.last_token, ok)
        took = took[np.isfinite(took)]
        return cls(len(requests), int(ok.sum()), float(np.median(took)) if len(took) else None, result.ended)

    def client_facts(self, load: LoadResult) -> dict[str, Any]:
        """As they stand under `client` in cell.json, beside those of `load`, which came after it."""
        if self.why is not None:
            return {"warm_up": None, "warm_up_why": self.why}
        before = self.ended <= load.started if load.issued else None
        facts = {"requests": self.requests, "ok": self.ok, "e2e_ms_p50": self.e2e_ms_p50}
        return {"warm_up": {**facts, "ended_before_load": before}, "warm_up_why": None}
