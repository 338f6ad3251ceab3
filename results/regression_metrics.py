"""What a regression gate looks at: each metric with its kind, its margin and the difference below which nobody cares.

    wall      what a clock tells: as noisy as the machine, so its margin is the widest
    cpu       CPU seconds of the engine a token: other work on the machine adds little to it
    counter   what the engine computed, in steps, tokens, blocks and bytes: no clock in it, so its margin is tight

Any other metric of which it is known whether more is better may be asked for; it is of kind wall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from results.comparison import comparable_metrics, direction
from results.errors import UnknownNameError
from results.metrics import Direction
from results.report_measures import MEASURE

WALL, CPU, COUNTER = "wall", "cpu", "counter"
KINDS = (WALL, CPU, COUNTER)
# Margins of each kind where the user names none.
MARGINS: Mapping[str, float] = {WALL: 0.05, CPU: 0.05, COUNTER: 0.02}
# On small shared machines a wall clock tells less.
SHARED_MARGINS: Mapping[str, float] = {WALL: 0.15, CPU: 0.07, COUNTER: 0.02}


@dataclass(frozen=True, slots=True)
class GateMetric:
    """A metric of the gate. `margin` is how much worse, as a share, is still no regression; `floor` the same in the metric's
    own unit: the larger of the two holds. `by_arrival`: a counter that also follows from when requests come, which a clock decides."""

    id: str
    words: str
    unit: str
    direction: Direction
    kind: str
    margin: float
    floor: float = 0.0
    by_arrival: bool = False


_H, _L = Direction.HIGHER, Direction.LOWER
# What follows from when requests come has a margin a little wider than the other counters.
_TABLE: tuple[GateMetric, ...] = (
    GateMetric("output_tokens_per_s", "Output tokens/s", "tok/s", _H, WALL, MARGINS[WALL]),
    GateMetric("ttft_ms_p50", "TTFT p50", "ms", _L, WALL, MARGINS[WALL], floor=1.0),
    GateMetric("tpot_ms_p50", "TPOT p50", "ms", _L, WALL, MARGINS[WALL], floor=0.05),
    GateMetric("cpu_s_per_token", "CPU seconds a token", "s", _L, CPU, MARGINS[CPU]),
    GateMetric("computed_tokens_per_token", "Tokens computed a token asked", "", _L, COUNTER, MARGINS[COUNTER]),
    GateMetric("steps_per_output_token", "Steps an output token", "", _L, COUNTER, 0.05, by_arrival=True),
    GateMetric("kv_blocks_peak", "KV blocks at the most", "blocks", _L, COUNTER, 0.05, by_arrival=True),
    GateMetric("received_bytes_per_token", "Bytes received an output token", "B", _L, COUNTER, MARGINS[COUNTER]),
    GateMetric("weight_bytes", "Weights", "B", _L, COUNTER, MARGINS[COUNTER]),
)
GATE_METRICS: Mapping[str, GateMetric] = {metric.id: metric for metric in _TABLE}


def gate_metric(text: str) -> GateMetric:
    """A metric as typed (`ttft_ms.p90`). Raises UnknownNameError."""
    name = text.replace(".", "_")
    if name in GATE_METRICS:
        return GATE_METRICS[name]
    if name in comparable_metrics():
        measure = MEASURE[name]
        floor = 1.0 if name.startswith(("ttft", "e2e")) else 0.05 if measure.unit == "ms" else 0.0
        return GateMetric(name, measure.words, measure.unit, direction(name), WALL, MARGINS[WALL], floor)
    raise UnknownNameError("metric", text, {*GATE_METRICS, *comparable_metrics()})


def _of_margin(text: str) -> str:
    """What a margin is of: a kind, or the id of a metric. Raises UnknownNameError."""
    if text in KINDS:
        return text
    try:
        return gate_metric(text).id
    except UnknownNameError as error:
        kinds = f"Kinds: {', '.join(KINDS)}; any other is a metric."
        raise UnknownNameError("kind or metric of a margin", text, [*KINDS, *error.known], kinds) from None


def chosen(metrics: Sequence[str], margins: Mapping[str, float], shared: bool = False) -> list[GateMetric]:
    """The metrics of a gate with their margins. `metrics`: those asked for, all of the table where it is empty. `margins`: by
    metric or by kind, the metric's own first. `shared`: the margins of small shared machines where none is named."""
    found = [gate_metric(text) for text in metrics] or list(GATE_METRICS.values())
    named = {_of_margin(name): margin for name, margin in margins.items()}
    out = []
    for metric in dict.fromkeys(found):
        # A metric whose margin is wider than its kind's keeps it.
        usual = max(metric.margin, SHARED_MARGINS[metric.kind]) if shared else metric.margin
        out.append(replace(metric, margin=named.get(metric.id, named.get(metric.kind, usual))))
    return out
