"""What must hold of any cell, whoever measured it: a breach is a reason code with its evidence.

    times add up      TTFT + the sum of the gaps between chunks with tokens = E2E, per request
    in flight         requests at the server (running + waiting) = requests in flight at the client, but for those on their way:
                      neither more at the server (somebody else's) nor plainly fewer (not its counters, or a queue before it)
    KV cache          tokens held <= tokens in the blocks used <= tokens held + sequences x (block - 1) + the step's new tokens
                      + what those that do not decode yet may have been given for the rest of their prompts

The order of stamps and the counts of tokens are looked at where the facts of a cell are gathered (`results.cell_facts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from results.clock import NS_PER_MS
from results.events import MISSING, Ints, Requests, Samples
from results.kv_use import setting
from results.schema import Outcome
from results.tokens import TokenChunks
from results.truth import Steps

GAPS, IN_FLIGHT, KV = "gaps_do_not_add_up", "in_flight_disagrees", "kv_use_impossible"
# Fewer readings of the server's gauges than this say nothing: each may have met a moment of change.
_ENOUGH_READINGS = 10
# Requests that the server has more than the client sent, in the median over its readings.
_MORE = 1.0
# ... and fewer: so many, and such a share of the client's. A request that has just come is not in the server's queue yet, and
# one whose last token is on its way is out of it.
_FEWER, _FEWER_SHARE = 2.0, 0.25


def breaches(
    requests: Requests,
    tokens: TokenChunks,
    samples: Samples,
    steps: Steps | None,
    session: Mapping[str, Any],
    cell: tuple[int, int],
) -> dict[str, str]:
    """Codes of what cannot be, with their evidence. `steps` are those of the cell, `cell` [started, ended] of its record."""
    found = {
        GAPS: gaps_that_do_not_add_up(requests, tokens),
        IN_FLIGHT: in_flight_disagrees(requests, samples, cell),
        KV: kv_beyond_bounds(steps, session, longest_context(requests)),
    }
    return {code: evidence for code, evidence in found.items() if evidence}


def gaps_that_do_not_add_up(requests: Requests, tokens: TokenChunks) -> str | None:
    """TTFT and the gaps of its chunks must lead to each request's last token."""
    if not len(tokens):
        return None
    request = tokens.request
    starts = np.flatnonzero(tokens.first)
    ends = np.append(starts[1:], len(tokens)) - 1
    mine = request[starts]
    ok = (requests.outcome[mine] == str(Outcome.OK)) & (requests.first_token[mine] != MISSING)
    gaps = np.where(tokens.first, 0, tokens.gaps())
    total = np.add.reduceat(gaps, starts)
    reached = requests.first_token[mine] + total
    wrong = ok & (reached != requests.last_token[mine])
    backwards = ok & (np.minimum.reduceat(gaps, starts) < 0)
    # Chunks of one stream that were stamped out of order come sorted by now: their first or last stamp tells.
    wrong |= ok & ((tokens.t[starts] != requests.first_token[mine]) | (tokens.t[ends] != requests.last_token[mine]))
    bad = np.flatnonzero(wrong | backwards)
    if not len(bad):
        return None
    at = bad[0]
    apart = (reached[at] - requests.last_token[mine[at]]) / NS_PER_MS
    return (
        f"{len(bad)} of {int(ok.sum())} requests, e.g. {requests.request_id[mine[at]]}: its first token and the gaps after it end "
        f"{abs(apart):.3f} ms {'after' if apart > 0 else 'before'} its last token"
    )


def in_flight_at(requests: Requests, low: Ints, high: Ints) -> Ints:
    """The most requests in flight at the client at any instant of each [low, high] (ns)."""
    known = (requests.queued != MISSING) & (requests.end != MISSING)
    began = np.sort(requests.queued[known])
    over = np.sort(requests.end[known])
    out: Ints = np.searchsorted(began, high, side="right") - np.searchsorted(over, low, side="left")
    return out


