"""The rules behind the reason codes: each reads plain facts about a cell and says what it found, or None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from results.client_load import ClientLoad
from results.device_facts import DeviceFacts
from results.load_facts import LoadFacts


class Severity(StrEnum):
    NOTE = "note"
    SUSPECT = "suspect"
    INVALID = "invalid"


@dataclass(slots=True)
class CellFacts:
    """What the rules may know of a cell. None is "not known": a rule that lacks a fact says nothing.

    `found` maps codes that the runner or a metric reported to their evidence. Server counts are counter differences over
    the cell and None unless the counters were read on both sides of it.
    """

    issued: int = 0
    ok: int = 0
    by_outcome: Mapping[str, int] = field(default_factory=dict)
    timeouts: Mapping[str, int] = field(default_factory=dict)
    first_error: str | None = None
    mode: str = "batch"
    workload: str = "random"
    uncounted: int = 0
    output_asked: int = 0
    output_delivered: int = 0
    output_delivered_in_chunks: int | None = None
    input_tokens: int = 0
    longest_output: int = 0
    longest_input: int = 0
    prompts_differ: int = 0
    prompts_difference: str = ""
    disordered: int = 0
    disordered_example: str = ""
    server_prompt_tokens: float | None = None
    server_generation_tokens: float | None = None
    counter_fell: str | None = None
    server_samples: int = 0
    sampler_ended: str | None = None
    lag_ms_p99: float | None = None
    tpot_ms_p50: float | None = None
    e2e_ms_p50: float | None = None
    receive_stamps: str | None = None
    not_streamed: int | None = None
    retries: int | None = None
    stamps_disbelieved: int | None = None
    coalesced_events: int | None = None
    foreign_cores: float | None = None
    api_server_cores: float | None = None
    host_cpus: float | None = None
    wave_rates: tuple[float, float] | None = None
    wave_count: int = 0
    token_chunks: int = 0
    prefix_hits: float | None = None
    prefix_queries: float | None = None
    # What guessing tokens ahead gave, in words; None where the engine does not.
    speculation: str | None = None
    preemptions: float | None = None
    lock_index: float | None = None
    lock_phases: int = 0
    slots: int = 4
    has_window: bool = False
    window_why: str = ""
    unsteady: str = ""
    overload: str = ""
    device: DeviceFacts | None = None
    withheld: tuple[str, ...] = ()
    client_load: ClientLoad | None = None
    load: LoadFacts = field(default_factory=LoadFacts)
    found: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found; `severity` overrides that of the row."""

    evidence: str
    severity: Severity | None = None


# Above this share of failed requests the rest is no fair sample of the load: failures take work off the server.
FAILED_SHARE_INVALID = 0.10
# An engine that writes this much less than asked does other work than its rivals.
SHORT_SHARE_INVALID = 0.05
FEW_OK_SUSPECT = 8
FEW_OK_NOTE = 20
LAG_MS = 5.0
LAG_SHARE_OF_TPOT = 0.10
LAG_SHARE_OF_E2E = 0.05
# Cores of the machine that somebody else may use; a sampler and an idle desktop stay well below it.
FOREIGN_SHARE = 0.15
# Waves send the same work, so the quickest should be about as quick as the slowest.
WAVE_RATIO = 1.5
# Above this share the system handed over several chunks at once all the time, each with the last one's stamp.
COALESCED_SUSPECT = 0.20
# Above this share of requests sent again, the server drops connections for another reason than idleness, and TTFT hides it.
RETRIED_SUSPECT = 0.05
# (slots, bar): the index above which so many slots, up to the next row, are called locked. Few slots come close by chance.
LOCK_BARS = ((8, 0.7), (4, 0.8), (3, 0.95), (0, 0.99))
LOCK_PHASES = 8
# Below this share of the prompt tokens a hit changes no number.
PREFIX_SHARE_SUSPECT = 0.01
# Tokens a server may make of an answer that its client has ended, before it notices.
UNSEEN_AFTER_END = 8
# From here on the cell measures the size of the KV cache: each preemption computes a whole context again.
PREEMPTED_SHARE_SUSPECT = 0.10
# Events that arrive together have gaps of zero; this many of them move percentiles of the gaps.
COALESCED_SHARE = 0.01


def no_requests_ok(f: CellFacts) -> Finding | None:
    if f.ok:
        return None
    if not f.issued:
        return Finding("no request was issued")
    return Finding(f"0 of {f.issued} requests were answered in full ({_outcomes(f)})" + _first_error(f))


def failures(f: CellFacts) -> Finding | None:
    failed = sum(n for outcome, n in f.by_outcome.items() if outcome not in ("ok", "short", "cancelled"))
    if not failed or not f.ok:
        return None
    share = failed / f.issued
    severity = Severity.INVALID if share > FAILED_SHARE_INVALID else None
    return Finding(f"{failed} of {f.issued} requests failed ({share:.1%}: {_outcomes(f)})" + _first_error(f), severity)


