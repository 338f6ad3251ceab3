"""The facts about a cell that the reason rules read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from results import rules_speculation
from results.clock import NS_PER_MS
from results.events import MISSING, Ints, Requests, Samples
from results.prompt_counts import prompt_counts
from results.reason_rules import CellFacts
from results.schema import Outcome
from results.server_use import ServerUse
from results.tokens import TokenChunks

# Stamps of one machine from two sources (the kernel's wall clock, our monotonic one) agree to well under this.
_ORDER_TOLERANCE_NS = NS_PER_MS
_IN_ORDER = ("intended", "queued", "sent", "first_byte", "first_token", "last_token", "end")


def cell_facts(
    requests: Requests,
    tokens: TokenChunks,
    output: Ints,
    samples: Samples,
    whole: Mapping[str, Any] | None,
    client: Mapping[str, Any],
    server: ServerUse,
) -> CellFacts:
    """All but what the caller knows better: mode, lock index, codes found elsewhere."""
    outcomes, counts = np.unique(requests.outcome.astype(str), return_counts=True)
    by_outcome = {str(o): int(n) for o, n in zip(outcomes, counts, strict=True)}
    asked = np.maximum(requests.output_tokens_asked, 0)
    ok = requests.outcome == str(Outcome.OK)
    answered = ok | (requests.outcome == str(Outcome.SHORT))
    prompts = prompt_counts(requests, client.get("endpoint"))
    disorder = _disordered(requests)
    # Chunks can be held against requests only where every chunk says how many tokens it carries.
    in_chunks = int(tokens.tokens.sum()) if len(tokens) and (tokens.tokens >= 0).all() else None
    streamed = len(np.unique(tokens.request)) == int((output > 0).sum())
    errors = [
        f"{o}: {e}" if e else o
        for o, e in zip(requests.outcome, requests.error, strict=True)
        if o not in ("ok", "short")
    ]
    late = requests.outcome == str(Outcome.TIMEOUT)
    # The client's words for it begin with what took too long (connect, first token, between tokens, total).
    kinds = [str(e).partition(":")[0] if e else "unknown" for e in requests.error[late]]
    here = (samples.source == "server") & np.isfinite(samples.value)
    facts = CellFacts(
        issued=len(requests),
        ok=by_outcome.get(str(Outcome.OK), 0),
        by_outcome=by_outcome,
        timeouts={kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        first_error=str(errors[0])[:200] if errors else None,
        uncounted=int((ok & (asked > 0) & (output <= 0)).sum()),
        output_asked=int(asked[answered | (output > 0)].sum()),
        output_delivered=int(output.sum()),
        output_delivered_in_chunks=in_chunks if streamed else None,
        input_tokens=int((whole or {}).get("input_tokens") or 0),
        longest_output=int(asked.max()) if len(asked) else 0,
        # Of texts nobody knows the length beforehand.
        longest_input=max(0, int(requests.input_tokens_planned.max()), int(requests.input_tokens_counted.max()))
        if len(requests)
        else 0,
        prompts_differ=prompts.differ,
        prompts_difference=prompts.example,
        disordered=len(disorder),
        disordered_example=next(iter(disorder.values()), ""),
        server_prompt_tokens=server.covered("prompt_tokens"),
        server_generation_tokens=server.covered("generation_tokens"),
        counter_fell=server.fell,
        sampler_ended=samples.unknown_because("sampler", "alive"),
        server_samples=int(here.sum()),
        lag_ms_p99=client["lag_ms_p99"],
        receive_stamps=client["receive_stamps"],
        withheld=_withheld(whole),
        not_streamed=client["not_streamed"],
        retries=client["retries"],
        stamps_disbelieved=client["stamps_disbelieved"],
        coalesced_events=client["coalesced_events"],
        foreign_cores=server.foreign_cores(client["cpu_s"]),
        api_server_cores=server.api_cores,
        host_cpus=server.numbers["host_cpus"],
        token_chunks=len(tokens),
        prefix_hits=server.numbers["prefix_hits"],
        prefix_queries=server.numbers["prefix_queries"],
        preemptions=server.numbers["preemptions"],
        speculation=rules_speculation.evidence(server.numbers),
    )
    tpot, e2e = (whole or {}).get("tpot_ms"), (whole or {}).get("e2e_ms")
    facts.tpot_ms_p50 = tpot["p50"] if tpot else None
    facts.e2e_ms_p50 = e2e["p50"] if e2e else None
    return facts


def _disordered(requests: Requests) -> dict[str, str]:
    """Requests with a stamp before an earlier event's, with the first such pair in words."""
    found: dict[str, str] = {}
    latest = np.full(len(requests), MISSING, dtype=np.int64)
    name_of = np.full(len(requests), "", dtype=object)
    for name in _IN_ORDER:
        stamps: Ints = getattr(requests, name)
        known = stamps != MISSING
        early = known & (latest != MISSING) & (latest - np.where(known, stamps, latest) > _ORDER_TOLERANCE_NS)
        for at in np.flatnonzero(early):
            text = (
                f"{requests.request_id[at]}: {name} {(latest[at] - stamps[at]) / NS_PER_MS:.1f} ms before {name_of[at]}"
            )
            found.setdefault(str(requests.request_id[at]), text)
        name_of[known & (stamps >= latest)] = name
        latest = np.where(known, np.maximum(latest, stamps), latest)
    return found


def _withheld(whole: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Percentiles of the headline latencies that are not shown although there are values, in words."""
    out = []
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        found = (whole or {}).get(name)
        hidden = [p for p in (found or {}).get("withheld", {}) if p != "intervals"]
        if found and found["n"] and hidden:
            out.append(f"{name} {', '.join(hidden)} (n = {found['n']})")
    return tuple(out)
