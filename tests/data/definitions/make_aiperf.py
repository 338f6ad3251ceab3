"""AIPerf's own numbers of the recorded stream: its parser and its metrics, fed the events at their recorded times.

    AIPERF_VENV/bin/python tests/data/definitions/make_aiperf.py > tests/data/definitions/aiperf_0.13.json

with an environment that has `aiperf` (too heavy for the tests' own), from the root of the repository.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np
from aiperf.common.enums import AggregationKind, MetricType
from aiperf.common.exceptions import NoMetricValue
from aiperf.common.models import ParsedResponseRecord, RequestRecord
from aiperf.common.models.record_models import SSEMessage, TokenCounts, find_last_non_empty_usage
from aiperf.endpoints.openai_chat import ChatEndpoint
from aiperf.metrics.display_units import to_display_unit
from aiperf.metrics.metric_dicts import MetricRecordDict, MetricResultsDict, metric_result_from_array
from aiperf.metrics.metric_registry import MetricRegistry

from tests.results.recorded_stream import messages

DISTRIBUTIONS = (
    "time_to_first_token", "inter_token_latency", "request_latency", "output_token_throughput_per_user", "inter_chunk_latency",
)  # fmt: skip
SINGLE = ("request_count", "benchmark_duration", "total_osl", "request_throughput", "output_token_throughput")
POINTS = ("avg", "p50", "p90", "p95", "p99", "std")
_AGGREGATE = {AggregationKind.SUM: sum, AggregationKind.MAX: max, AggregationKind.MIN: min}


def records() -> list[ParsedResponseRecord]:
    """Each answer as its worker would have kept it and its record processor parses it; tokens as the server counts them."""
    endpoint = ChatEndpoint(model_endpoint=SimpleNamespace())
    made = []
    for answer in messages():
        start = round(answer["start"] * 1e9)
        said = [SSEMessage.parse(event.rstrip(), perf_ns=round(at * 1e9)) for at, event in answer["events"]]
        record = RequestRecord(model_name="m", start_perf_ns=start, timestamp_ns=start, responses=said, status=200)
        responses = endpoint.extract_response_data(record)
        usage = find_last_non_empty_usage(responses)
        counts = TokenCounts(input=usage.prompt_tokens, output=usage.completion_tokens)
        made.append(ParsedResponseRecord(request=record, responses=responses, token_counts=counts))
    return made


def numbers() -> dict[str, dict[str, float]]:
    """Every metric by its own code, in the order that its registry asks for."""
    order = MetricRegistry.create_dependency_order_for([*DISTRIBUTIONS, *SINGLE])
    values: dict[str, list[Any]] = {}
    for record in records():
        found = MetricRecordDict()
        for tag in order:
            metric = MetricRegistry.get_instance(tag)
            if metric.type in (MetricType.RECORD, MetricType.AGGREGATE):
                try:
                    found[tag] = metric.parse_record(record, found)
                except NoMetricValue:
                    continue
        for tag, value in found.items():
            values.setdefault(tag, []).extend(value if isinstance(value, list) else [value])
    whole, results = MetricResultsDict(), {}
    for tag in order:
        metric = MetricRegistry.get_class(tag)
        if metric.type == MetricType.DERIVED:
            whole[tag] = MetricRegistry.get_instance(tag).derive_value(whole)
        elif metric.type == MetricType.AGGREGATE:
            whole[tag] = _AGGREGATE[metric.aggregation_kind](values[tag])
        else:
            array = np.array(values[tag], float)
            whole[tag] = float(array.sum())
            results[tag] = metric_result_from_array(tag, metric.header, str(metric.unit), array, float(array.sum()))
    out = {}
    for tag in DISTRIBUTIONS:
        shown = to_display_unit(results[tag], MetricRegistry)
        out[tag] = {point: getattr(shown, point) for point in POINTS}
    for tag in SINGLE:
        metric = MetricRegistry.get_class(tag)
        value = metric.unit.convert_to(metric.display_unit, whole[tag]) if metric.display_unit else whole[tag]
        out[tag] = {"avg": float(value)}
    return out


if __name__ == "__main__":
    print(json.dumps({"aiperf": version("aiperf"), "numbers": numbers()}, indent=1, sort_keys=True))