def cancelled(f: CellFacts) -> Finding | None:
    n = f.by_outcome.get("cancelled", 0)
    return Finding(f"{n} of {f.issued} requests were ended by the client") if n else None


def short_outputs(f: CellFacts) -> Finding | None:
    n = f.by_outcome.get("short", 0)
    if not n:
        return None
    missing = 1 - f.output_delivered / f.output_asked if f.output_asked else 0.0
    severity = Severity.INVALID if missing > SHORT_SHARE_INVALID else None
    return Finding(
        f"{n} of {f.issued} requests ended early: {f.output_delivered} of {f.output_asked} output tokens asked for",
        severity,
    )


def server_restarted(f: CellFacts) -> Finding | None:
    return Finding(f"the server's counter {f.counter_fell} fell during the cell") if f.counter_fell else None


def token_counts_disagree(f: CellFacts) -> Finding | None:
    parts = []
    # What failed requests made or consumed at the server never reached the client.
    if f.ok == f.issued:
        for what, client, server, one in (
            ("output", f.output_delivered, f.server_generation_tokens, f.longest_output),
            ("prompt", f.input_tokens, f.server_prompt_tokens, f.longest_input),
        ):
            # After the client has ended an answer by plan, the server may go on for a few steps until it notices.
            unseen = UNSEEN_AFTER_END * f.load.ended_by_plan if what == "output" else 0
            if server is not None and not -one <= server - client <= one + unseen:
                parts.append(f"{what} tokens: client {client}, server {server:.0f}")
    if f.output_delivered_in_chunks is not None and f.output_delivered_in_chunks != f.output_delivered:
        parts.append(f"chunks carry {f.output_delivered_in_chunks} tokens, requests say {f.output_delivered}")
    return Finding("; ".join(parts)) if parts else None


def token_counts_unchecked(f: CellFacts) -> Finding | None:
    if not f.server_samples or f.counter_fell or f.server_generation_tokens is not None:
        return None
    return Finding("the server's token counter was not read both before and after the cell")


def sampling_ended(f: CellFacts) -> Finding | None:
    return Finding(f.sampler_ended) if f.sampler_ended else None


def prompt_tokens_disagree(f: CellFacts) -> Finding | None:
    if not f.prompts_differ:
        return None
    return Finding(f"{f.prompts_differ} of {f.issued} prompts ({f.prompts_difference})")


def stamps_disordered(f: CellFacts) -> Finding | None:
    if not f.disordered:
        return None
    return Finding(f"{f.disordered} of {f.issued} requests, e.g. {f.disordered_example}")


def foreign_load(f: CellFacts) -> Finding | None:
    if f.foreign_cores is None or not f.host_cpus or f.foreign_cores <= FOREIGN_SHARE * f.host_cpus:
        return None
    return Finding(
        f"neither server nor client used {f.foreign_cores:.2f} of the {f.host_cpus:.0f} cores that were busy"
    )


def waves_disagree(f: CellFacts) -> Finding | None:
    if f.wave_rates is None or f.wave_count < 3 or f.wave_rates[1] <= WAVE_RATIO * f.wave_rates[0]:
        return None
    low, high = f.wave_rates
    return Finding(f"output tokens/s of {f.wave_count} like waves lie between {low:.1f} and {high:.1f}")


def client_lag(f: CellFacts) -> Finding | None:
    if f.lag_ms_p99 is None:
        return None
    late = f.lag_ms_p99 > LAG_MS
    # With kernel stamps the client rests on purpose, for less than a stream's tokens are apart.
    beside = (
        f.tpot_ms_p50 is not None and f.lag_ms_p99 > LAG_SHARE_OF_TPOT * f.tpot_ms_p50 and f.receive_stamps != "kernel"
    )
    if not late and not beside:
        return None
    tpot = "" if f.tpot_ms_p50 is None else f", TPOT p50 {f.tpot_ms_p50:.1f} ms"
    evidence = f"client lag p99 {f.lag_ms_p99:.2f} ms{tpot}"
    if f.receive_stamps != "kernel":
        return Finding(evidence)
    # Kernel stamps keep the lag out of the times. What is left of it: the client sends its next request that much later,
    # which lowers throughput by the share of a request's whole time that it is.
    delays = f.e2e_ms_p50 is None or f.lag_ms_p99 > LAG_SHARE_OF_E2E * f.e2e_ms_p50
    e2e = "" if f.e2e_ms_p50 is None else f", E2E p50 {f.e2e_ms_p50:.1f} ms"
    kept = (
        "the times hold where chunks came one by one"
        if f.coalesced_events
        else "kernel stamps keep it out of the times"
    )
    return Finding(f"{evidence}{e2e}; {kept}", None if delays else Severity.NOTE)


