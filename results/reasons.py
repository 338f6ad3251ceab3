"""Reason codes: what can be said against a number, how bad it is, and what to do. A new one is a row.

A rule reads plain facts about a cell and returns its evidence, or None. Codes the runner or a metric already found come in
through `CellFacts.found`. The verdict is that of the worst reason: INVALID refuses the cell, SUSPECT travels with its
numbers everywhere, a note only explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from results import reason_rules as rules
from results.reason_rules import FEW_OK_SUSPECT, CellFacts, Finding, Severity


class Verdict(StrEnum):
    VALID = "VALID"
    SUSPECT = "SUSPECT"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason as it stands in summary.json."""

    code: str
    severity: Severity
    words: str
    evidence: str
    advice: str

    def to_dict(self) -> dict[str, str]:
        return {
            "code": self.code,
            "severity": str(self.severity),
            "words": self.words,
            "evidence": self.evidence,
            "advice": self.advice,
        }


Rule = Callable[[CellFacts], Finding | None]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. Without a rule of its own a code comes only from the runner or a metric."""

    code: str
    severity: Severity
    words: str
    advice: str
    rule: Rule | None = None


_N, _S, _I = Severity.NOTE, Severity.SUSPECT, Severity.INVALID

REASONS: tuple[Row, ...] = (
    Row(
        "unreadable_cell",
        _I,
        "The cell's files cannot be read",
        "Remove the cell's folder and run the same command again.",
    ),
    Row(
        "server_died",
        _I,
        "The server died during the cell",
        "See the last lines of the session's server.log; the cells before it stand.",
    ),
    Row("interrupted", _I, "The cell was interrupted", "Run the same command again to complete the run."),
    Row(
        "load_failed",
        _I,
        "The load worker failed during the cell",
        "Its message is in the evidence. Run the same command again once the cause is gone.",
    ),
    Row(
        "no_requests_ok",
        _I,
        "No request was answered in full",
        "Read the outcomes and the first error; the session's server.log holds the server's side.",
        rules.no_requests_ok,
    ),
    Row(
        "failures",
        _S,
        "Some requests failed",
        "Failed requests are out of the latencies and took work off the server, which flatters it. Lower the load or raise "
        "the engine's limits until none fail.",
        rules.failures,
    ),
    Row(
        "server_restarted",
        _I,
        "The server restarted during the cell",
        "See the session's server.log. Numbers of two lives of a server are not one cell.",
        rules.server_restarted,
    ),
    Row(
        "stamps_disordered",
        _I,
        "Times that cannot be: a later event stamped before an earlier one",
        "Please report it with the cell's requests.parquet: the client or the machine's clock is at fault.",
        rules.stamps_disordered,
    ),
    Row(
        "short_outputs",
        _S,
        "Outputs shorter than asked",
        "The engine ended early although it was to ignore end-of-sequence: it did less work. Check that it honours "
        "ignore_eos and that prompt plus output fit its context.",
        rules.short_outputs,
    ),
    Row(
        "cancelled_requests",
        _S,
        "The client ended requests itself",
        "Their tokens count in throughput but not in latency. Let the cell run to its end.",
        rules.cancelled,
    ),
    Row(
        "no_tokens_counted",
        _S,
        "Answered, but no tokens counted",
        "Neither the stream nor usage tells how many tokens these answers held, so throughput is not known. Use a server that "
        "streams or reports usage (stream_options include_usage).",
        rules.no_tokens_counted,
    ),
    Row(
        "not_streamed",
        _S,
        "Answers that were not streamed",
        "They have no first token: TTFT, TPOT and E2E are not known for them. Make the server stream (some ignore the "
        "request for it behind a proxy), or read throughput only.",
        rules.not_streamed,
    ),
    Row(
        "prefix_cache_hits",
        _S,
        "Random prompts hit the prefix cache",
        "Prompts were repeated, so less was prefilled than sent, which flatters the engine. Restart a server that was "
        "attached to, give another --seed, or turn prefix caching off.",
        rules.prefix_cache_hits,
    ),
    Row(
        "token_counts_disagree",
        _S,
        "Client and server count different numbers of tokens",
        "Something else uses the server, or tokens were lost or counted twice. Make sure nothing else sends requests.",
        rules.token_counts_disagree,
    ),
    Row(
        "prompt_tokens_disagree",
        _S,
        "The server counted other prompt lengths than were sent",
        "The server may add a beginning-of-sequence token or cut prompts; compare engines only at equal counts.",
        rules.prompt_tokens_disagree,
    ),
    Row(
        "truth_unreadable",
        _S,
        "The engine's step log cannot be read",
        "Client figures stand; what only the steps tell is estimated or missing. The evidence names the file.",
    ),
    Row(
        "truth_incomplete",
        _S,
        "The engine's step log does not hold all that was delivered",
        "It was cut off (a full disk?), so the figures that come from steps are taken from client and gauges instead. See the "
        "end of the session's server.log.",
    ),
    Row(
        "foreign_load",
        _S,
        "Other processes used the machine",
        "What they used, the engine and the client went without. Stop them, or measure when the machine is quiet.",
        rules.foreign_load,
    ),
    Row(
        "waves_disagree",
        _S,
        "Waves of the same work took unlike times",
        "Something changed while the cell ran. Look for other load on the machine, and measure again with more --requests.",
        rules.waves_disagree,
    ),
    Row(
        "client_lag",
        _S,
        "The client read late",
        "The machine or the client is saturated. Give the client a core of its own, or lower the load.",
        rules.client_lag,
    ),
    Row(
        "phase_lock",
        _S,
        "The closed loop locked in phase",
        "All slots start together, so TTFT measures the lock. Vary the output lengths (leave out exact lengths), or use "
        "--batch, where the lock is meant.",
        rules.phase_lock,
    ),
    Row(
        "preemptions",
        _N,
        "The engine preempted requests",
        "Its KV cache was too small for the load: each preempted request is computed again, inside the times shown. Suspect "
        f"above {rules.PREEMPTED_SHARE_SUSPECT:.0%} of the requests. Give the engine more KV cache, or lower the load.",
        rules.preemptions,
    ),
    Row(
        "first_of_slot_left_out",
        _N,
        "First requests of the slots are not in E2E",
        "They are shortened so that the closed loop does not lock in phase. They are in all other figures; requests/s reads "
        "a little high for it. Raise --requests to make their share small.",
    ),
    Row(
        "requests_sent_again",
        _N,
        "Requests were sent again on a new connection",
        "The server had closed the idle one. Their TTFT counts from the sending that was answered.",
        rules.retried,
    ),
    Row(
        "stamps_disbelieved",
        _N,
        "Receive stamps that cannot be",
        "The wall clock stepped during the cell; these chunks are stamped when the client read them.",
        rules.stamps_disbelieved,
    ),
    Row(
        "coalesced_events",
        _N,
        "Chunks that arrived together",
        "They carry the arrival of the last of them: gaps between them are 0, and where it is most chunks, TTFT reads late and TPOT "
        "low. Give the client a core of its own, or lower the load.",
        rules.coalesced,
    ),
    Row(
        "few_samples",
        _N,
        "Few requests",
        f"High percentiles need more: p90 from 10, p95 from 20, p99 from 100; below {FEW_OK_SUSPECT} even the median is "
        "shaky. Raise --requests.",
        rules.few_samples,
    ),
    Row(
        "percentiles_withheld",
        _N,
        "Percentiles withheld",
        "A percentile is shown from n (1 - p) >= 1 values on. Raise --requests.",
        rules.withheld,
    ),
    Row(
        "first_chunk_tokens_unknown",
        _N,
        "The number of tokens in the first chunk is not known",
        "TPOT is divided by n - 1, right only if the first chunk held one token. Token ids or continuous usage tell.",
    ),
    Row(
        "itl_not_single_token",
        _N,
        "Chunks may carry several tokens",
        "The gap between chunks is then not the time between tokens; interchunk_ms and tokens_per_chunk are shown instead.",
    ),
    Row(
        "client_phase_estimate",
        _N,
        "Prefill or decode rate estimated at the client",
        "The engine does not tell what its steps hold. In mixed batches the phases overlap and both rates read low.",
    ),
    Row(
        "no_decode_window",
        _N,
        "No decode rate",
        "No instant was found at which a whole wave was decoding: ask for longer outputs or a smaller batch.",
    ),
    Row(
        "no_kernel_stamps",
        _N,
        "No receive stamps from the kernel",
        "The client's own lateness is inside the times and cannot be told from the server's.",
        rules.no_kernel_stamps,
    ),
    Row("no_window", _N, "No steady-state window", "Compare whole-cell figures with each other only.", rules.no_window),
    Row(
        "no_device_telemetry",
        _N,
        "No device telemetry",
        "Expected on a machine without a supported accelerator.",
        rules.no_device,
    ),
    Row(
        "no_server_metrics",
        _N,
        "No server metrics",
        "Running, waiting and KV use are the server's to tell; this one has no metrics page, or it was not reached.",
        rules.no_server_metrics,
    ),
    Row(
        "sampling_ended",
        _N,
        "Sampling ended before the cell did",
        "See the session's sampler.log. Client figures are not touched by it.",
        rules.sampling_ended,
    ),
    Row(
        "token_counts_unchecked",
        _N,
        "Client and server token counts could not be compared",
        "The client's counts stand alone. It needs a server that tells its totals, read right before and after the cell.",
        rules.token_counts_unchecked,
    ),
    Row(
        "kv_formula_unknown",
        _N,
        "KV bytes cannot be predicted",
        "The model's config.json is not known or keeps another kind of state.",
    ),
)
REASON: dict[str, Row] = {row.code: row for row in REASONS}

UNKNOWN_ADVICE = "This version knows no more about it."


def reasons_of(facts: CellFacts) -> list[Reason]:
    """Every reason that applies, worst first; a code appears once."""
    reasons = []
    for row in REASONS:
        finding = row.rule(facts) if row.rule else None
        evidence = [e for e in (finding.evidence if finding else "", facts.found.get(row.code, "")) if e]
        if finding or row.code in facts.found:
            reasons.append(reason(row.code, "; ".join(evidence), finding.severity if finding else None))
    reasons += [reason(code, evidence) for code, evidence in facts.found.items() if code not in REASON]
    worst_first = list(Severity)[::-1]
    return sorted(reasons, key=lambda r: worst_first.index(r.severity))


def reason(code: str, evidence: str, severity: Severity | None = None) -> Reason:
    """One reason by its code. A code that is no row (of a later version, of a plug-in) degrades to SUSPECT."""
    row = REASON.get(code) or Row(code, Severity.SUSPECT, code.replace("_", " "), UNKNOWN_ADVICE)
    return Reason(code, severity or row.severity, row.words, evidence, row.advice)


def verdict(reasons: Iterable[Reason | Mapping[str, Any]]) -> Verdict:
    """The verdict of a cell: that of its worst reason. A severity it does not know counts as suspect."""
    severities = {str(r.severity if isinstance(r, Reason) else r.get("severity")) for r in reasons}
    if Severity.INVALID in severities:
        return Verdict.INVALID
    return Verdict.SUSPECT if severities - {str(Severity.NOTE)} else Verdict.VALID
