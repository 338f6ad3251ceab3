"""Service objectives: what share of the requests of a cell meets them, and how sure that is.

    ttft_ms.p99<=200    at least 99 % of the requests have a TTFT of 200 ms or less
    tpot_ms<=50         goes into the joint share: the requests that meet every limit, at least `share` of them (95 %)

With `share` given, the joint share is demanded of the limits of all objectives. Every request that was issued counts: one
that failed meets nothing. A TPOT that is undefined (an answer of one token) is judged by no limit on TPOT. Under an open loop
TTFT and E2E count from the intended time. Shares get Wilson intervals on an effective number of requests: met where the
interval lies at or above what is demanded, not met below, else undetermined. Over several sessions (`over_blocks`) that number
allows for how much more they differ than their requests explain, and the confidence for having looked after each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from results.errors import UsageError
from results.events import MISSING, Bools, Floats
from results.schema import Outcome
from results.scope import ScopeData, span_ms, tpot_ms
from results.statistics import CONFIDENCE, MOST_AUTOCORRELATION, Interval, autocorrelation, refusal, t_quantile, wilson

MET, NOT_MET, UNDETERMINED = "met", "not met", "undetermined"
SLO_METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
DEFAULT_SHARE = 0.95
_FORM = re.compile(r"\s*([a-z0-9_]+?)(?:\.p([0-9.]+))?\s*<=?\s*([0-9.eE+]+)\s*")


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit on a latency, and the share of requests that must keep it (None: it counts in the joint share only)."""

    metric: str
    limit: float
    share: float | None

    @property
    def text(self) -> str:
        percent = "" if self.share is None else f".p{100 * self.share:g}"
        return f"{self.metric}{percent}<={self.limit:g}"


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives, and the joint share that is demanded (None: each by itself)."""

    objectives: tuple[Objective, ...]
    share: float | None

    @property
    def texts(self) -> list[str]:
        return [objective.text for objective in self.objectives]


def parse_slo(texts: Sequence[str], share: float | None = None) -> Slo:
    """Objectives as typed. Raises UsageError naming the one that cannot be read."""
    objectives = tuple(_objective(text) for text in texts)
    if not objectives:
        raise UsageError("No objective given: --slo 'ttft_ms.p99<=200' names one.")
    if share is None and any(objective.share is None for objective in objectives):
        share = DEFAULT_SHARE
    if share is not None and not 0 < share < 1:
        raise UsageError(f"--slo-share {share:g} is not between 0 and 1: 0.95 demands 95 % of the requests.")
    return Slo(objectives, share)


def slo_of(experiment: Any) -> Slo | None:
    """The objectives of an experiment as it is kept in the run; None where it has none or they cannot be read."""
    asked = experiment.get("slo") if isinstance(experiment, dict) else None
    if not isinstance(asked, dict):
        return None
    try:
        return parse_slo([str(text) for text in asked.get("objectives") or []], asked.get("share"))
    except (UsageError, TypeError):
        return None


def attainment(data: ScopeData, slo: Slo) -> dict[str, Any]:
    """How a cell meets its objectives: `{met, joint, objectives: [{objective, needed, share, low, high, n, good, met}]}`."""
    issued = _issued(data)
    order = np.argsort(data.requests.sent[issued], kind="stable")
    kept = [(objective, _keeps(data, objective)[issued][order]) for objective in slo.objectives]
    rows = [_row(objective.text, good, objective.share) for objective, good in kept if objective.share is not None]
    joint = None
    if slo.share is not None:
        together = np.min([np.where(np.isnan(good), 1.0, good) for _, good in kept], axis=0)
        joint = _row("all limits", together, slo.share)
    verdicts = {row["met"] for row in [*rows, *([joint] if joint else [])]}
    met = NOT_MET if NOT_MET in verdicts else UNDETERMINED if UNDETERMINED in verdicts else MET
    return {"met": met, "share": slo.share, "joint": joint, "objectives": rows}


def needed_requests(slo: Slo) -> int:
    """Twice the fewest requests, all of them good, with which every objective can be shown to be met: a few that miss do not spoil
    it then."""
    shares = [s for s in (slo.share, *(o.share for o in slo.objectives)) if s is not None]
    # Wilson's lower end for n of n is n / (n + z^2).
    z = float(ndtri((1 + look_confidence(1)) / 2))
    return max(int(np.ceil(z**2 * share / (1 - share) * 2)) for share in shares)


def share_interval(good: Floats) -> Interval:
    """The share of a series of 0 and 1 (NaN: not judged) in time order, by Wilson on its effective number."""
    known = good[~np.isnan(good)]
    n = len(known)
    if not n:
        return refusal("no request to judge", 0)
    phi = autocorrelation(known)
    # What lies within its own error of 0 is chance.
    phi = phi if phi > 1 / math.sqrt(n) else 0.0
    worth = n * (1 - phi) / (1 + phi)
    if phi > MOST_AUTOCORRELATION:
        # No interval by itself, and yet a block among others: one long stall is one miss, not none.
        why = f"requests meet it in runs: autocorrelation {phi:.2f}"
        return replace(refusal(why, n, estimate=float(known.mean())), effective_n=max(worth, 1.0))
    return wilson(float(known.mean()) * worth, worth)


def look_confidence(look: int) -> float:
    """The confidence of the k-th look at a load, a block more each time: it spends alpha / (k (k + 1)), and the sum of that stays
    below alpha however many looks follow."""
    return 1 - (1 - CONFIDENCE) / (look * (look + 1))


def over_blocks(shares: Sequence[float], worths: Sequence[float]) -> Interval:
    """A share by the sessions (blocks) of one load: that of each and the effective number of requests it rests on.

    Sessions that differ by more than their requests explain are worth fewer: the number is divided by their overdispersion
    (Pearson's chi square by its degrees of freedom, about a share with two good and two bad ones added, so that a single miss
    is no evidence of it). So few sessions tell that only roughly, so t with their degrees of freedom takes the place of z.
    """
    share_of, worth_of = np.asarray(shares, dtype=np.float64), np.asarray(worths, dtype=np.float64)
    k, worth = len(share_of), float(worth_of.sum())
    if not k or worth <= 0:
        return refusal("no request to judge", 0)
    share, confidence = float(share_of @ worth_of) / worth, look_confidence(k)
    if k > 1:
        near = (share * worth + 2) / (worth + 4)
        excess = float(worth_of @ (share_of - share) ** 2) / (near * (1 - near)) / (k - 1)
        if excess > 1:
            tail = (1 + confidence) / 2
            worth /= excess * (t_quantile(tail, k - 1) / float(ndtri(tail))) ** 2
    return replace(wilson(min(share, 1.0) * worth, worth, confidence), n=k)


def verdict(share: Interval, needed: float) -> str:
    """Met, not met or undetermined."""
    if share.low is None or share.high is None:
        return UNDETERMINED
    return MET if share.low >= needed else NOT_MET if share.high < needed else UNDETERMINED


def _objective(text: str) -> Objective:
    found = _FORM.fullmatch(text)
    if found is None or found[1].removeprefix("scheduled_") not in SLO_METRICS:
        raise UsageError(
            f"--slo {text!r} is not an objective. Write METRIC.pNN<=MS with METRIC one of {', '.join(SLO_METRICS)}, such as "
            "'ttft_ms.p99<=200', or METRIC<=MS for the joint share."
        )
    try:
        limit, percent = float(found[3]), float(found[2]) if found[2] else None
    except ValueError:
        raise UsageError(f"--slo {text!r}: the limit or the percentile is not a number.") from None
    if not (np.isfinite(limit) and limit > 0) or (percent is not None and not 0 < percent < 100):
        raise UsageError(f"--slo {text!r}: the limit must be above 0 and the percentile between 0 and 100.")
    return Objective(found[1], limit, None if percent is None else percent / 100)


def _issued(data: ScopeData) -> Bools:
    """The requests that are judged: all that were sent or meant to be, in a window those that ended in it."""
    r = data.requests
    if data.name == "whole":
        return np.asarray((r.sent != MISSING) | (r.outcome != str(Outcome.CANCELLED)), dtype=bool)
    return data.holds(np.where(r.end != MISSING, r.end, r.sent))


def _keeps(data: ScopeData, objective: Objective) -> Floats:
    """1 where a request keeps the limit, 0 where not, NaN where the metric is not defined for it."""
    r, ok = data.requests, data.ok
    name = objective.metric.removeprefix("scheduled_")
    from_intended = objective.metric.startswith("scheduled_") or data.mode not in ("batch", "concurrency")
    start = np.where(r.intended != MISSING, r.intended, r.sent) if from_intended else r.sent
    if name == "tpot_ms":
        values = tpot_ms(r, ok)
        undefined = ok & np.isnan(values)
    else:
        values = span_ms(start, r.first_token if name == "ttft_ms" else r.last_token, ok)
        # The first requests of a closed loop's slots are cut short: their E2E is that of another request.
        undefined = data.shortened if name == "e2e_ms" else np.zeros(len(r), dtype=bool)
    good = np.where(np.isnan(values), 0.0, (values <= objective.limit).astype(np.float64))
    out: Floats = np.where(undefined, np.nan, good)
    return out


def _row(text: str, good: Floats, needed: float) -> dict[str, Any]:
    share = share_interval(good)
    known = good[~np.isnan(good)]
    return {
        "objective": text,
        "needed": needed,
        "share": share.estimate,
        "low": share.low,
        "high": share.high,
        "n": len(known),
        "effective_n": share.effective_n,
        "good": int(known.sum()),
        "met": verdict(share, needed),
        "refused": share.refused or None,
    }
