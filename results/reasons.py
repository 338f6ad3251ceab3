"""Reason codes: what can be said against a number, how bad it is, and what to do. A new one is a row.

A rule reads plain facts about a cell and returns its evidence, or None. Codes the runner or a metric already found come in
through `CellFacts.found`. The verdict is that of the worst reason: INVALID refuses the cell, SUSPECT travels with its
numbers everywhere, a note only explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    NOTE = "note"
    SUSPECT = "suspect"
    INVALID = "invalid"


class Verdict(StrEnum):
    VALID = "VALID"
    SUSPECT = "SUSPECT"
    INVALID = "INVALID"


@dataclass(slots=True)
class CellFacts:
    """What the rules may know of a cell. None is "not known": a rule that lacks a fact says nothing.

    `found` maps codes that the runner or a metric reported to their evidence. Server counts are counter differences over
    the cell and None unless the counters were read on both sides of it.
    """

    issued: int = 0
    ok: int = 0
    by_outcome: Mapping[str, int] = field(default_factory=dict)
    first_error: str | None = None
    mode: str = "batch"
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
    lag_ms_p99: float | None = None
    tpot_ms_p50: float | None = None
    receive_stamps: str | None = None
    lock_index: float | None = None
    lock_phases: int = 0
    has_window: bool = False
    has_device: bool = False
    withheld: tuple[str, ...] = ()
    found: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found; `severity` overrides that of the row."""

    evidence: str
    severity: Severity | None = None


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


# Above this share of failed requests the rest is no fair sample of the load: failures take work off the server.
FAILED_SHARE_INVALID = 0.10
# An engine that writes this much less than asked does other work than its rivals.
SHORT_SHARE_INVALID = 0.05
FEW_OK_SUSPECT = 8
FEW_OK_NOTE = 20
LAG_MS = 5.0
LAG_SHARE_OF_TPOT = 0.10
LOCK_INDEX = 0.7
LOCK_PHASES = 8


def _no_requests_ok(f: CellFacts) -> Finding | None:
    if f.ok:
        return None
    if not f.issued:
        return Finding("no request was issued")
    return Finding(f"0 of {f.issued} requests were answered in full ({_outcomes(f)})" + _first_error(f))


def _failures(f: CellFacts) -> Finding | None:
    failed = sum(n for outcome, n in f.by_outcome.items() if outcome not in ("ok", "short", "cancelled"))
    if not failed or not f.ok:
        return None
    share = failed / f.issued
    severity = Severity.INVALID if share > FAILED_SHARE_INVALID else None
    return Finding(f"{failed} of {f.issued} requests failed ({share:.1%}: {_outcomes(f)})" + _first_error(f), severity)


def _cancelled(f: CellFacts) -> Finding | None:
    n = f.by_outcome.get("cancelled", 0)
    return Finding(f"{n} of {f.issued} requests were ended by the client") if n else None


def _short_outputs(f: CellFacts) -> Finding | None:
    n = f.by_outcome.get("short", 0)
    if not n:
        return None
    missing = 1 - f.output_delivered / f.output_asked if f.output_asked else 0.0
    severity = Severity.INVALID if missing > SHORT_SHARE_INVALID else None
    return Finding(
        f"{n} of {f.issued} requests ended early: {f.output_delivered} of {f.output_asked} output tokens asked for",
        severity,
    )


def _server_restarted(f: CellFacts) -> Finding | None:
    return Finding(f"the server's counter {f.counter_fell} fell during the cell") if f.counter_fell else None


def _token_counts_disagree(f: CellFacts) -> Finding | None:
    parts = []
    # What failed requests made or consumed at the server never reached the client.
    if f.ok == f.issued:
        for what, client, server, one in (
            ("output", f.output_delivered, f.server_generation_tokens, f.longest_output),
            ("prompt", f.input_tokens, f.server_prompt_tokens, f.longest_input),
        ):
            if server is not None and abs(server - client) > one:
                parts.append(f"{what} tokens: client {client}, server {server:.0f}")
    if f.output_delivered_in_chunks is not None and f.output_delivered_in_chunks != f.output_delivered:
        parts.append(f"chunks carry {f.output_delivered_in_chunks} tokens, requests say {f.output_delivered}")
    return Finding("; ".join(parts)) if parts else None