def answered_at(requests: Requests, low: Ints, high: Ints) -> Ints:
    """How many requests had their first token before each [low, high] (ns) and their last one after it."""
    known = (requests.outcome == str(Outcome.OK)) & (requests.first_token != MISSING) & (requests.last_token != MISSING)
    first, last = np.sort(requests.first_token[known]), np.sort(requests.last_token[known])
    out: Ints = np.searchsorted(first, low, side="right") - np.searchsorted(last, high, side="left")
    return np.maximum(out, 0)


def in_flight_disagrees(requests: Requests, samples: Samples, cell: tuple[int, int]) -> str | None:
    """A server that is busy with more requests than the client has in flight serves somebody else too; one that knows of plainly
    fewer than it gives tokens to has gauges that do not look at all of them, or that are another server's. Requests that wait
    unseen before their first token are not told: they look like those that came during a long step."""
    low, high, running = _readings(samples, "running", cell)
    low_waiting, _, waiting = _readings(samples, "waiting", cell)
    if len(low) < _ENOUGH_READINGS or not np.array_equal(low, low_waiting):
        return None
    there, most, least = running + waiting, in_flight_at(requests, low, high), answered_at(requests, low, high)
    told = f"in the median of {len(low)} readings the server had {np.median(there):.0f} requests running or waiting, where the client"
    if float(np.median(there - most)) >= _MORE:
        return f"{told} had at most {np.median(most):.0f} in flight"
    # An engine tells its counts once a step, and takes up once a step what has come: it surely knows of those it gave a token.
    fresh = least > 0
    if fresh.sum() < _ENOUGH_READINGS:
        return None
    there, least = there[fresh], least[fresh]
    if float(np.median(least - there)) >= max(_FEWER, _FEWER_SHARE * float(np.median(least))):
        told = f"in the median of {fresh.sum()} readings beside tokens the server had {np.median(there):.0f} requests"
        return f"{told} running or waiting, where the client had at least {np.median(least):.0f} in flight"
    return None


def _readings(samples: Samples, metric: str, cell: tuple[int, int]) -> tuple[Ints, Ints, Any]:
    t0, t1, values = samples.spans("server", metric)
    inside = (t0 >= cell[0]) & (t1 <= cell[1])
    return t0[inside], t1[inside], values[inside]


def longest_context(requests: Requests) -> int:
    """The most tokens that a request of the cell can come to: its prompt and its answer."""
    prompts = np.maximum(requests.input_tokens_planned, requests.input_tokens_counted)
    return int((np.maximum(prompts, 0) + np.maximum(requests.output_tokens_asked, 0)).max(initial=0))


def kv_beyond_bounds(steps: Steps | None, session: Mapping[str, Any], longest: int) -> str | None:
    """Blocks in use against the tokens held in them, step by step, where the engine logs its steps.

    Only a paged cache that gives blocks out as they are needed keeps the upper bound: reserving more is what the others do. An
    engine may give a prompt (or what a preempted request comes back with) all its blocks at once and compute it in chunks: each
    request that does not decode may hold blocks for `longest` tokens.
    """
    block = setting(session, "block_size")
    if steps is None or not len(steps) or not isinstance(block, int) or block < 1 or not steps.tells("tokens_held"):
        return None
    used, held = steps.blocks_allocated * block, steps.tokens_held
    running = steps.running
    low = used < held
    not_decoding = np.maximum(running - steps.decodes, 0)
    spare = running * (block - 1) + steps.prefill_tokens + steps.decodes + not_decoding * longest
    on_demand = setting(session, "kv_layout") in (None, "paged") and setting(session, "admission") in (
        None,
        "on-demand",
    )
    high = (used > held + spare) & on_demand
    bad = np.flatnonzero(low | high)
    if not len(bad):
        return None
    at = bad[0]
    which = "fewer than they hold" if low[at] else f"more than {held[at] + spare[at]} that they can take"
    return (
        f"{len(bad)} of {len(steps)} steps, e.g. step {steps.step[at]}: {running[at]} sequences hold {held[at]} tokens in blocks "
        f"for {used[at]}, {which}"
    )
