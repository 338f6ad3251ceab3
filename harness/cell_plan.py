"""What one cell sends: its requests, drawn from what was asked alone, and the plan that the load worker carries out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from backends.base import Backend, CompletionRequest
from harness.api_call import PATHS
from harness.experiment import Cell, Experiment
from harness.load.build import PlannedBody, anti_lock_lengths, build_plan
from harness.load.plan import LoadPlan
from harness.loads import MOST_REQUESTS, BatchLoad, ConcurrencyLoad, Load, ScheduleLoad
from results.errors import UsageError
from workloads.base import PlannedRequest, Vocabulary, request_seed, stream_requests
from workloads.texts import JsonlWorkload, ShareGPTWorkload
from workloads.traces import TraceWorkload
from workloads.union import Workload

if TYPE_CHECKING:
    from harness.session import Session

_WARMUP_OUTPUT = 8


def planned_requests(cell: Cell, vocabulary: Vocabulary) -> Iterable[PlannedRequest]:
    """The requests of a cell: the same for every engine, since the engine is no part of the seed. Those of an open loop have
    their times (`at_ns`).

    Raises UsageError where the times are to come from the workload and it has none.
    """
    load, seed = cell.load, _seed(cell)
    if isinstance(load, ScheduleLoad) and load.times_s is None:
        most = load.requests or MOST_REQUESTS
        if isinstance(cell.workload, TraceWorkload):
            return _replayed(load, cell.workload.stream(most, seed, vocabulary))
        return _at_their_own_times(load, cell.workload.requests(most, seed, vocabulary))
    times = load.arrivals(request_seed(seed, "arrivals"))
    if times is not None:
        check_enough(cell.workload, len(times))
        drawn = stream_requests(cell.workload, len(times), seed, vocabulary)
        return (replace(request, at_ns=at) for request, at in zip(drawn, times, strict=False))
    assert isinstance(load, BatchLoad | ConcurrencyLoad)
    n = load.ahead(cell.workload.expected_input, cell.workload.expected_output)
    drawn = (
        iter(cell.workload.requests(n, seed, vocabulary))
        if load.duration_s is None
        else (stream_requests(cell.workload, n, seed, vocabulary))
    )
    return _out_of_phase(drawn, load.concurrency, seed) if isinstance(load, ConcurrencyLoad) else drawn


def _out_of_phase(requests: Iterator[PlannedRequest], slots: int, seed: int) -> Iterator[PlannedRequest]:
    """The same with the first request of each slot shortened."""
    first = list(islice(requests, slots))
    if any(r.chain is not None for r in first):
        return _chains_out_of_phase(chain(first, requests), slots, seed)
    lengths = anti_lock_lengths([r.output_len for r in first], slots, seed)
    return chain((r.with_output_len(length) for r, length in zip(first, lengths, strict=True)), requests)


def _chains_out_of_phase(requests: Iterator[PlannedRequest], slots: int, seed: int) -> Iterator[PlannedRequest]:
    """Conversations lie in the slots in turn: the first answer of the first one of each slot is shortened."""
    begun: set[int | None] = set()
    for request in requests:
        if request.chain not in begun and len(begun) < slots:
            begun.add(request.chain)
            (length,) = anti_lock_lengths([request.output_len], 1, request_seed(seed, "slot", request.chain))
            request = request.with_output_len(length)
        yield request


def _replayed(load: ScheduleLoad, requests: Iterator[PlannedRequest]) -> Iterator[PlannedRequest]:
    """Requests that come in order of their times, at the speed of the load and up to its end."""
    for request in requests:
        if not (at := load.cut([request.at_ns or 0])):
            return
        yield replace(request, at_ns=at[0])


def _at_their_own_times(load: ScheduleLoad, requests: list[PlannedRequest]) -> Iterator[PlannedRequest]:
    times = [request.at_ns for request in requests if request.at_ns is not None]
    if len(times) != len(requests) or not times:
        raise UsageError(
            "The load is a schedule without times of its own, so the workload must say when each request is sent, as a trace "
            "does; this one does not. Give times_s, or a rate."
        )
    order = sorted(range(len(times)), key=lambda i: times[i])
    cut = load.cut([times[i] - times[order[0]] for i in order])
    return (replace(requests[i], at_ns=at) for i, at in zip(order, cut, strict=False))


def check_enough(workload: Workload, n: int | None) -> None:
    """Raise UsageError where the workload's file has fewer than `n` requests; None: nobody knows how many there will be."""
    if n is None or not isinstance(workload, ShareGPTWorkload | JsonlWorkload | TraceWorkload):
        return
    if (has := workload.available()) is not None:
        workload.check_enough(n, has)


def warmup_requests(cell: Cell, vocabulary: Vocabulary) -> list[PlannedRequest]:
    """One request for each that is in flight at once: the workload's input lengths, other prompts, short outputs."""
    n = min(cell.load.in_flight, cell.load.requests or cell.load.in_flight)
    requests = cell.workload.requests(n, _seed(cell, "warm-up"), vocabulary)
    return [PlannedRequest(r.prompt, min(r.output_len, _WARMUP_OUTPUT)) for r in requests]


