"""KV-cache memory of a cell: what the formula predicts from the events, beside what the engine says it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.arithmetic import kv_bytes, kv_bytes_per_token, kv_dtype_name, model_dtype
from results.errors import UsageError
from results.events import MISSING, Bools, Floats, Ints, Requests, Samples
from results.truth import Steps


def setting(session: Mapping[str, Any], name: str) -> Any:
    """A resolved setting of a session, or None."""
    found = (session.get("settings") or {}).get(name)
    return found.get("value") if isinstance(found, Mapping) else None


@dataclass(frozen=True, slots=True)
class KVFormula:
    """The formula for one model and KV dtype. Sliding windows cap what a long context keeps."""

    config: dict[str, Any]
    kv_dtype: str

    @property
    def per_token(self) -> int:
        return kv_bytes_per_token(self.config, self.kv_dtype)

    def total(self, contexts: Floats, block_size: int | None = None) -> int:
        """Bytes for sequences of these many tokens each, in whole blocks where a block size is given."""
        lengths, counts = np.unique(contexts[contexts > 0].astype(np.int64), return_counts=True)
        return sum(
            kv_bytes(self.config, self.kv_dtype, batch=int(n), seq_len=int(length), block_size=block_size)
            for length, n in zip(lengths, counts, strict=True)
        )


def kv_formula(config: Mapping[str, Any] | None, session: Mapping[str, Any]) -> tuple[KVFormula | None, str]:
    """The formula for this model and the session's KV dtype; or None and why it is unknown."""
    if not config:
        return None, "the manifest holds no model config"
    plain = dict(config)
    try:
        dtype = str(setting(session, "dtype") or "auto")
        dtype = model_dtype(plain) if dtype == "auto" else dtype
        formula = KVFormula(plain, kv_dtype_name(str(setting(session, "kv_dtype") or "auto"), dtype, plain))
        _ = formula.per_token  # A config whose layers keep another state is refused here.
    except UsageError as error:
        return None, str(error)
    return formula, ""


def peak_context(requests: Requests, input_tokens: Ints, output_tokens: Ints) -> tuple[int | None, Floats]:
    """Tokens held in the cache at the worst instant: (their sum, tokens of each request there).

    A request holds its prompt from its first token on, and grows evenly by one token for each further one until its last;
    a token's keys and values are written when it is fed back, so n outputs leave n - 1. Prompts still being prefilled are
    not counted: the client cannot see how far they are.
    """
    known = (requests.first_token != MISSING) & (input_tokens >= 0)
    if not known.any():
        return None, np.zeros(0)
    start = requests.first_token[known]
    last = requests.last_token[known]
    stop = np.maximum(np.where(last != MISSING, last, start), start)
    base = int(start.min())
    t0, t1 = (start - base) / 1e9, (stop - base) / 1e9
    held = input_tokens[known].astype(np.float64)
    growth = np.maximum(output_tokens[known] - 1, 0).astype(np.float64)
    slope = np.divide(growth, t1 - t0, out=np.zeros_like(growth), where=t1 > t0)
    # A sum of rising lines is largest just before one of them ends. At one instant, starts come before ends.
    times = np.concatenate([t0, t1])
    ends = np.concatenate([np.zeros(len(t0)), np.ones(len(t1))])
    order = np.lexsort((ends, times))
    level = np.cumsum(np.concatenate([held - slope * t0, slope * t0 - held])[order])
    rise = np.cumsum(np.concatenate([slope, -slope])[order])
    # Totals just before event k: the state after event k - 1, read at the time of k.
    before = np.concatenate([[0.0], level[:-1] + rise[:-1] * times[order][1:]])
    before[ends[order] == 0] = -1.0
    instant = float(times[order][int(np.argmax(before))])
    alive: Bools = (t0 <= instant) & (t1 >= instant)
    # Of those that end at the very instant another begins, both are alive here: a token or two too many at most.
    context = np.zeros(len(requests))
    context[np.flatnonzero(known)[alive]] = np.rint((held + slope * (instant - t0))[alive])
    single = alive & (t1 == t0)
    context[np.flatnonzero(known)[single]] = (held + growth)[single]
    return int(context.sum()), context


def kv_numbers(
    formula: KVFormula | None,
    requests: Requests,
    input_tokens: Ints,
    output_tokens: Ints,
    samples: Samples,
    steps: Steps | None,
    session: Mapping[str, Any],
    cell: tuple[int, int],
) -> dict[str, Any]:
    """The `arithmetic` part of a cell's summary.

    `kv_bytes_engine` is what the engine says its sequences hold at most: from its step log (every step), else sampled, else
    the part of its pool in use (whole blocks). `kv_allocated_bytes` is what its blocks take at most, from the same steps
    where they tell, so that it is never below what they hold. `kv_ratio` is engine / predicted.
    """
    tokens, context = peak_context(requests, input_tokens, output_tokens)
    block = setting(session, "block_size")
    per_token = predicted = in_blocks = None
    if formula is not None:
        per_token = formula.per_token
        if tokens is not None:
            predicted = formula.total(context)
            in_blocks = formula.total(context, block) if isinstance(block, int) and block > 0 else None
    engine, source = _engine_bytes(per_token, samples, steps, session, cell)
    return {
        "kv_bytes_per_token": per_token,
        "kv_tokens_predicted": tokens,
        "kv_bytes_predicted": predicted,
        "kv_bytes_predicted_blocks": in_blocks,
        "kv_bytes_engine": engine,
        "kv_engine_source": source,
        "kv_allocated_bytes": _allocated_bytes(samples, steps, session, cell),
        "kv_ratio": engine / predicted if engine is not None and predicted else None,
    }


def _engine_bytes(
    per_token: int | None, samples: Samples, steps: Steps | None, session: Mapping[str, Any], cell: tuple[int, int]
) -> tuple[int | None, str | None]:
    own = setting(session, "kv_bytes_per_token")
    if steps is not None and len(steps) and steps.tells("tokens_held") and isinstance(own, int | float):
        return round(int(steps.tokens_held.max()) * own), "steps"
    for metric in ("kv_held_bytes", "kv_allocated_bytes"):
        if (value := _largest(samples, metric, cell)) is not None:
            return round(value), metric
    usage, pool = _largest(samples, "kv_usage", cell), _largest(samples, "kv_pool_bytes", cell)
    if usage is not None and pool is not None:
        return round(usage * pool), "kv_usage x kv_pool_bytes"
    capacity, source = _largest(samples, "kv_capacity_tokens", cell), "kv_capacity_tokens"
    if capacity is None:  # vLLM tells it once, as a setting, and only its use as a metric.
        capacity, source = setting(session, "kv_cache_tokens"), "kv_cache_tokens"
    if usage is not None and isinstance(capacity, int | float) and per_token is not None:
        return round(usage * capacity * per_token), f"kv_usage x {source}"
    return None, None


def _allocated_bytes(
    samples: Samples, steps: Steps | None, session: Mapping[str, Any], cell: tuple[int, int]
) -> int | None:
    own, block = setting(session, "kv_bytes_per_token"), setting(session, "block_size")
    blocks = int(steps.blocks_allocated.max()) if steps is not None and len(steps) else 0
    if blocks > 0 and isinstance(own, int | float) and isinstance(block, int):
        return round(blocks * block * own)
    value = _largest(samples, "kv_allocated_bytes", cell)
    return round(value) if value is not None else None


def _largest(samples: Samples, metric: str, cell: tuple[int, int]) -> float | None:
    times, values = samples.series("server", metric)
    inside = values[(times >= cell[0]) & (times <= cell[1])]
    return float(inside.max()) if len(inside) else None
