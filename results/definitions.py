"""A cell's numbers by another tool's rules, from the same events: why two tools say two things of one server.

vLLM (`vllm bench serve`, Python client): a request runs from before its POST to its last chunk with `choices`; the first such
chunk, be it only a role or empty, is its first token; TPOT = (latency - TTFT) / (n - 1), none for one token; ITL pools the
gaps between all chunks with `choices`, that of the finish reason included.

AIPerf: a request runs from before its POST to its last chunk with content (text or reasoning), the first of which is its first
token; inter token latency = (latency - TTFT) / (n - 1), a number a request; throughput is over first start to last content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.clock import NS_PER_MS, NS_PER_S
from results.errors import UnknownNameError
from results.events import MISSING, Bools, Chunks, Floats, Ints, Requests
from results.schema import TOKEN_KINDS, ChunkKind, CountSource, Outcome

# Chunks with `choices` in them. One that only counts tokens, a comment and an error have none.
_CHOICES = (ChunkKind.ROLE, ChunkKind.TEXT, ChunkKind.REASONING, ChunkKind.EMPTY, ChunkKind.FINISH)
_NO_TOOL_SAW_IT_END = (Outcome.RESET, Outcome.TIMEOUT, Outcome.CANCELLED, Outcome.REFUSED, Outcome.HTTP_ERROR)


@dataclass(frozen=True, slots=True)
class Seen:
    """Requests as a tool sees them, one element each (times in ns): those it counts as answered. `gaps` pools the gaps between
    their chunks."""

    start: Ints
    first: Ints
    last: Ints
    tokens: Ints
    input_tokens: Ints
    gaps: Ints
    issued: int
    duration_ns: int

    @property
    def ttft_ms(self) -> Floats:
        return (self.first - self.start) / NS_PER_MS

    @property
    def latency_ms(self) -> Floats:
        return (self.last - self.start) / NS_PER_MS

    @property
    def per_token_ms(self) -> Floats:
        """(latency - TTFT) / (n - 1) of the requests with more than one token."""
        several = self.tokens > 1
        return (self.last - self.first)[several] / (self.tokens[several] - 1) / NS_PER_MS


def _seen(requests: Requests, chunks: Chunks, kinds: tuple[ChunkKind, ...], answered: Bools) -> Seen:
    place = {str(name): at for at, name in enumerate(requests.request_id)}
    of = np.array([place.get(str(name), -1) for name in chunks.request_ids], dtype=np.int64)
    mask = np.isin(chunks.kinds.astype(str), [str(kind) for kind in kinds])
    here = mask[chunks.kind] if len(chunks) else np.zeros(0, dtype=bool)
    request, t = (of[chunks.request[here]], chunks.t[here]) if len(chunks) else (here.astype(np.int64),) * 2
    order = np.lexsort((t, request))
    request, t = request[order], t[order]
    keep = (request >= 0) & answered[np.maximum(request, 0)] if len(request) else np.zeros(0, dtype=bool)
    request, t = request[keep], t[keep]
    which, begin = np.unique(request, return_index=True)
    end = np.append(begin[1:], len(request)) - 1
    same = request[1:] == request[:-1]
    start = start_times(requests)
    known = start != MISSING
    spans = int(requests.end[known].max() - start[known].min()) if known.any() else 0
    return Seen(
        start=start[which],
        first=t[begin] if len(which) else which,
        last=t[end] if len(which) else which,
        tokens=np.maximum(requests.output_tokens[which], 0),
        input_tokens=np.where(
            requests.input_tokens_counted >= 0, requests.input_tokens_counted, requests.input_tokens_planned
        )[which],
        gaps=np.diff(t)[same],
        issued=len(requests),
        duration_ns=spans,
    )


def start_times(requests: Requests) -> Ints:
    """When the tools' clocks start: before the POST, with the connection's opening where there was one."""
    opened = (requests.connect_start != MISSING) & (requests.connect_start <= requests.sent)
    found: Ints = np.where(opened, requests.connect_start, requests.sent)
    return found


def _points(values: Floats, names: Mapping[str, float | str]) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for name, what in names.items():
        if not len(values):
            out[name] = None
        elif what == "mean":
            out[name] = float(np.mean(values))
        elif what == "std":
            out[name] = float(np.std(values))
        else:
            out[name] = float(np.percentile(values, float(what)))
    return out


def vllm_numbers(requests: Requests, chunks: Chunks) -> dict[str, Any]:
    """Under the names of vLLM's result file. `duration` is first start to last end."""
    answered = ~np.isin(requests.outcome.astype(str), [str(o) for o in _NO_TOOL_SAW_IT_END])
    seen = _seen(requests, chunks, _CHOICES, answered)
    seconds = seen.duration_ns / NS_PER_S
    output, given = int(seen.tokens.sum()), int(np.maximum(seen.input_tokens, 0).sum())
    numbers: dict[str, Any] = {
        "completed": len(seen.start),
        "failed": seen.issued - len(seen.start),
        "duration": seconds,
        "total_input_tokens": given,
        "total_output_tokens": output,
        "request_throughput": len(seen.start) / seconds if seconds else None,
        "output_throughput": output / seconds if seconds else None,
        "total_token_throughput": (output + given) / seconds if seconds else None,
    }
    parts = {"ttft": seen.ttft_ms, "tpot": seen.per_token_ms, "itl": seen.gaps / NS_PER_MS, "e2el": seen.latency_ms}
    for name, values in parts.items():
        found = _points(values, {"mean": "mean", "median": 50, "std": "std", "p99": 99})
        numbers |= {f"{point}_{name}_ms": value for point, value in found.items()}
    return numbers