def _prompt_tokens_disagree(f: CellFacts) -> Finding | None:
    if not f.prompts_differ:
        return None
    return Finding(f"{f.prompts_differ} of {f.issued} prompts ({f.prompts_difference})")


def _stamps_disordered(f: CellFacts) -> Finding | None:
    if not f.disordered:
        return None
    return Finding(f"{f.disordered} of {f.issued} requests, e.g. {f.disordered_example}")


def _client_lag(f: CellFacts) -> Finding | None:
    if f.lag_ms_p99 is None:
        return None
    late = f.lag_ms_p99 > LAG_MS
    beside = f.tpot_ms_p50 is not None and f.lag_ms_p99 > LAG_SHARE_OF_TPOT * f.tpot_ms_p50
    if not late and not beside:
        return None
    tpot = "" if f.tpot_ms_p50 is None else f", TPOT p50 {f.tpot_ms_p50:.1f} ms"
    # Kernel stamps keep the lag out of the times; it then only delays what the client sends next.
    mild = f.receive_stamps == "kernel" and not (late and beside)
    return Finding(f"client lag p99 {f.lag_ms_p99:.2f} ms{tpot}", Severity.NOTE if mild else None)


def _no_kernel_stamps(f: CellFacts) -> Finding | None:
    return Finding("chunks are stamped when the client read them") if f.receive_stamps == "read" else None


def _few_samples(f: CellFacts) -> Finding | None:
    if not f.ok or f.ok >= FEW_OK_NOTE:
        return None
    return Finding(f"{f.ok} requests answered in full", Severity.SUSPECT if f.ok < FEW_OK_SUSPECT else None)


def _withheld(f: CellFacts) -> Finding | None:
    return Finding("; ".join(f.withheld)) if f.withheld else None


def _phase_lock(f: CellFacts) -> Finding | None:
    if f.mode != "concurrency" or f.lock_index is None or f.lock_phases < LOCK_PHASES or f.lock_index <= LOCK_INDEX:
        return None
    return Finding(
        f"lock index {f.lock_index:.2f} over {f.lock_phases} phases (1: all slots send at the same instants)"
    )


def _no_window(f: CellFacts) -> Finding | None:
    return None if f.has_window else Finding("figures are of the whole cell, start-up and drain included")


def _no_device(f: CellFacts) -> Finding | None:
    return None if f.has_device else Finding("no device was sampled")


def _no_server_metrics(f: CellFacts) -> Finding | None:
    return None if f.server_samples else Finding("no metric of the server was read during the cell")


def _outcomes(f: CellFacts) -> str:
    return ", ".join(f"{n} {outcome}" for outcome, n in sorted(f.by_outcome.items()) if n and outcome != "ok")


