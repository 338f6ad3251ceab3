"""The engine: a step is schedule, run, commit. One owner thread runs it; everyone else sends messages."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace

from backends.reference.admission import RefusedError
from backends.reference.composition import composition
from backends.reference.messages import Abort, EngineStats, Failed, NewToken, StepOutput, Stop, Submit
from backends.reference.owner import OwnerThread
from backends.reference.request import Request, StepPlan
from backends.reference.runner import Runner
from backends.reference.scheduler import Scheduler
from backends.reference.truth import NoTruth, TruthLog

log = logging.getLogger(__name__)

Command = Submit | Abort | Stop


class Engine:
    """Scheduler and runner, joined. Not thread-safe: it has one owner."""

    def __init__(self, scheduler: Scheduler, runner: Runner, truth: TruthLog | None = None) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.truth = truth or NoTruth()
        self.num_steps = 0
        self._warn_at = 1  # preemptions; doubles, so that a thrashing engine does not flood its log
        self._prompt_tokens = 0
        self._generated_tokens = 0

    def submit(self, message: Submit) -> None:
        """Queue a request; RefusedError when it can never run."""
        self.scheduler.add(
            Request(
                key=message.key,
                request_id=message.request_id,
                tokens=list(message.prompt),
                max_tokens=message.max_tokens,
                sampling=message.sampling,
            )
        )

    def abort(self, key: int) -> None:
        """End a request in any state; unknown and finished ones are left in peace."""
        self.scheduler.abort(key)

    def step(self, scheduled: Callable[[], None] = lambda: None) -> list[NewToken]:
        """Compute one step and return the tokens it made. `scheduled` is called when it is known what the step holds."""
        start = time.monotonic_ns()
        plan = self.scheduler.schedule()
        scheduled()
        made = self.runner.run(plan.items)
        sampled = time.monotonic_ns()
        self._record(plan, start, sampled)  # before the commit frees what it ends: the step held it all
        advanced = self.scheduler.commit(plan, made.tokens)
        new = []
        for request in advanced:
            index = request.num_output_tokens - 1
            logprobs = made.logprobs.get(request.key) if made.logprobs else None
            token = request.tokens[-1]
            if index == 0:
                self._prompt_tokens += request.num_prompt_tokens
                of_prompt = request.prompt_logprobs
                new.append(
                    NewToken(request.key, token, 0, self.num_steps, sampled, request.finish_reason, logprobs, of_prompt)
                )
            else:
                new.append(
                    NewToken(request.key, token, index, self.num_steps, sampled, request.finish_reason, logprobs)
                )
        self._generated_tokens += len(new)
        self.num_steps += 1
        return new

    def stats(self) -> EngineStats:
        """Counts as of now."""
        scheduler = self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_allocated=scheduler.blocks.num_allocated,
            tokens_held=scheduler.tokens_held,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=scheduler.num_preemptions,
            blocks_reserved=scheduler.blocks_reserved,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            steps=self.num_steps,
        )

    def _record(self, plan: StepPlan, start: int, end: int) -> None:
        """Write who left the queue, the step's composition, and the pool as it was at its end to the truth log."""
        scheduler = self.scheduler
        for request in plan.admitted:
            if not request.preemptions:
                self.truth.scheduled(request.request_id, self.num_steps, start)
        made = composition(scheduler, plan)
        self.truth.step(
            self.num_steps,
            start,
            end,
            made.prefill_tokens,
            made.decodes,
            made.prefills,
            len(scheduler.running),
            len(scheduler.waiting),
            len(plan.preempted),
            made.context_tokens,
            scheduler.blocks.num_allocated,
            scheduler.blocks.num_blocks,
            scheduler.tokens_held + (made.prefill_tokens + made.decodes if scheduler.blocks.keeps_kv else 0),
            scheduler.blocks_reserved,
            plan.cached_tokens,
            made.padding_tokens,
        )
        if plan.preempted and scheduler.num_preemptions >= self._warn_at:
            self._warn_at = 2 * scheduler.num_preemptions
            log.warning(
                "%d preemptions so far: the KV pool of %d tokens is small for this load, and preempted requests are "
                "computed again; raise --kv-cache-tokens or lower --max-num-seqs",
                scheduler.num_preemptions,
                scheduler.blocks.num_tokens,
            )


class EngineThread:
    """Serves an engine on its owner's thread. `send` is for any thread; `deliver` is called on the owner's, once a step.

    A request that cannot run is answered with `Failed`. An error in a step is a defect: it ends the thread, after
    every live request was told and `on_death` was called with it.
    """

    def __init__(
        self,
        engine: Engine,
        owner: OwnerThread,
        deliver: Callable[[StepOutput], None],
        on_death: Callable[[Exception], None],
    ) -> None:
        self.engine = engine
        self._published = engine.stats()
        self._unread, self._unread_lock = 0, threading.Lock()
        self._deliver = deliver
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._ended = owner.call(self._run)

    @property
    def stats(self) -> EngineStats:
        """Counts as of the step under way, or of the last one; a request that came meanwhile waits already."""
        return replace(self._published, waiting=self._published.waiting + self._unread)

    def _publish(self) -> None:
        self._published = self.engine.stats()

    def send(self, command: Command) -> None:
        """Have a command applied before the next step."""
        if isinstance(command, Submit):
            self._count_unread(1)
        self._inbox.put(command)

    def _count_unread(self, more: int) -> None:
        with self._unread_lock:
            self._unread += more

    def stop(self, timeout_s: float) -> bool:
        """End after the step in progress; False when that takes longer than `timeout_s`."""
        self.send(Stop())
        return not wait([self._ended], timeout_s).not_done

    def _run(self) -> None:
        try:
            while self._apply_commands():
                tokens = self.engine.step(self._publish) if self.engine.scheduler.has_work else []
                self._publish()
                if tokens:
                    self._deliver(StepOutput(tokens, []))
        except Exception as error:  # the last stop of a defect: tell everybody, then end
            log.exception("engine step %d failed", self.engine.num_steps)
            message = f"The engine failed: {error}"
            self._deliver(StepOutput([], [Failed(key, message) for key in self.engine.scheduler.live_keys]))
            self._on_death(error)

    def _apply_commands(self) -> bool:
        """Apply all commands that are there; wait for one when there is nothing to compute. False on Stop."""
        while True:
            try:
                command = self._inbox.get(block=not self.engine.scheduler.has_work)
            except queue.Empty:
                return True
            if isinstance(command, Stop):
                return False
            if isinstance(command, Abort):
                self.engine.abort(command.key)
                self._publish()
                continue
            try:
                self.engine.submit(command)
            except RefusedError as error:
                self._deliver(StepOutput([], [Failed(command.key, str(error))]))
            self._publish()
            self._count_unread(-1)