def aiperf_numbers(requests: Requests, chunks: Chunks) -> dict[str, Any]:
    """Under the names of AIPerf's export. The tokens are the server's: AIPerf counts the text again unless told otherwise."""
    answered = np.isin(requests.outcome.astype(str), [str(Outcome.OK), str(Outcome.SHORT)])
    seen = _seen(requests, chunks, TOKEN_KINDS, answered)
    seconds = float(seen.last.max() - seen.start.min()) / NS_PER_S if len(seen.start) else 0.0
    output = int(seen.tokens.sum())
    points: dict[str, float | str] = {"avg": "mean", "p50": 50, "p90": 90, "p95": 95, "p99": 99, "std": "std"}
    per_token = seen.per_token_ms
    return {
        "request_count": {"avg": len(seen.start)},
        "error_request_count": {"avg": seen.issued - len(seen.start)},
        "benchmark_duration": {"avg": seconds or None},
        "total_osl": {"avg": output},
        "request_throughput": {"avg": len(seen.start) / seconds if seconds else None},
        "output_token_throughput": {"avg": output / seconds if seconds else None},
        "time_to_first_token": _points(seen.ttft_ms, points),
        "inter_token_latency": _points(per_token, points),
        "request_latency": _points(seen.latency_ms, points),
        "output_token_throughput_per_user": _points(1000 / per_token[per_token > 0], points),
        "inter_chunk_latency": _points(seen.gaps / NS_PER_MS, points),
    }


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool whose rules are known: which version they were read from, in words, and how they are applied."""

    name: str
    version: str
    words: str
    numbers: Callable[[Requests, Chunks], dict[str, Any]]


_DOC = (__doc__ or "").split("\n\n")
TOOLS: dict[str, Tool] = {
    "vllm": Tool("vllm", "0.32", " ".join(_DOC[1].split()), vllm_numbers),
    "aiperf": Tool("aiperf", "0.13", " ".join(_DOC[2].split()), aiperf_numbers),
}


def by_tool(name: str, requests: Requests, chunks: Chunks) -> dict[str, Any]:
    """A cell by a tool's rules: `{tool, version, definitions, tokens_from, numbers}`. Raises UnknownNameError."""
    if name not in TOOLS:
        raise UnknownNameError("tool", name, list(TOOLS))
    tool = TOOLS[name]
    sources = sorted({str(source) for source in requests.count_source if source})
    return {
        "tool": tool.name,
        "version": tool.version,
        "definitions": tool.words,
        # Both tools count the text again where the server tells no usage, which may give another number.
        "tokens_from": sources,
        "retokenised_by_tool": sources == [str(CountSource.CHUNKS)],
        "numbers": tool.numbers(requests, chunks),
    }
