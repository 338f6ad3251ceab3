"""TensorRT-LLM's own statistics of its steps, as neutral metrics.

GET /metrics answers a JSON list with one entry a step since the last reading: what was read is gone, so exactly one reader may
read, and it keeps the sums. Where nothing has happened the server waits up to two seconds before it answers `[]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backends.base import MetricRule

# Neutral name, then where it comes from.
TENSORRT_LLM_METRICS = (
    MetricRule("running", ("inflightBatchingStats.numScheduledRequests",)),
    MetricRule("waiting", ("numQueuedRequests",)),
    MetricRule("kv_usage", ("kvCacheStats.usedNumBlocks / kvCacheStats.maxNumBlocks",)),
    MetricRule("kv_capacity_tokens", ("kvCacheStats.maxNumBlocks * kvCacheStats.tokensPerBlock",)),
    # Prompt tokens computed, those of reused blocks left out. What was generated is not told: a request's last step is not.
    MetricRule("prompt_tokens_total", ("sum of inflightBatchingStats.numCtxTokens",)),
    MetricRule("preemptions_total", ("sum of inflightBatchingStats.numPausedRequests",)),
    MetricRule("prefix_hits_total", ("kvCacheStats.reusedBlocks * kvCacheStats.tokensPerBlock",)),
    MetricRule("prefix_queries_total", ("(kvCacheStats.reusedBlocks + missedBlocks) * kvCacheStats.tokensPerBlock",)),
    MetricRule("steps_total", ("number of entries",)),
    MetricRule("step_seconds_total", ("sum of iterLatencyMS",)),
    MetricRule("decodes_total", ("sum of inflightBatchingStats.numGenRequests",)),
    MetricRule("drafts_total", ("sum of specDecodingStats.numRequestsWithDraftTokens",)),
    MetricRule("draft_tokens_total", ("sum of specDecodingStats.numDraftTokens",)),
    MetricRule("accepted_tokens_total", ("sum of specDecodingStats.numAcceptedTokens",)),
)


class IterationReader:
    """Reads page after page of one server. Sums begin at 0 with the first step that is told: before, nothing is known (a server
    that keeps no statistics answers as one at rest)."""

    # Longer than the server waits where it has nothing to tell.
    timeout_s = 6.0

    def __init__(self) -> None:
        self._sums = dict.fromkeys(
            ("prompt_tokens_total", "preemptions_total", "steps_total", "step_seconds_total", "decodes_total"), 0.0
        )
        self._last: dict[str, float] = {}

    def read(self, text: str) -> dict[str, float]:
        """Values under neutral names after this page; {} where no step was ever told."""
        try:
            entries = json.loads(text)
        except ValueError:
            return {}
        if not isinstance(entries, list):
            return {}
        steps = [entry for entry in entries if isinstance(entry, dict)]
        for step in steps:
            self._add(step)
        if steps:
            self._gauges(steps[-1])
        elif self._last:
            # It answers at once while it works: no step for as long as it waits means that nothing runs.
            self._last |= {"running": 0.0, "waiting": 0.0}
        return {**self._last, **self._sums} if self._last else {}

    def _add(self, step: Mapping[str, Any]) -> None:
        batch = _part(step, "inflightBatchingStats")
        self._sums["steps_total"] += 1
        self._sums["step_seconds_total"] += _number(step, "iterLatencyMS") / 1000
        self._sums["prompt_tokens_total"] += _number(batch, "numCtxTokens")
        self._sums["decodes_total"] += _number(batch, "numGenRequests")
        self._sums["preemptions_total"] += _number(batch, "numPausedRequests")
        if draft := _part(step, "specDecodingStats"):
            for neutral, key in (
                ("drafts_total", "numRequestsWithDraftTokens"),
                ("draft_tokens_total", "numDraftTokens"),
                ("accepted_tokens_total", "numAcceptedTokens"),
            ):
                self._sums[neutral] = self._sums.get(neutral, 0.0) + _number(draft, key)

    def _gauges(self, step: Mapping[str, Any]) -> None:
        batch, kv = _part(step, "inflightBatchingStats"), _part(step, "kvCacheStats")
        self._last["running"] = _number(batch, "numScheduledRequests")
        self._last["waiting"] = _number(step, "numQueuedRequests")
        blocks, size = _number(kv, "maxNumBlocks"), _number(kv, "tokensPerBlock")
        if not blocks or not size:
            return
        self._last["kv_usage"] = _number(kv, "usedNumBlocks") / blocks
        self._last["kv_capacity_tokens"] = blocks * size
        if "reusedBlocks" in kv:
            self._last["prefix_hits_total"] = _number(kv, "reusedBlocks") * size
            self._last["prefix_queries_total"] = (_number(kv, "reusedBlocks") + _number(kv, "missedBlocks")) * size


def capacity(document: Any) -> dict[str, int]:
    """KV settings from a page that was read for them: kv_cache_tokens, block_size; {} where no step tells them."""
    for step in reversed(document if isinstance(document, list) else []):
        kv = _part(step, "kvCacheStats") if isinstance(step, dict) else {}
        blocks, size = int(_number(kv, "maxNumBlocks")), int(_number(kv, "tokensPerBlock"))
        if blocks and size:
            return {"kv_cache_tokens": blocks * size, "block_size": size}
    return {}


def _part(step: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = step.get(name)
    return part if isinstance(part, dict) else {}


def _number(part: Mapping[str, Any], name: str) -> float:
    value = part.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
