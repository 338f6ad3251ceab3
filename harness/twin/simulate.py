"""One cell on the twin: the client's strategy and the engine's scheduler, both as they are, on a clock that is computed.

    client: due -> sent -> ingested by the server | engine: next step -> tokens at its end | delivered -> the client's next

Only time is made up: what a step takes comes from the step model, what lies between client and engine from the delays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from backends.reference.build_scheduler import build_scheduler
from backends.reference.composition import composition
from backends.reference.config import EngineSettings
from backends.reference.request import Request, StepPlan
from harness.load.plan import LoadPlan, RequestPlan
from harness.load.strategies import Due, strategy_for
from harness.twin.delays import Delays, Line
from harness.twin.step_model import StepModel
from results.clock import NS_PER_S
from results.schema import ChunkKind, CountSource, Outcome
from workloads.base import PlannedRequest

# Nothing in the simulation begins at 0: a stamp of 0 would look like none.
START = NS_PER_S


@dataclass(slots=True)
class Simulated:
    """Rows as the event files and the step log have them (`results.events`, `results.truth`)."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    steps: list[tuple[int, ...]] = field(default_factory=list)
    ended: int = START
    preemptions: int = 0


def simulate(
    plan: LoadPlan,
    requests: Sequence[PlannedRequest],
    settings: EngineSettings,
    model: StepModel,
    delays: Delays,
    seed: int,
) -> Simulated:
    """Until the load has ended. RefusedError where the engine would refuse a request; `seed` draws how step times scatter."""
    return _Simulation(plan, requests, settings, model, delays, seed).run()


