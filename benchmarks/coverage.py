"""Do the intervals cover what they claim? Simulated blocks and series, and blocks and cells that were recorded.

    python benchmarks/coverage.py [--draws 4000] [--blocks tests/data/recorded_blocks.json] [--run RUN ...] [--record]

Each line is the share of draws whose interval holds the truth, beside the share of draws in which an interval was given at all
(the others were refused). Where the series itself does not keep the conditions of an interval (effective n of 20 or more,
autocorrelation of at most 0.7) the line says so and tells how often it was refused. 4,000 draws know a share of 95 % to
within 0.7 points. `--run` takes requests of long cells of runs: short stretches of a cell are held against the whole of it,
where the conditions of an interval hold for the whole. `--record` writes the table to benchmarks/recorded/.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from scipy.special import ndtri

from results.comparison import FASTER, SLOWER, judge
from results.events import Floats, read_requests
from results.precision import LOOKED_AT
from results.scope import span_ms, tpot_ms
from results.slo import share_interval
from results.statistics import (
    BLOCKS_FOR_A_VERDICT,
    CONFIDENCE,
    MOST_AUTOCORRELATION,
    Interval,
    autocorrelation,
    blocks_needed,
    mean_interval,
    paired,
    unpaired,
)
from results.statistics_percentiles import clustered_intervals, least_effective, percentile_interval
from results.statistics_series import dependence, growth, integrated_time, scores, series_mean, trend

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests" / "data" / "recorded_blocks.json"
METRIC = "output_tokens_per_s"
SLOWDOWN, CERTAIN = 0.05, 0.99


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; `nominal` is what the share should be (None: it is told for itself), `wrong` the share of all draws
    that were given an interval without the truth in it (None: the line is not of intervals)."""

    what: str
    conditions: str
    nominal: float | None
    share: float
    given: float
    draws: int
    wrong: float | None = None

    @property
    def off(self) -> bool:
        """More than 2 points from nominal, where intervals were given in at least one of ten draws."""
        return self.nominal is not None and self.given >= 0.1 and abs(self.share - self.nominal) > 0.02


def covered(what: str, conditions: str, found: Sequence[Interval], truth: float) -> Line:
    known = [i for i in found if i.known]
    inside = sum(i.holds(truth) for i in known)
    share, of = inside / len(known) if known else math.nan, max(len(found), 1)
    confidence = found[0].confidence if found else 0.95
    return Line(what, conditions, confidence, share, len(known) / of, len(found), (len(known) - inside) / of)


def autoregressive(draw: np.random.Generator, phi: float, n: int, count: int) -> Floats:
    noise = draw.normal(size=(count, n))
    out = np.empty_like(noise)
    out[:, 0] = noise[:, 0]
    for i in range(1, n):
        out[:, i] = phi * out[:, i - 1] + math.sqrt(1 - phi * phi) * noise[:, i]
    return out


def blocks(draw: np.random.Generator, draws: int) -> Iterator[Line]:
    """Paired and unpaired blocks: what blocks share is five times what is their own."""
    shapes: dict[str, Callable[[tuple[int, int]], Floats]] = {
        "normal": lambda size: draw.normal(size=size),
        "skewed": lambda size: (draw.gamma(9, size=size) - 9) / 3,
        "long tails": lambda size: draw.standard_t(5, size=size),
    }
    for shape, noise in shapes.items():
        for n in (3, 5, 6, 10, 20):
            for confidence in (0.95, 0.99):
                own, shared = noise((draws, n)), draw.normal(0, 0.1, (draws, n))
                found = [
                    paired(np.exp(s).tolist(), np.exp(s + 0.1 + 0.02 * o).tolist(), confidence)
                    for s, o in zip(shared, own, strict=True)
                ]
                yield covered("ratio of blocks, paired", f"{shape}, {n} blocks, {confidence:.0%}", found, math.exp(0.1))
    for n, m, wider in ((5, 5, 1.0), (5, 10, 3.0), (10, 10, 2.0)):
        a, b = draw.normal(0, 0.02, (draws, n)), draw.normal(0.1, 0.02 * wider, (draws, m))
        found = [unpaired(np.exp(x).tolist(), np.exp(y).tolist()) for x, y in zip(a, b, strict=True)]
        yield covered("ratio of blocks, unpaired", f"{n} and {m} blocks, spread x{wider:g}", found, math.exp(0.1))
    for n in (3, 4, 5, 6):
        x = draw.normal(size=(draws, n))
        means = x[:, draw.integers(0, n, (500, n))].mean(axis=2)
        low, high = np.quantile(means, (0.025, 0.975), axis=1)
        inside = float(np.mean((low <= 0) & (high >= 0)))
        yield Line("bootstrap over blocks (not used)", f"normal, {n} blocks, 95%", None, inside, 1.0, draws)


