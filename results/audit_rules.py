"""When a difference between engines bears on what was measured: one small rule a kind of setting.

A rule looks at what the engines tell and at what the cells asked of them, and says whether a difference could have changed
a result. It says so only where that follows from the numbers; else the answer is that it may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.audit_facts import Demand, Told
from results.report_format import count, plural

YES, NO, UNSURE = "yes", "no", "unknown"
# Nobody's cache block holds more tokens than this; taken where an engine does not tell its own.
_LARGEST_BLOCK = 256
# A measured peak below this share of the cache leaves room for what the samples and the formula cannot see.
_FAR_BELOW = 0.8


@dataclass(frozen=True, slots=True)
class Bearing:
    """Whether a difference bears on the measured cells (`yes`, `no`, `unknown`), and why."""

    bears: str
    why: str


@dataclass(frozen=True, slots=True)
class Case:
    """One row to judge: what each engine tells for it, for every other row, and what was asked of them."""

    row: str
    told: Mapping[str, Sequence[Told]]
    demand: Demand

    def known(self, row: str | None = None) -> list[Any]:
        return [t.value for t in self.told.get(row or self.row, ()) if t.known]

    def silent(self, row: str | None = None) -> bool:
        """At least one engine does not tell."""
        values = self.told.get(row or self.row, ())
        return not values or not all(t.known for t in values)

    def least(self, row: str | None = None) -> float | None:
        numbers = [v for v in self.known(row) if isinstance(v, int | float) and not isinstance(v, bool)]
        return min(numbers) if numbers else None


Rule = Callable[[Case], Bearing]


def always(why: str) -> Rule:
    """For settings that shape every step."""
    return lambda case: Bearing(YES, why)


def perhaps(why: str) -> Rule:
    """For what has a part in every step, of a size that is not known."""
    return lambda case: Bearing(UNSURE, why)


def limit(need: Callable[[Demand], int | None], what: str) -> Rule:
    """For an upper limit: it bears on cells that asked for more than the smallest one allows."""

    def rule(case: Case) -> Bearing:
        asked, least = need(case.demand), case.least()
        if asked is None:
            return Bearing(UNSURE, f"the cells set no bound to the {what}")
        if least is not None and least < asked:
            return Bearing(YES, f"up to {count(asked)} {what} against a limit of {count(least)}")
        if case.silent():
            return Bearing(UNSURE, f"up to {count(asked)} {what}; not every engine tells its limit")
        return Bearing(NO, f"at most {count(asked)} {what}, below every limit")

    return rule


requests_together = limit(lambda d: d.together, "requests together")
context = limit(lambda d: d.longest, "tokens in one request")
tokens_a_step = limit(lambda d: d.prompt_tokens, "prompt tokens at once")


def kv_room(case: Case) -> Bearing:
    """For the size of the KV cache: it bears on cells that could fill the smallest."""
    if case.demand.preemptions:
        return Bearing(
            YES, f"an engine ran out of KV cache: {plural(int(case.demand.preemptions), 'preemption')} in a cell"
        )
    row = "kv_cache_tokens"
    block = _LARGEST_BLOCK if case.silent("block_size") else int(max(case.known("block_size"), default=1))
    bound, peak, least = case.demand.kv_tokens(max(block, 1)), case.demand.peak_tokens, case.least(row)
    if least is None or case.silent(row):
        return Bearing(UNSURE, "not every engine tells how many tokens its cache holds")
    if bound is not None and bound <= least:
        return Bearing(NO, f"at most {count(bound)} tokens at once, and the smallest cache holds {count(least)}")
    if peak is not None and peak < _FAR_BELOW * least:
        return Bearing(NO, f"{count(peak)} tokens at the peak, and the smallest cache holds {count(least)}")
    if bound is None and peak is None:
        return Bearing(UNSURE, "how many tokens were in the cache at once is not known")
    return Bearing(YES, f"up to {count(bound or peak or 0)} tokens at once; the smallest cache holds {count(least)}")


def promises(case: Case) -> Bearing:
    """For how much of the KV cache a request is promised: it bears unless all at their longest fit the smallest."""
    together, least = case.demand.together, case.least("kv_cache_tokens")
    if together is None:
        return Bearing(UNSURE, "the cells set no bound to the requests together")
    if least is None or case.silent("kv_cache_tokens") or case.silent("max_model_len"):
        return Bearing(UNSURE, "not every engine tells how many tokens its cache and its longest request hold")
    block = max(case.known("block_size"), default=1)
    longest = max(-(-length // block) * block for length in case.known("max_model_len"))
    what = f"{count(together)} requests of at most {count(longest)} tokens; the smallest cache holds {count(least)}"
    return Bearing(NO if together * longest <= least else YES, what)


def joining(case: Case) -> Bearing:
    """For whether requests may join a batch that runs: it bears where they arrive while others decode."""
    d = case.demand
    if d.together == 1:
        return Bearing(NO, "one request at a time is a batch of its own")
    if d.asks is not None and d.mixed:
        return Bearing(YES, "requests arrive while others decode")
    return Bearing(UNSURE, "requests that start together may end at different times")


def queue(case: Case) -> Bearing:
    """For the order of admission: it bears only where requests had to wait to be let in."""
    seats = requests_together(Case("max_num_seqs", case.told, case.demand))
    room = kv_room(case)
    if YES in (seats.bears, room.bears):
        return Bearing(YES, "requests had to wait for a place")
    if seats.bears == room.bears == NO:
        return Bearing(NO, "every request had a place at once: nothing to order")
    return Bearing(UNSURE, seats.why if seats.bears == UNSURE else room.why)


def repeats(case: Case) -> Bearing:
    """For prefix caching: it bears where prompts share a beginning."""
    if case.demand.prefix_hits:
        return Bearing(YES, f"{count(case.demand.prefix_hits)} prompt tokens of a cell came from a prefix cache")
    if case.demand.unique_prompts:
        return Bearing(NO, "prompts are random and never repeat, so there is nothing to hit")
    return Bearing(UNSURE, "prompts of this workload may share a beginning, and hits are not counted")


def splitting(case: Case) -> Bearing:
    """For chunked prefill: it bears where a step could mix prompts with decodes, or a prompt is longer than a step."""
    d = case.demand
    if d.asks is None:
        return Bearing(UNSURE, "the cells bound neither lengths nor batch")
    if d.mixed and (d.together or 0) > 1:
        return Bearing(YES, "prompts arrive while other requests decode")
    step = case.least("max_num_batched_tokens")
    if step is None or case.silent("max_num_batched_tokens"):
        return Bearing(UNSURE, "not every engine tells its tokens a step")
    if (d.prompt_tokens or 0) > step:
        return Bearing(
            YES, f"{count(d.prompt_tokens or 0)} prompt tokens at once are more than a step of {count(step)}"
        )
    return Bearing(NO, f"all prompts of a batch ({count(d.prompt_tokens or 0)} tokens) fit into one step")


def on_device(why: str) -> Rule:
    """For what only a GPU has: it bears unless every engine runs on the CPU."""

    def rule(case: Case) -> Bearing:
        if not case.silent("device") and {str(v) for v in case.known("device")} == {"cpu"}:
            return Bearing(NO, "every engine runs on the CPU, which has no graphs to replay")
        return Bearing(YES, why)

    return rule


def captured(case: Case) -> Bearing:
    """For captured graph sizes: a batch above the largest, or between sizes where the engine does not pad, runs without."""
    if True not in case.known("cuda_graphs") and not case.silent("cuda_graphs"):
        return Bearing(NO, "no engine uses graphs")
    loads = case.demand.loads
    if not loads:
        return Bearing(UNSURE, "how many requests decode together is not bounded")
    sizes = [v for v in case.known("cuda_graph_sizes") if isinstance(v, list | tuple) and v]
    tops = [max(v) for v in sizes if all(isinstance(n, int) for n in v)]
    if tops and loads[-1] > min(tops):
        ran, against = case.demand.realised, f"graphs up to {count(min(tops))}"
        if ran is not None and ran <= min(tops):
            return Bearing(
                UNSURE, f"batches up to {count(loads[-1])} were offered and {ran:.1f} ran together, against {against}"
            )
        return Bearing(YES, f"batches up to {count(loads[-1])} against {against}: the rest runs without")
    if False in case.known("cuda_graph_padding"):
        bare = sorted({n for n in loads for v in sizes if n not in v})
        if bare:
            return Bearing(
                YES, f"no graph for batch {', '.join(count(n) for n in bare)} in an engine that does not pad"
            )
    if case.silent():
        return Bearing(UNSURE, f"batches up to {count(loads[-1])}; not every engine tells what it captured")
    return Bearing(NO, f"batches up to {count(loads[-1])} have a graph in every engine")