def no_kernel_stamps(f: CellFacts) -> Finding | None:
    who = {"read": "chunks are", "mixed": "some chunks are"}.get(str(f.receive_stamps))
    return Finding(f"{who} stamped when the client read them") if who else None


def no_tokens_counted(f: CellFacts) -> Finding | None:
    if not f.uncounted:
        return None
    nothing = f.uncounted == f.ok
    return Finding(
        f"{f.uncounted} of {f.ok} requests answered in full say of no token", Severity.INVALID if nothing else None
    )


def not_streamed(f: CellFacts) -> Finding | None:
    return Finding(f"{f.not_streamed} of {f.ok} answers came in one piece") if f.not_streamed else None


def retried(f: CellFacts) -> Finding | None:
    if not f.retries:
        return None
    # One connection that idled too long is no sign of anything, however short the cell.
    many = f.retries > max(1.0, RETRIED_SUSPECT * f.issued)
    return Finding(f"{f.retries} of {f.issued} requests", Severity.SUSPECT if many else None)


def stamps_disbelieved(f: CellFacts) -> Finding | None:
    return Finding(f"{f.stamps_disbelieved} receive stamps") if f.stamps_disbelieved else None


def coalesced(f: CellFacts) -> Finding | None:
    if not f.coalesced_events or f.coalesced_events <= COALESCED_SHARE * f.token_chunks:
        return None
    many = f.coalesced_events > COALESCED_SUSPECT * f.token_chunks
    evidence = f"{f.coalesced_events} of {f.token_chunks} chunks with tokens came in one read with the one before"
    return Finding(evidence, Severity.SUSPECT if many else None)


def prefix_cache_hits(f: CellFacts) -> Finding | None:
    # Other workloads are there to share prefixes.
    if not f.prefix_hits or f.workload != "random":
        return None
    of = f.prefix_queries or f.input_tokens
    share = f.prefix_hits / of if of else 1.0
    evidence = f"{f.prefix_hits:.0f} of {of:.0f} prompt tokens looked up ({share:.1%})"
    if f.preemptions:
        evidence += f"; {f.preemptions:.0f} preemptions, after which a request may find its own blocks again"
    return Finding(evidence, None if share > PREFIX_SHARE_SUSPECT else Severity.NOTE)


def preemptions(f: CellFacts) -> Finding | None:
    if not f.preemptions:
        return None
    often = f.preemptions > PREEMPTED_SHARE_SUSPECT * f.issued
    return Finding(f"{f.preemptions:.0f} preemptions in {f.issued} requests", Severity.SUSPECT if often else None)


def few_samples(f: CellFacts) -> Finding | None:
    if not f.ok or f.ok >= FEW_OK_NOTE:
        return None
    return Finding(f"{f.ok} requests answered in full", Severity.SUSPECT if f.ok < FEW_OK_SUSPECT else None)


def withheld(f: CellFacts) -> Finding | None:
    return Finding("; ".join(f.withheld)) if f.withheld else None


def lock_bar(slots: int) -> float:
    """The lock index above which a closed loop of so many slots is called locked.

    Slots that never meet still have some index by chance. Of 600 simulated loops of independent slots (150 from 8 on), each
    first request shortened, 6 to 30 requests a slot, these shares are above the bar:

        slots                 2          3          4          8, 16
        bar                   0.99       0.95       0.8        0.7
        equal lengths         3 to 5 %   1 to 2 %   2 %        none
        lengths +-20 %        none       none       0 to 0.2 % none

    At one bar of 0.7, 22 to 24 % of two slots of equal lengths would be, and 0 to 13 % of two with lengths +-20 %.
    """
    return next(bar for least, bar in LOCK_BARS if slots >= least)


def phase_lock(f: CellFacts) -> Finding | None:
    if f.mode != "concurrency" or f.lock_index is None or f.lock_phases < LOCK_PHASES:
        return None
    if f.lock_index <= lock_bar(f.slots):
        return None
    return Finding(
        f"lock index {f.lock_index:.2f} over {f.lock_phases} phases (1: all slots send at the same instants)"
    )


def no_server_metrics(f: CellFacts) -> Finding | None:
    return None if f.server_samples else Finding("no metric of the server was read during the cell")


def _outcomes(f: CellFacts) -> str:
    kinds = ", ".join(f"{n} {kind}" for kind, n in f.timeouts.items())
    told = {"timeout": f" ({kinds})" if kinds else ""}
    return ", ".join(
        f"{n} {outcome}{told.get(outcome, '')}" for outcome, n in sorted(f.by_outcome.items()) if n and outcome != "ok"
    )


def _first_error(f: CellFacts) -> str:
    return f"; first error: {f.first_error}" if f.first_error else ""
