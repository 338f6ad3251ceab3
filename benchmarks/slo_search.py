"""How often is an end of an SLO search on the wrong side of the limit, and how near does it come to it?

    python benchmarks/slo_search.py [--searches 200] [--record]

Simulated engines: the share of requests that keep the limit falls with load, each session has a capacity of its own, and
requests that follow each other are alike. The search is the tool's own planner, without a budget. Its lower end, the highest load
that it says is met, is false where it has, over all sessions, a smaller share than was demanded; its upper end, the lowest load
that it says is not met, where it has at least that share; both whatever the verdict. Beside them stand both ends by the true
limit, the load at which the share over all sessions is the one demanded. `--record` writes the table under benchmarks/recorded/.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.special import expit, logit, ndtri

from harness.experiment import Cell, Experiment
from harness.planner_slo import SloPlanner
from results.slo import MET, share_interval, verdict
from results.slo_points import slo_points

ROOT = Path(__file__).resolve().parents[1]
TOP = 64.0


@dataclass(frozen=True, slots=True)
class Engine:
    """`steepness`: how fast the odds of keeping the limit fall with load; `spread`: by how much the capacities of its sessions
    differ (standard deviation of their log); `alike`: lag-1 correlation of requests; `needed`: the share demanded."""

    steepness: float
    spread: float
    alike: float
    needed: float

    def share(self, load: float, limit: float, session: float) -> float:
        """Of requests that keep the limit at a load, in a session whose capacity is exp(session) times the usual one."""
        return float(expit(logit(self.needed) + self.steepness * (math.log(limit / load) + session)))

    def true_share(self, load: float, limit: float) -> float:
        """Over all sessions."""
        quantiles = ndtri((np.arange(201) + 0.5) / 201)
        return float(np.mean([self.share(load, limit, self.spread * q) for q in quantiles]))

    def true_limit(self, limit: float) -> float:
        """The load at which the share over all sessions is the one demanded."""
        return float(brentq(lambda load: self.true_share(load, limit) - self.needed, limit / 4, limit * 4, rtol=1e-3))


@dataclass(frozen=True, slots=True)
class Search:
    """What one search said: its bracket by the true limit (None: no such load), and the cells it took."""

    verdict: str
    met: float | None
    failed: float | None
    cells: int

    @property
    def false_met(self) -> bool:
        return self.met is not None and self.met > 1

    @property
    def false_failed(self) -> bool:
        return self.failed is not None and self.failed <= 1


def experiment(engine: Engine, requests: int) -> Experiment:
    length = {"dist": "fixed", "tokens": 8}
    return Experiment.model_validate(
        {
            "model": "m",
            "engines": [{"label": "e", "backend": "reference"}],
            "workloads": [{"type": "random", "input_len": length, "output_len": length}],
            "loads": [{"mode": "rate", "rate": rate, "requests": requests} for rate in (1.0, TOP)],
            "slo": {"objectives": [f"ttft_ms.p{100 * engine.needed:g}<=1"]},
        }
    )


def search(engine: Engine, requests: int, draw: np.random.Generator) -> Search:
    """One search for a limit somewhere in the range."""
    limit = math.exp(draw.uniform(math.log(1.5), math.log(0.8 * TOP)))
    sessions: dict[int, float] = {}
    results: dict[str, Mapping[str, Any]] = {}
    planner = SloPlanner(experiment(engine, requests))
    while (cell := planner.next_cell(results)) is not None:
        session = sessions.setdefault(cell.block, float(draw.normal(0, engine.spread)))
        results[cell.id] = measured(cell, engine, limit, session, draw)
    (point,) = slo_points(results.values(), {"rate": TOP})
    truth = engine.true_limit(limit)
    met, failed = (None if load is None else load / truth for load in (point.highest, point.failed))
    return Search(point.verdict, met, failed, len(results))


def measured(cell: Cell, engine: Engine, limit: float, session: float, draw: np.random.Generator) -> dict[str, Any]:
    """A cell as it stands in summary.json."""
    load, n = float(cell.load.value or 0), int(cell.load.expected_requests or 0)
    share = engine.share(load, limit, session)
    noise = draw.normal(size=n) * math.sqrt(1 - engine.alike**2)
    series, _ = lfilter([1.0], [1.0, -engine.alike], noise, zi=[engine.alike * float(draw.normal())])
    found = share_interval((series <= ndtri(share)).astype(np.float64))
    row = {
        "objective": "o",
        "needed": engine.needed,
        "share": found.estimate,
        "effective_n": found.effective_n,
        "met": verdict(found, engine.needed),
    }
    return {
        "id": cell.id,
        "engine": "e",
        "block": cell.block,
        "workload": cell.workload.model_dump(mode="json"),
        "load": {**cell.load.model_dump(mode="json"), "value": cell.load.value},
        "verdict": "VALID",
        "whole": {"output_tokens_per_s": load, "requests_per_s": load},
        "slo": {"met": row["met"], "joint": None, "objectives": [row]},
    }


def line(engine: Engine, requests: int, searches: int, seed: int) -> str:
    draw = np.random.default_rng([seed, round(100 * engine.spread), round(10 * engine.alike), round(engine.steepness)])
    found = [search(engine, requests, draw) for _ in range(searches)]
    verdicts = Counter(one.verdict for one in found)
    false_met, false_failed = sum(one.false_met for one in found), sum(one.false_failed for one in found)
    cells = float(np.mean([one.cells for one in found]))
    met = _middle([one.met for one in found if one.met is not None])
    failed = _middle([one.failed for one in found if one.failed is not None])
    return (
        f"| {engine.needed:.0%} | {engine.steepness:g} | {engine.spread:.0%} | {engine.alike:g} | {requests} | "
        f"{verdicts[MET] / searches:.0%} | {false_met / searches:.1%} | {false_failed / searches:.1%} | {met} | {failed} | "
        f"{cells:.1f} |"
    )


def _middle(values: Sequence[float]) -> str:
    """Median and the middle four fifths."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)) if values else [math.nan] * 3
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    engines = [
        Engine(steepness, spread, alike, needed)
        for needed in (0.9, 0.99)
        for steepness in (5.0, 20.0)
        for spread, alike in ((0.0, 0.0), (0.0, 0.4), (0.03, 0.0), (0.05, 0.4), (0.1, 0.0))
    ]
    with ProcessPoolExecutor() as pool:
        made = [pool.submit(line, e, 300 if e.needed < 0.95 else 1200, asked.searches, asked.seed) for e in engines]
        lines = [
            "| share demanded | steepness | sessions differ by | requests alike | requests a cell | verdict met | false met | "
            "false not met | met / limit | not met / limit | cells |",
            f"|{' ---: |' * 11}",
        ]
        print("\n".join(lines))
        for one in made:
            lines.append(one.result())
            print(lines[-1], flush=True)
    text = "\n".join(lines)
    if asked.record:
        command = f"python benchmarks/slo_search.py --searches {asked.searches} --seed {asked.seed}"
        path = ROOT / "benchmarks" / "recorded" / f"slo-search-{datetime.now(UTC):%Y-%m-%d}.md"
        words = (
            "Simulated SLO searches without a budget. `verdict met`: a load met in five sessions, with one above it that is not met "
            "in five. `false met`: of all searches, those whose highest load that is met has, over all sessions, a smaller share than "
            "was demanded; `false not met`: those whose lowest load that is not met has at least that share. `met / limit` and "
            "`not met / limit`: these loads by the true limit; medians, with the middle four fifths of the searches."
        )
        path.write_text(f"# The error of an SLO search\n\n`{command}`\n\n{words}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
