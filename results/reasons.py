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

from results import invariants, rules_client, rules_device, rules_engine, rules_load, rules_speculation, rules_steady
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


# A note, since no figure but the uses and shares rests on it; these are told among what not to trust.
CEILING_REFUTED = "ceiling_refuted"
NO_WINDOW = "no_window"

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
        "See the last lines of the session's server.log (of its own log, where somebody else started it); the cells before it stand.",
    ),
    Row(
        "server_failed",
        _I,
        "The server stopped working during the cell, though it still ran",
        "One of ours was ended and the next cell got a fresh one; one of somebody else's was left alone, and the cells after it wait "
        "for it. See the last lines of its log.",
    ),
    Row(
        rules_engine.OUT_OF_MEMORY,
        _I,
        "The engine ran out of memory",
        "Cells of this engine that are as large or larger were not run. Lower the batch or the lengths, or give the engine more "
        "room (kv_cache_bytes, memory_fraction, max_num_seqs, max_num_batched_tokens).",
        rules_engine.out_of_memory,
    ),
    Row(
        "device_lost",
        _I,
        "The device was lost during the cell",
        "Nothing after its last good reading counts. The driver's log (dmesg, Xid) has the cause; it takes a reset or a reboot.",
        rules_device.lost,
    ),
    Row(
        "profiled",
        _I,
        "A profiler watched the cell, which slows it",
        "Compare the cell of the run that it was taken from; this one shows where its time goes.",
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
        "prompts_too_long",
        _S,
        "Prompts longer than the server takes",
        "What was answered is the shorter part of the workload. Give the workload max_len with too_long=drop or too_long=truncate, or "
        "serve the model with a longer context.",
    ),
    Row(
        "bos_duplicated",
        _S,
        "The server put a second begin-of-text token before each prompt",
        "The prompts brought theirs already (a text from a chat template, or token ids): the engine read one token more than "
        "asked, and another one first. Turn its add_special_tokens or add_bos off, or send prompts without.",
    ),
    Row(
        "long_outputs",
        _S,
        "Outputs longer than asked",
        "The engine wrote more tokens than it was allowed: it did other work than its rivals. Check what it makes of max_tokens.",
        rules_load.long_outputs,
    ),
    Row(
        invariants.GAPS,
        _I,
        "Times that do not add up: first token and gaps do not lead to the last token",
        "Please report it with the cell's requests.parquet and chunks.parquet: the client is at fault.",
    ),
    Row(
        "rate_not_achieved",
        _S,
        "Requests were sent at less than the rate asked for",
        "The cap on requests in flight or the client itself held them back, so this is another load than was asked for. Raise "
        "--max-in-flight, lower --rate, or share the load with --workers.",
        rules_load.rate_not_achieved,
    ),
    Row(
        "not_warmed_up",
        _S,
        "The engine was not warmed up before the load",
        "Its first requests may hold work that is done once (compilation, first pages of memory). See the session's server.log for what "
        "became of the warm-up, and measure again.",
        rules_load.not_warmed_up,
    ),
    Row(
        "late_sends",
        _S,
        "The client sent late",
        "Latencies from the intended time hold the client's lateness. Give the client a core of its own, lower the rate, or share "
        "the load with --workers.",
        rules_load.late_sends,
    ),
    Row(
        "too_few_descriptors",
        _S,
        "Too few file descriptors for the load",
        "Requests had to wait for one to become free, in times from the intended send. Raise the limit as the evidence says.",
        rules_load.too_few_descriptors,
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
        "They have no first token: TTFT and TPOT are not known for them, and E2E is to their last byte. Make the server stream "
        "(some ignore the request for it behind a proxy), or read throughput and E2E only.",
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
        "usage_disagrees",
        _S,
        "Token ids and usage of the same answers count different numbers of tokens",
        "The server contradicts itself; its ids are believed. Compare engines with care, and tell its authors.",
        rules_load.usage_disagrees,
    ),
    Row(
        invariants.IN_FLIGHT,
        _S,
        "Server and client do not have the same requests in flight",
        "More at the server: somebody else uses it, or it goes on with requests that have ended; make sure nothing else sends "
        "requests. Fewer: they wait where its gauges do not look (a proxy, a limit on connections), or the gauges are those of "
        "another server; measure the server itself, at its own URL.",
    ),
    Row(
        invariants.KV,
        _S,
        "KV blocks in use and tokens held in them do not fit together",
        "The engine's accounts of its KV cache cannot be right. Read its KV figures with care, and tell its authors.",
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
        "steps_not_told",
        _N,
        "The engine's log does not tell what its steps held",
        "Client figures stand; what only the steps tell is estimated or missing. The evidence says what is in the way.",
    ),
    Row(
        "foreign_load",
        _S,
        "Other processes used the machine",
        "What they used, the engine and the client went without. Stop them, or measure when the machine is quiet.",
        rules.foreign_load,
    ),
    Row(
        "api_server_saturated",
        _S,
        "The server's API process was near one core",
        "It tokenises, streams and answers for all requests in one thread, so the engine behind it may be faster than this. Give it "
        "more API processes where it has them, send less, or stream in larger pieces.",
        rules_engine.api_server_saturated,
    ),
    Row(
        "device_throttled",
        _S,
        "The device slowed down by itself",
        "Heat or its power supply lowered the clocks while the cell ran, so it measures the cooling too. See `dyno doctor --gpu`.",
        rules_device.throttled,
    ),
    Row(
        "clock_spread",
        _S,
        "The device's clock moved during the cell",
        "Speeds at different clocks are not one speed. Warm up longer, or lock the clock (nvidia-smi -lgc) for comparisons.",
        rules_device.clock_spread,
    ),
    Row(
        "foreign_process_on_device",
        _S,
        "Another process used the device",
        "What it used, the engine went without; bandwidth and power are of both. Stop it, and measure again.",
        rules_device.foreign_process,
    ),
    Row(
        "device_not_empty",
        _S,
        "The device was not empty before the launch",
        "Memory of another process, or of a server that did not end, was missing to this one. `nvidia-smi` shows whose it is.",
        rules_device.not_empty,
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
        "near_client_ceiling",
        _S,
        "Near what this machine's client can measure",
        f"Past {rules_client.NEAR_CEILING:.0%} of the ceiling the client's own error may be in the times (dyno calibrate --show). Lower "
        "the load, share it with --workers, or give the client a core of its own and calibrate again.",
        rules_client.near_client_ceiling,
    ),
    Row(
        "overloaded",
        _S,
        "The load is more than the server can take",
        "The queue grows for as long as the cell runs, so its latencies tell of the cell's length. Lower the rate; the output "
        "tokens/s are about the most this engine gives.",
        rules_steady.overloaded,
    ),
    Row(
        "no_steady_state",
        _S,
        "No steady state",
        "Output tokens/s change while the load is held: a clock or power limit, other load on the machine, memory that fills. "
        "Find what changes, or run longer; figures are of the whole cell.",
        rules_steady.no_steady_state,
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
        "reasoning_first",
        _N,
        "Answers began with reasoning",
        "TTFT is to the first token, of reasoning too. A reader who is shown content only waits for ttft_content_ms.",
    ),
    Row(
        "first_of_slot_left_out",
        _N,
        "First requests of the slots are not in E2E",
        "They are shortened so that the closed loop does not lock in phase. They are in all other figures; requests/s reads "
        "a little high for it. Raise --requests to make their share small.",
    ),
    Row(
        "held_by_cap",
        _N,
        "Requests waited because as many as allowed were in flight",
        "The load is then a rate up to the cap and a closed loop beyond it: read latencies from the intended time. Suspect above "
        f"{rules_load.HELD_SUSPECT:.0%} of the requests.",
        rules_load.held_by_cap,
    ),
    Row(
        "tokens_counted_by_chunks",
        _N,
        "Tokens counted by the chunks they came in",
        "The server tells neither token ids nor usage, and a chunk may hold several tokens: output tokens, their rates and TPOT are "
        "right only if each holds one. Use a server that streams usage (stream_options include_usage).",
        rules_load.tokens_counted_by_chunks,
    ),
    Row(
        "no_done",
        _N,
        "Streams that ended without [DONE]",
        "They told their finish reason, so they count as whole; a proxy or the server leaves the end marker out.",
        rules_load.no_done,
    ),
    Row(
        "prompts_repeated",
        _N,
        "Prompts were sent more than once",
        "The file has them more than once, or was gone through again (oversample). A prefix cache answers them sooner: switch it off for "
        f"all engines, or bring a file of more prompts. Suspect above {rules_load.REPEATED_SUSPECT:.0%} of the requests.",
        rules_load.prompts_repeated,
    ),
    Row(
        "clocks_of_nodes",
        _N,
        "Load from other machines",
        "Latencies of a request are by one machine's clock. What is taken across machines (rates, requests in flight, the server's own "
        f"log) is right to within what is told here. Suspect above {rules_load.CLOCKS_MS:g} ms: measure between machines of one network.",
        rules_load.clocks_of_nodes,
    ),
    Row(
        "rate_by_chance",
        _N,
        "By chance the requests drawn come at another rate than asked for",
        "So few random arrivals vary; all engines of a block get the same ones. Raise --duration, or use --arrivals constant.",
        rules_load.rate_by_chance,
    ),
    Row(
        "ran_out_of_requests",
        _N,
        "The cell ended before its time, for want of requests",
        "They are planned ahead and were used up sooner than thought possible. Figures stand; give --requests for a longer cell.",
        rules_load.ran_out_of_requests,
    ),
    Row(
        "requests_sent_again",
        _N,
        "Requests were sent again on a new connection",
        "The server had closed the idle one. Their TTFT counts from the sending that was answered: where they are many, the server "
        "closes connections in use, and what it did before is not in any figure. Raise its keep-alive time.",
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
        "speculation_in_use",
        _N,
        "The engine guesses tokens ahead",
        "How many guesses are kept depends on the text: random prompts keep few. --verify holds its tokens to those of the other "
        "engines, so that a faster one that is worse is seen.",
        rules_speculation.speculation_in_use,
    ),
    Row(
        "client_not_calibrated",
        _N,
        "The client's ceiling on this machine is not known",
        "Run dyno calibrate once (a minute or two, on a quiet machine): then cells near it are told.",
        rules_client.client_not_calibrated,
    ),
    Row(
        "no_kernel_stamps",
        _N,
        "No receive stamps from the kernel",
        "The client's own lateness is inside the times and cannot be told from the server's.",
        rules.no_kernel_stamps,
    ),
    Row(
        NO_WINDOW,
        _N,
        "No steady-state window",
        "Compare whole-cell figures with each other only. A longer --duration (120s, say) or more --requests gives a window, as long as "
        "the evidence says it must be; a ramp or a schedule never has one.",
        rules_steady.no_window,
    ),
    Row(
        "no_device_telemetry",
        _N,
        "No device telemetry",
        "Expected on a machine without a supported accelerator; docs/gpu.md says what each source needs.",
        rules_device.no_device,
    ),
    Row(
        "device_telemetry_ended",
        _N,
        "Device telemetry failed during the cell",
        "Client figures are not touched by it; device figures end there. See the session's sampler.log and the driver's log.",
        rules_device.telemetry_lost,
    ),
    Row(
        "power_capped",
        _N,
        "The power limit held the clocks down",
        "Usual on large boards in prefill: the compute ceiling is then lower than the datasheet's. Compare runs at the same limit.",
        rules_device.power_capped,
    ),
    Row(
        "mig_instance",
        _N,
        "A MIG instance was measured",
        "Memory and counters are the instance's; power, energy and clocks are the whole board's, shared with its other instances.",
        rules_device.instance,
    ),
    Row(
        "device_unsure",
        _N,
        "Which device was sampled is not certain",
        "Name the device by UUID: in CUDA_VISIBLE_DEVICES, or under telemetry.devices of the experiment.",
        rules_device.doubtful_device,
    ),
    Row(
        "energy_counter_restarted",
        _N,
        "The device's energy counter started over",
        "The energy of the cell is left out. It counts from the load of the driver: was it loaded anew?",
        rules_device.counter_restarted,
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
        "imported",
        _S,
        "Read from another tool's result file",
        "Its numbers follow that tool's definitions and stand for themselves: they are never paired and never gated. `dyno report RUN "
        "--beside` shows ours by the same definitions.",
    ),
    Row(
        "template_overhead",
        _N,
        "The chat template adds the same number of tokens to each prompt",
        "Nothing to do: prompt lengths are the server's, template included.",
    ),
    Row(
        "workload_not_as_file",
        _N,
        "What was sent is not the file as it is",
        "Entries that cannot be used are skipped, and what is too long is dropped or cut as the workload says. Entries sent again "
        "hit a prefix cache.",
    ),
    Row(
        CEILING_REFUTED,
        _N,
        "MFU, MBU and the shares of a step are of a ceiling that the cell itself passed",
        "No other figure rests on them. Other work held the machine when the ceiling was measured, or the engine's kernels or a CPU's "
        "caches do better than the probe. The same sweep into another folder (--out), on a quiet machine, measures it again.",
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