def series(draw: np.random.Generator, draws: int) -> Iterator[Line]:
    """Series whose true effective n is at least what the interval needs, phi at most 0.7."""
    for phi in (0.0, 0.3, 0.5, 0.6, 0.7):
        factor = (1 + phi) / (1 - phi)
        for times in (1.3, 2, 5):
            n = math.ceil(20 * factor * times)
            x = autoregressive(draw, phi, n, draws)
            at = f"phi {phi}, n {n}"
            yield covered("mean of a series", at, [series_mean(row) for row in x], 0.0)
            yield covered("trend of a series", at, [trend(row) for row in x], 0.0)
            for percent in (50, 90, 95, 99):
                long = math.ceil(least_effective(percent) * factor * times)
                if long > 3000 or (percent > 90 and times > 2):
                    continue
                y = np.exp(autoregressive(draw, phi, long, draws))
                truth = math.exp(float(ndtri(percent / 100)))
                found = [percentile_interval(row, percent) for row in y]
                yield covered(f"p{percent} of a series", f"phi {phi}, n {long}", found, truth)


def steps(draw: np.random.Generator, draws: int) -> Iterator[Line]:
    """Gaps that all streams of a batch share, step by step."""
    for streams, phi, percent, n in (
        (8, 0.0, 50, 60),
        (8, 0.0, 90, 60),
        (32, 0.0, 99, 500),
        (8, 0.5, 90, 200),
        (64, 0.5, 50, 100),
    ):
        truth = math.exp(float(ndtri(percent / 100)))
        found = []
        for row in autoregressive(draw, phi, n, draws):
            # Streams come and go, so steps differ in how many they serve.
            serves = draw.integers(max(1, streams // 2), streams + 1, n)
            gaps = np.repeat(np.exp(row), serves)
            found.append(clustered_intervals(gaps, np.repeat(np.arange(n), serves), [percent])[percent])
        yield covered(f"p{percent} of gaps by step", f"{streams} streams, phi {phi}, {n} steps", found, truth)


def outside(draw: np.random.Generator, draws: int) -> Iterator[Line]:
    """Series that do not keep the conditions: how often an interval is given all the same, and how often a wrong one."""
    for phi, n in (
        (0.75, 300),
        (0.8, 200),
        (0.8, 1000),
        (0.9, 400),
        (0.95, 2000),
        (0.5, 36),
        (0.5, 48),
        (0.3, 24),
        (0.0, 18),
    ):
        x = autoregressive(draw, phi, n, draws)
        at = f"outside: phi {phi}, n {n}, effective {n * (1 - phi) / (1 + phi):.0f}"
        yield replace(covered("mean of a series", at, [series_mean(row) for row in x], 0.0), nominal=None)
        median = covered("p50 of a series", at, [percentile_interval(row, 50) for row in x], 0.0)
        yield replace(median, nominal=None)


def shares(draw: np.random.Generator, draws: int) -> Iterator[Line]:
    for share, n, phi in ((0.95, 100, 0.0), (0.9, 200, 0.0), (0.9, 200, 0.4), (0.99, 800, 0.3)):
        limit = float(ndtri(share))
        found = [share_interval((row <= limit).astype(float)) for row in autoregressive(draw, phi, n, draws)]
        yield covered("share of requests (Wilson)", f"{share:.0%}, phi {phi}, n {n}", found, share)


def looking(draw: np.random.Generator, draws: int) -> Iterator[Line]:
    """Blocks until the interval is narrow, looked at after each from the fifth on; and queues in balance."""
    for sd, target in ((0.03, 0.03), (0.05, 0.03), (0.05, 0.05)):
        found = []
        for _ in range(draws):
            logs = draw.normal(0, sd, 5).tolist()
            while (i := mean_interval(logs, LOOKED_AT)).half_width is not None and (i.half_width or 0) > math.log1p(
                target
            ):
                logs.append(float(draw.normal(0, sd)))
            found.append(replace(i, confidence=CONFIDENCE))
        yield covered("until the interval is narrow", f"spread {sd:.0%}, +-{target:.0%}", found, 0.0)
    queue, levels = np.zeros(draws), []
    for _ in range(60):
        queue = np.maximum(queue + draw.poisson(8, draws) - draw.poisson(10, draws), 0)
        levels.append(queue.copy())
    found = [growth(row, 0.99) for row in np.array(levels).T[:, 19:]]
    alarms = float(np.mean([(i.low or -1.0) > 0 for i in found]))
    yield Line("queue in balance called growing", "load 80 %, 41 readings", None, alarms, 1.0, draws)


def recorded(draw: np.random.Generator, document: dict[str, Any], pairs: int) -> Iterator[Line]:
    """Blocks that were recorded: simulated A/A pairs, and a slowdown of 5 % at the number of blocks that is asked for, by the
    spread of all of them and as the tool announces it from a pilot on."""
    for point in document["points"]:
        rates = np.array(point[METRIC])
        logs = np.log(rates)
        where = f"{point['load']}, {len(rates)} recorded blocks, spread {logs.std(ddof=1):.1%}"
        for n in (5, 8):
            found = [
                paired(rates[picked[:n]].tolist(), rates[picked[n:]].tolist(), 0.99)
                for picked in (draw.permutation(len(rates))[: 2 * n] for _ in range(pairs))
            ]
            alarms = [judge(METRIC, i, 0.0001, i.p)[0] in (FASTER, SLOWER) for i in found]
            yield Line(
                f"A/A false alarms of {pairs} at 1 %: {sum(alarms)}",
                f"{where}; {n} blocks",
                None,
                float(np.mean(alarms)),
                1.0,
                pairs,
            )
            inside = covered("ratio of recorded blocks", f"{where}; {n} blocks", found, 1.0)
            yield inside
        needed = blocks_needed(float(logs.std(ddof=1)) * math.sqrt(2), SLOWDOWN, CERTAIN)
        if needed is not None:
            hits = sum(slower_found(draw, logs, needed) for _ in range(pairs))
            what = f"5 % slowdown found at the {needed} blocks that the spread of all asks for"
            yield Line(what, where, None, hits / pairs, 1.0, pairs)
        for part, words in (
            (1.0, "as recorded"),
            (0.5, "scaled to a half of that"),
            (0.25, "scaled to a quarter of that"),
        ):
            yield from announced_lines(as_announced(draw, logs * part, pairs), f"{where}, {words}")


def announced_lines(found: Announced, where: str) -> Iterator[Line]:
    rule = f"at the blocks announced from a pilot on (median {found.usual:.0f})"
    yield Line(f"5 % slowdown found {rule}", where, None, found.hits / max(found.told, 1), found.share, found.draws)
    what = f"A/A false alarms of {found.told} at 1 % {rule}: {found.alarms}"
    yield Line(what, where, None, found.alarms / max(found.told, 1), found.share, found.draws)


def slower_found(draw: np.random.Generator, logs: Floats, blocks: int) -> bool:
    """Whether a slowdown is found between so many pairs of drawn blocks."""
    a, b = draw.choice(logs, (2, blocks))
    found = paired(np.exp(a).tolist(), ((1 - SLOWDOWN) * np.exp(b)).tolist(), CERTAIN)
    return judge(METRIC, found, 0.0001, found.p)[0] == SLOWER


@dataclass(frozen=True, slots=True)
class Announced:
    """Of so many draws: those that were told a number of blocks and came to it, in how many of these a slowdown was found, and
    in how many one where there is none; and the median number."""

    draws: int
    told: int
    hits: int
    alarms: int
    usual: float

    @property
    def share(self) -> float:
        return self.told / self.draws


def as_announced(draw: np.random.Generator, logs: Floats, draws: int) -> Announced:
    """What comes of doing as the tool says. A pilot of as few blocks as get a verdict announces a number; so many new ones are
    measured and asked again, and more are added until they announce no more than there are. What they show is judged then. Pairs
    of blocks are drawn from those of one engine; the other draws are told that no number of blocks up to 1,000 will do."""

    def asked(pairs: Floats) -> tuple[Interval, int]:
        a, b = np.exp(pairs).tolist()
        seen = paired(a, b, CERTAIN)
        return seen, blocks_needed(seen.sd or 0.0, SLOWDOWN, CERTAIN, df=seen.df) or 0

    counts: list[int] = []
    hits = alarms = 0
    for _ in range(draws):
        _, wanted = asked(draw.choice(logs, (2, BLOCKS_FOR_A_VERDICT)))
        drawn = np.empty((2, 0))
        while wanted > drawn.shape[1]:
            drawn = np.hstack([drawn, draw.choice(logs, (2, wanted - drawn.shape[1]))])
            seen, wanted = asked(drawn)
        if wanted:
            counts.append(drawn.shape[1])
            alarms += judge(METRIC, seen, 0.0001, seen.p)[0] in (FASTER, SLOWER)
            slower, _ = asked(drawn + np.array([[0.0], [math.log1p(-SLOWDOWN)]]))
            hits += judge(METRIC, slower, 0.0001, slower.p)[0] == SLOWER
    return Announced(draws, len(counts), hits, alarms, float(np.median(counts)) if counts else math.nan)


def resampled(draw: np.random.Generator, document: dict[str, Any], draws: int) -> Iterator[Line]:
    """Recorded requests in runs as they came, put together anew: what hangs together stays together, and the cell's own
    percentile is the truth of what is drawn. How much does hang together is read from a long series of such runs."""
    for name, recorded_values in document["requests"].items():
        values = np.array(recorded_values)

        def in_runs(run: int, length: int, values: Floats = values) -> Floats:
            starts = draw.integers(0, len(values) - run, length // run)
            return np.concatenate([values[s : s + run] for s in starts])

        for run, length in ((1, 100), (2, 200), (5, 400), (10, 800)):
            long = in_runs(run, 20_000)
            phi = autocorrelation(scores(long))
            for percent in (50, 90):
                truth = float(np.quantile(values, percent / 100))
                effective = length / integrated_time((long <= truth).astype(np.float64))
                inside = phi <= MOST_AUTOCORRELATION and effective >= least_effective(percent)
                found = [percentile_interval(in_runs(run, length), percent) for _ in range(draws)]
                where = f"{length} requests in runs of {run}: phi {phi:.2f}, effective {effective:.0f}"
                line = covered(f"p{percent} of recorded {name}", where if inside else f"outside: {where}", found, truth)
                yield line if inside else replace(line, nominal=None)


def cells(draw: np.random.Generator, runs: Sequence[Path], draws: int) -> Iterator[Line]:
    """Stretches of recorded cells against the whole of each."""
    for run in runs:
        for folder in sorted((run / "cells").glob("*")):
            r = read_requests(folder)
            ok = r.outcome == "ok"
            for name, values, at in (
                ("TTFT", span_ms(r.sent, r.first_token, ok), r.first_token),
                ("TPOT", tpot_ms(r, ok), r.last_token),
                ("E2E", span_ms(r.sent, r.last_token, ok), r.last_token),
            ):
                kept = values[np.argsort(at, kind="stable")]
                yield from stretches(draw, name, kept[np.isfinite(kept)], draws, run.name)


def stretches(draw: np.random.Generator, name: str, values: Floats, draws: int, where: str) -> Iterator[Line]:
    for length in (100, 200):
        if len(values) < 5 * length or (why := dependence(scores(values)).refused):
            if len(values) >= 5 * length:
                yield Line(f"{name}: not asked, {why}", where, None, math.nan, 0.0, 0)
            return
        starts = draw.integers(0, len(values) - length, draws)
        for percent in (50, 90):
            truth = float(np.quantile(values, percent / 100))
            found = [percentile_interval(values[s : s + length], percent) for s in starts]
            yield covered(
                f"p{percent} of recorded {name}", f"{where}, {length} of {len(values)} requests", found, truth
            )


def table(lines: Sequence[Line]) -> str:
    rows = [
        "| what | conditions | nominal | share | interval given | given and wrong | draws |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for x in lines:
        nominal = "" if x.nominal is None else f"{x.nominal:.0%}"
        mark = " **off**" if x.off else ""
        share = "" if math.isnan(x.share) else f"{x.share:.1%}{mark}"
        wrong = "" if x.wrong is None else f"{x.wrong:.1%}"
        rows.append(f"| {x.what} | {x.conditions} | {nominal} | {share} | {x.given:.0%} | {wrong} | {x.draws} |")
    return "\n".join(rows)


PARTS = ("blocks", "series", "steps", "outside", "shares", "looking", "recorded", "resampled", "cells")


def part(name: str, seed: int, draws: int, pairs: int, document: dict[str, Any], runs: Sequence[Path]) -> list[Line]:
    """One part of the table, of draws of its own: what it says does not hang on which others were made."""
    draw = np.random.default_rng([seed, crc32(name.encode())])
    found = {
        "blocks": lambda: blocks(draw, draws),
        "series": lambda: series(draw, draws),
        "steps": lambda: steps(draw, draws),
        "outside": lambda: outside(draw, draws),
        "shares": lambda: shares(draw, draws),
        "looking": lambda: looking(draw, draws),
        "recorded": lambda: recorded(draw, document, pairs),
        "resampled": lambda: resampled(draw, document, draws),
        "cells": lambda: cells(draw, runs, draws),
    }
    return list(found[name]())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--blocks", type=Path, default=RECORDED)
    parser.add_argument("--run", type=Path, action="append", default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    document = json.loads(asked.blocks.read_bytes()) if asked.blocks.exists() else {"points": [], "requests": {}}
    with ProcessPoolExecutor() as pool:
        made = [pool.submit(part, name, asked.seed, asked.draws, asked.pairs, document, asked.run) for name in PARTS]
        lines = [line for one in made for line in one.result()]
    text = table(lines)
    print(text)
    judged = [x for x in lines if x.nominal is not None]
    closing = f"{sum(x.off for x in judged)} of the {len(judged)} lines within the conditions are more than 2 points from nominal."
    print(f"\n{closing}")
    if asked.record:
        path = ROOT / "benchmarks" / "recorded" / f"coverage-{datetime.now(UTC):%Y-%m-%d}.md"
        path.parent.mkdir(exist_ok=True)
        command = f"python benchmarks/coverage.py --draws {asked.draws} --pairs {asked.pairs} --seed {asked.seed}"
        path.write_text(f"# Coverage of intervals\n\n`{command}`\n\n{closing}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