def _first_error(f: CellFacts) -> str:
    return f"; first error: {f.first_error}" if f.first_error else ""


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
        _no_requests_ok,
    ),
    Row(
        "failures",
        _S,
        "Some requests failed",
        "Failed requests are out of the latencies and took work off the server, which flatters it. Lower the load or raise "
        "the engine's limits until none fail.",
        _failures,
    ),
    Row(
        "server_restarted",
        _I,
        "The server restarted during the cell",
        "See the session's server.log. Numbers of two lives of a server are not one cell.",
        _server_restarted,
    ),
    Row(
        "stamps_disordered",
        _I,
        "Times that cannot be: a later event stamped before an earlier one",
        "Please report it with the cell's requests.parquet: the client or the machine's clock is at fault.",
        _stamps_disordered,
    ),
    Row(
        "short_outputs",
        _S,
        "Outputs shorter than asked",
        "The engine ended early although it was to ignore end-of-sequence: it did less work. Check that it honours "
        "ignore_eos and that prompt plus output fit its context.",
        _short_outputs,
    ),
    Row(
        "cancelled_requests",
        _S,
        "The client ended requests itself",
        "Their tokens count in throughput but not in latency. Let the cell run to its end.",
        _cancelled,
    ),
    Row(
        "token_counts_disagree",
        _S,
        "Client and server count different numbers of tokens",
        "Something else uses the server, or tokens were lost or counted twice. Make sure nothing else sends requests.",
        _token_counts_disagree,
    ),
    Row(
        "prompt_tokens_disagree",
        _S,
        "The server counted other prompt lengths than were sent",
        "The server may add a beginning-of-sequence token or cut prompts; compare engines only at equal counts.",
        _prompt_tokens_disagree,
    ),
    Row(
        "truth_unreadable",
        _S,
        "The engine's step log cannot be read",
        "Client figures stand; what only the steps tell is estimated or missing. The evidence names the file.",
    ),
    Row(
        "client_lag",
        _S,
        "The client read late",
        "The machine or the client is saturated. Give the client a core of its own, or lower the load.",
        _client_lag,
    ),
    Row(
        "phase_lock",
        _S,
        "The closed loop locked in phase",
        "All slots start together, so TTFT measures the lock. Vary the output lengths (leave out exact lengths), or use "
        "--batch, where the lock is meant.",
        _phase_lock,
    ),
    Row(
        "few_samples",
        _N,
        "Few requests",
        f"High percentiles need more: p90 from 10, p95 from 20, p99 from 100; below {FEW_OK_SUSPECT} even the median is "
        "shaky. Raise --requests.",
        _few_samples,
    ),
    Row(
        "percentiles_withheld",
        _N,
        "Percentiles withheld",
        "A percentile is shown from n (1 - p) >= 1 values on. Raise --requests.",
        _withheld,
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
        _no_kernel_stamps,
    ),
    Row("no_window", _N, "No steady-state window", "Compare whole-cell figures with each other only.", _no_window),
    Row(
        "no_device_telemetry",
        _N,
        "No device telemetry",
        "Expected on a machine without a supported accelerator.",
        _no_device,
    ),
    Row(
        "no_server_metrics",
        _N,
        "No server metrics",
        "Running, waiting and KV use are the server's to tell; this one has no metrics page, or it was not reached.",
        _no_server_metrics,
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
    """Every reason that applies, worst first; a code appears once. A code that is no row degrades to SUSPECT."""
    reasons = []
    for row in REASONS:
        finding = row.rule(facts) if row.rule else None
        evidence = [finding.evidence] if finding else []
        if row.code in facts.found:
            evidence.append(facts.found[row.code])
        if evidence:
            severity = (finding.severity if finding else None) or row.severity
            reasons.append(Reason(row.code, severity, row.words, "; ".join(e for e in evidence if e), row.advice))
    for code, text in facts.found.items():
        if code not in REASON:
            reasons.append(Reason(code, Severity.SUSPECT, code.replace("_", " "), text, UNKNOWN_ADVICE))
    worst_first = list(Severity)[::-1]
    return sorted(reasons, key=lambda r: worst_first.index(r.severity))


def reason(code: str, evidence: str) -> Reason:
    """One reason by its code alone."""
    return reasons_of(
        CellFacts(issued=1, ok=FEW_OK_NOTE, has_window=True, has_device=True, server_samples=1, found={code: evidence})
    )[0]


def verdict(reasons: Iterable[Reason | Mapping[str, Any]]) -> Verdict:
    """The verdict of a cell: that of its worst reason. A severity it does not know counts as suspect."""
    severities = {str(r.severity if isinstance(r, Reason) else r.get("severity")) for r in reasons}
    if Severity.INVALID in severities:
        return Verdict.INVALID
    return Verdict.SUSPECT if severities - {str(Severity.NOTE)} else Verdict.VALID
