"""How far the waves of a batch cell lie apart: the only spread that a cell of one block has.

The requests of a wave share their steps, so a wave is one value and not `batch` of them. Of each wave: output tokens / (first
send to last end), and the medians of TTFT and TPOT over its requests.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from results.clock import NS_PER_S
from results.events import MISSING, Floats, Ints
from results.phases import waves
from results.scope import ScopeData, span_ms, tpot_ms
from results.tokens import delivered_tokens


def wave_spread(data: ScopeData) -> dict[str, Any] | None:
    """`{n, output_tokens_per_s: {min, max}, ttft_ms_p50: {min, max}, tpot_ms_p50: {min, max}}` over the waves of a cell, null
    where no wave tells; None where the load has no waves.

    `n` counts the waves whose requests were all answered: one that lost a request had less to do.
    """
    requests = data.requests
    if data.mode != "batch" or not len(requests):
        return None
    wave = waves(requests, data.width)
    whole = [members for w in range(int(wave.max()) + 1) if data.answered[members := np.flatnonzero(wave == w)].all()]
    ttft = span_ms(requests.sent, requests.first_token, data.answered)
    tpot = tpot_ms(requests, data.answered)
    delivered = delivered_tokens(requests, data.chunks)
    return {
        "n": len(whole),
        "output_tokens_per_s": _range([_rate(data, delivered, members) for members in whole]),
        "ttft_ms_p50": _range([_median(ttft[members]) for members in whole]),
        "tpot_ms_p50": _range([_median(tpot[members]) for members in whole]),
    }


def _rate(data: ScopeData, delivered: Ints, members: Ints) -> float | None:
    sent, end = data.requests.sent[members], data.requests.end[members]
    if (sent == MISSING).any() or (end == MISSING).any():
        return None
    time, tokens = int(end.max() - sent.min()), int(delivered[members].sum())
    return tokens / time * NS_PER_S if time > 0 and tokens > 0 else None


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def _range(values: list[float | None]) -> dict[str, float] | None:
    known = [v for v in values if v is not None]
    return {"min": min(known), "max": max(known)} if known else None