class _Simulation:
    def __init__(
        self,
        plan: LoadPlan,
        requests: Sequence[PlannedRequest],
        settings: EngineSettings,
        model: StepModel,
        delays: Delays,
        seed: int,
    ) -> None:
        self._plans, self._planned = plan.requests, requests
        self._strategy = strategy_for(plan, START)
        self._scheduler = build_scheduler(settings)
        self._model, self._delays, self._random = model, delays, random.Random(seed)
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = count()
        self._api_free = self._polled = 0
        self._stepping = False
        self._inbox: list[Callable[[], None]] = []
        self._rows: dict[int, dict[str, Any]] = {}
        self._slot: dict[int, int] = {}
        self._index: dict[int, int] = {}  # request key of the engine, which counts arrivals there -> place in the plan
        self.out = Simulated()

    def run(self) -> Simulated:
        self._at(START, self._poll)
        while self._events:
            now, _, act = heappop(self._events)
            act(now)
        self.out.requests = list(self._rows.values())
        self.out.preemptions = self._scheduler.num_preemptions
        return self.out

    def _at(self, when: float, act: Callable[[int], None]) -> None:
        heappush(self._events, (round(when), next(self._order), act))

    def _poll(self, now: int) -> None:
        """The client sends what is due, and looks again when its strategy says so."""
        for rank, due in enumerate(self._strategy.due(now)):
            self._send(now, rank, due)
        following = self._strategy.next_time()
        if following is not None and following > max(now, self._polled):
            self._polled = following
            self._at(following, self._poll)

    def _send(self, now: int, rank: int, due: Due) -> None:
        planned, plan = self._planned[due.index], self._plans[due.index]
        sent = max(now, due.intended + round(self._delays.send.at(rank) * NS_PER_S))
        tokens = planned.input_tokens or 0
        # The server's front takes one request after the other.
        there = max(sent, self._api_free) + round(self._delays.ingest.slope * NS_PER_S)
        self._api_free = there
        self._slot[due.index] = due.slot
        self._rows[due.index] = {
            "request_id": plan.id,
            "slot": due.slot,
            "worker": 0,
            "intended": due.intended,
            "queued": now,
            "sent": sent,
            "outcome": str(Outcome.OK),
            "http_status": 200,
            "input_tokens_planned": tokens,
            "input_tokens_counted": tokens,
            "output_tokens_asked": planned.output_len,
            "output_tokens": 0,
            "tokens_in_first_chunk": 1,
            "count_source": str(CountSource.IDS),
        }
        self._at(there, lambda at: self._tell(at, lambda: self._add(due.index)))

    def _tell(self, now: int, command: Callable[[], None]) -> None:
        """The engine takes commands between steps, and takes a moment to wake."""
        self._inbox.append(command)
        if not self._stepping:
            self._stepping = True
            awake = max(now + self._scattered(self._delays.ingest, 0), self._api_free)
            self._at(min(awake, now + self._delays.patience * NS_PER_S), self._step)

    def _add(self, index: int) -> None:
        planned, key = self._planned[index], len(self._index)
        assert not isinstance(planned.prompt, str)
        self._index[key] = index
        tokens = planned.max_tokens or planned.output_len
        self._scheduler.add(Request(key, self._plans[index].id, list(planned.prompt), tokens))

    def _step(self, now: int) -> None:
        for command in self._inbox:
            command()
        self._inbox.clear()
        self._stepping = self._scheduler.has_work
        if not self._stepping:
            return
        scheduler, plan = self._scheduler, self._scheduler.schedule()
        made = composition(scheduler, plan)
        # A finished row that is computed on costs what a decode does.
        rows = made.decodes + made.padding_tokens
        expected = self._model.seconds(made.prefill_tokens, made.prefills, rows, made.context_tokens)
        end = now + max(1, round(self._model.draw(self._random, expected, made.prefills > 0) * NS_PER_S))
        blocks = scheduler.blocks
        self.out.steps.append(
            (
                *(len(self.out.steps), now, end, made.prefill_tokens, made.decodes, made.prefills),
                *(len(scheduler.running), len(scheduler.waiting), len(plan.preempted), made.context_tokens),
                *(blocks.num_allocated, blocks.num_blocks),
                scheduler.tokens_held + (made.prefill_tokens + made.decodes if blocks.keeps_kv else 0),
                scheduler.blocks_reserved,
            )
        )
        self._at(end, lambda at: self._end(at, plan))

    def _end(self, now: int, plan: StepPlan) -> None:
        """Everybody who caught up gets a token; no two requests make the same ones, so that no cache finds them alike."""
        samples = [item.request for item in plan.items if item.samples and not item.is_padding]
        advanced = self._scheduler.commit(plan, [-1 - request.key for request in samples])
        late = self._scattered(self._delays.deliver, 0)
        for rank, request in enumerate(advanced):
            self._deliver(now + late + round(self._delays.deliver.slope * rank * NS_PER_S), request)
        self._at(now + round(self._delays.gap.at(len(advanced)) * NS_PER_S), self._step)

    def _deliver(self, arrival: int, request: Request) -> None:
        index = self._index[request.key]
        row = self._rows[index]
        row["output_tokens"] += 1
        if row["output_tokens"] > row["output_tokens_asked"]:
            return  # on its way when the client ended the answer
        row.setdefault("first_byte", arrival)
        row.setdefault("first_token", arrival)
        row["last_token"] = arrival
        self.out.chunks.append(
            {"request_id": request.request_id, "t": arrival, "kind": str(ChunkKind.TEXT), "tokens": 1}
        )
        if row["output_tokens"] < row["output_tokens_asked"]:
            return
        row["end"] = arrival
        self.out.ended = max(self.out.ended, arrival)
        if request.finish_reason is None:  # it may make more: the client hangs up
            self._at(arrival, lambda at: self._tell(at, lambda: self._abort(request.key)))
        self._at(arrival, lambda at: self._answered(at, index))

    def _scattered(self, line: Line, x: float) -> int:
        """A delay as they lie about their line, in ns."""
        return max(0, round((line.at(x) + self._random.choice(line.scatter)) * NS_PER_S))

    def _abort(self, key: int) -> None:
        self._scheduler.abort(key)

    def _answered(self, now: int, index: int) -> None:
        self._strategy.ended(self._slot[index], now)
        self._poll(now)


def plan_of(requests: Sequence[PlannedRequest]) -> tuple[RequestPlan, ...]:
    """The requests as the client's strategies read them; there are no bodies."""
    return tuple(
        RequestPlan(f"r{index:07d}", request.input_tokens, request.output_len, 0, 0, request.chain, request.at_ns)
        for index, request in enumerate(requests)
    )
