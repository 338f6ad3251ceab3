"""Whether a cell got the load that was asked for, and the client could send it."""

from __future__ import annotations

from results.reason_rules import CellFacts, Finding, Severity

# Sends that are so much rarer than they were to be are another load.
RATE_ACHIEVED = 0.95
# Random arrivals that are so far from their rate are told: few of them, or very uneven ones.
DRAWN_NEAR = 0.10
# Of the client's own lateness in sending: so many ms, or this share of TTFT where that is more.
LATE_MS, LATE_SHARE_OF_TTFT = 5.0, 0.10
_ENOUGH = 20
# From here on the cap shapes the load: the latencies from the intended time hold the wait.
HELD_SUSPECT = 0.10
# Other machines' stamps that may be off by more than this are no better than a client that is late.
CLOCKS_MS = 5.0
# Where so many prompts had been sent before, a prefix cache shapes the figures.
REPEATED_SUSPECT = 0.10


def rate_not_achieved(f: CellFacts) -> Finding | None:
    arrivals = f.load.arrivals or {}
    wanted, had = arrivals.get("intended_per_s"), arrivals.get("achieved_per_s")
    if not wanted or had is None or had >= RATE_ACHIEVED * wanted:
        return None
    return Finding(f"{had:.4g} requests/s were sent of the {wanted:.4g} that were drawn ({had / wanted:.0%})")


def rate_by_chance(f: CellFacts) -> Finding | None:
    arrivals = f.load.arrivals or {}
    asked, drawn = arrivals.get("asked_per_s"), arrivals.get("intended_per_s")
    if not asked or not drawn or abs(drawn / asked - 1) <= DRAWN_NEAR:
        return None
    return Finding(f"{drawn:.4g} requests/s were drawn where {asked:.4g} are the mean")


def not_warmed_up(f: CellFacts) -> Finding | None:
    return Finding(f.load.cold) if f.load.cold and f.ok else None


def held_by_cap(f: CellFacts) -> Finding | None:
    arrivals = f.load.arrivals or {}
    held, share = arrivals.get("held"), arrivals.get("held_share") or 0.0
    if not held:
        return None
    evidence = (
        f"{held} of {f.issued} requests ({share:.1%}); at most {arrivals['most_sent_in_100_ms']} were sent in 100 ms"
    )
    return Finding(evidence, Severity.SUSPECT if share > HELD_SUSPECT else None)


def late_sends(f: CellFacts) -> Finding | None:
    late = (f.load.arrivals or {}).get("late_ms_p99")
    if late is None or f.issued < _ENOUGH or late <= max(LATE_MS, LATE_SHARE_OF_TTFT * (f.load.ttft_ms_p50 or 0.0)):
        return None
    return Finding(f"sent {late:.1f} ms after the intended time (p99)")


def long_outputs(f: CellFacts) -> Finding | None:
    return Finding(f"{f.load.long} of {f.issued} answers, {f.load.long_example}") if f.load.long else None


def usage_disagrees(f: CellFacts) -> Finding | None:
    return Finding(f"{f.load.usage_disagrees} of {f.issued} answers") if f.load.usage_disagrees else None


def tokens_counted_by_chunks(f: CellFacts) -> Finding | None:
    if not f.load.by_chunks:
        return None
    few = f.load.by_chunks_fewer
    more = f"; {few} of them ended for their length with fewer chunks than tokens asked for" if few else ""
    return Finding(f"{f.load.by_chunks} of {f.ok} answers in full{more}", Severity.SUSPECT if few else None)


def no_done(f: CellFacts) -> Finding | None:
    return Finding(f"{f.load.no_done} of {f.ok} streams answered in full") if f.load.no_done else None


def ran_out_of_requests(f: CellFacts) -> Finding | None:
    return Finding(f"all {f.issued} were sent before the time was over") if f.load.ran_out else None


def too_few_descriptors(f: CellFacts) -> Finding | None:
    allowed, most = f.load.descriptor_cap, f.load.max_in_flight
    if allowed is None or most is None or most < allowed:
        return None
    return Finding(
        f"this process may have {allowed} connections, and as many were in flight; `ulimit -Hn {4 * allowed}; "
        f"ulimit -n {4 * allowed}` in the shell that starts dyno raises the limit"
    )


def prompts_repeated(f: CellFacts) -> Finding | None:
    again = f.load.prompts_repeated
    if not again or not f.issued:
        return None
    share = again / f.issued
    evidence = f"{again} of {f.issued} requests had a prompt that had been sent before in this cell ({share:.0%})"
    return Finding(evidence, Severity.SUSPECT if share > REPEATED_SUSPECT else None)


def clocks_of_nodes(f: CellFacts) -> Finding | None:
    if not f.load.nodes:
        return None
    machines = len({node["address"] for node in f.load.nodes})
    worst = max(node["uncertainty_ms"] for node in f.load.nodes)
    evidence = (
        f"{len(f.load.nodes)} load workers on {machines} node{'s' if machines > 1 else ''}; their clocks are known to within "
        f"{worst:.2g} ms"
    )
    return Finding(evidence, Severity.SUSPECT if worst > CLOCKS_MS else None)