def _seed(cell: Cell, *salt: str) -> int:
    workload, load = cell.workload.model_dump(mode="json"), cell.load.model_dump(mode="json")
    if workload.get("sha256"):
        del workload["path"]  # a file is what it holds, wherever it lies: other machines draw the same requests
    return request_seed(cell.seed, workload, load, cell.block, *salt)


def make_plan(
    cell: Cell,
    session: Session,
    experiment: Experiment,
    vocabulary: Vocabulary,
    requests: Iterable[PlannedRequest],
    load: Load,
    folder: Path,
    notes: Counter[str] | None = None,
) -> LoadPlan:
    """The load worker's plan, its bodies in `folder`. Raises UsageError, StoreError.

    `notes` gets how often the workload did what to its requests (`PlannedRequest.marks`).
    """
    backend = session.backend
    natural = bool(getattr(cell.workload, "natural_eos", False))
    check = _Checked(cell, session, Counter() if notes is None else notes)
    bodies = (
        PlannedBody(
            id=f"{cell.id}-{folder.name}-{index}",
            body=orjson.dumps(_body(backend, cell, session.served_name, vocabulary, request, index)),
            input_tokens=_counted_here(cell, vocabulary, request),
            output_tokens=request.output_len,
            slot=request.chain,
            at=request.at_ns,
            cancel_after_tokens=None if request.max_tokens is None else request.output_len,
        )
        for index, request in enumerate(check.all(requests))
    )
    return build_plan(
        load,
        bodies,
        url=session.url,
        folder=folder,
        timeouts=experiment.timeouts,
        api_key_env=backend.api_key_env(),
        ignore_eos=backend.capabilities.ignore_eos and not natural,
        stream=cell.stream,
        path=PATHS[cell.endpoint],
    )


class _Checked:
    """Requests on their way into a plan: held against the server's limit, their marks counted."""

    def __init__(self, cell: Cell, session: Session, marks: Counter[str]) -> None:
        self._cell, self.marks = cell, marks
        found = (getattr(session, "record", None) and session.record.settings.get("max_model_len")) or {}
        limit = found.get("value") if isinstance(found, dict) else None
        self._limit = limit if isinstance(limit, int) else None
        self._chains = cell.load.mode == "concurrency"

    def all(self, requests: Iterable[PlannedRequest]) -> Iterator[PlannedRequest]:
        """Raises UsageError where one cannot fit, or turns of a conversation would not wait for each other."""
        numbered = enumerate(requests, 1)
        for number, request in numbered:
            self.marks.update(request.marks)
            if request.chain is not None and not self._chains and number > 1:
                raise UsageError(
                    f"The turns of a conversation wait for each other, which only a closed loop can do; the load is a "
                    f"{self._cell.load.mode}. Use --concurrency."
                )
            if self._limit is not None and _needs(request) > self._limit:
                offenders = [number, *(n for n, other in numbered if _needs(other) > self._limit)]
                raise UsageError(
                    f"Request {number} of {self._cell.workload.label} needs {_needs(request):,} tokens ({request.input_tokens} of "
                    f"prompt), more than the {self._limit:,} that engine {self._cell.engine.label!r} takes{_and_others(offenders)}. "
                    f"Give the workload max_len={self._limit} with too_long=drop or too_long=truncate, or use a model with a longer "
                    "context."
                )
            yield request


def _needs(request: PlannedRequest) -> int:
    """Tokens of context that it takes."""
    return (request.input_tokens or 0) + (request.max_tokens or request.output_len)


def _and_others(numbers: list[int]) -> str:
    """`; so do 7 others: 3, 5, 9, 12, 15 ..`; the first is named already."""
    others = numbers[1:]
    if not others:
        return ""
    few = ", ".join(f"{number:,}" for number in others[:5])
    more = " .." if len(others) > 5 else ""
    return f"; so does {few}" if len(others) == 1 else f"; so do {len(others):,} others: {few}{more}"


def _counted_here(cell: Cell, vocabulary: Vocabulary, request: PlannedRequest) -> int | None:
    """Prompt tokens by our own count. Of a chat message those of its text: the template's come on top of it."""
    if cell.endpoint == "completions":
        return request.input_tokens
    if vocabulary.encode is None:
        return None
    text = request.prompt if isinstance(request.prompt, str) else vocabulary.text(request.prompt)
    return len(vocabulary.encode(text)) - len(vocabulary.encode(""))


def _body(
    backend: Backend, cell: Cell, model: str, vocabulary: Vocabulary, request: PlannedRequest, index: int
) -> dict[str, object]:
    asked = CompletionRequest(
        model,
        request.prompt,
        request.max_tokens or request.output_len,
        temperature=cell.temperature if (own := getattr(cell.workload, "temperature", None)) is None else own,
        seed=index,
        stream=cell.stream,
        ignore_eos=not getattr(cell.workload, "natural_eos", False),
    )
    if cell.endpoint == "completions":
        return backend.completion_body(asked)
    if not isinstance(asked.prompt, str):
        asked = replace(asked, prompt=vocabulary.text(asked.prompt))
    return backend.chat_body(asked)
