"""Reason codes and the verdict they add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from results.device_facts import DeviceFacts
from results.reason_rules import CellFacts, Severity
from results.reasons import REASON, REASONS, Verdict, reason, reasons_of, verdict

CLEAN = CellFacts(
    issued=100,
    ok=100,
    by_outcome={"ok": 100},
    output_asked=1000,
    output_delivered=1000,
    output_delivered_in_chunks=1000,
    input_tokens=5000,
    longest_output=10,
    longest_input=50,
    server_generation_tokens=1000,
    server_prompt_tokens=5000,
    server_samples=10,
    lag_ms_p99=0.2,
    tpot_ms_p50=20.0,
    e2e_ms_p50=1000.0,
    receive_stamps="kernel",
    has_window=True,
    device=DeviceFacts(sampled=True),
)


def severities(facts: CellFacts) -> dict[str, str]:
    return {r.code: str(r.severity) for r in reasons_of(facts)}


def test_a_clean_cell_has_nothing_against_it() -> None:
    assert reasons_of(CLEAN) == []
    assert verdict([]) == Verdict.VALID


def test_codes_are_a_closed_set_each_with_words_and_advice() -> None:
    assert len(REASON) == len(REASONS)
    assert all(row.words and row.advice for row in REASONS)


@pytest.mark.parametrize("row", REASONS, ids=lambda row: row.code)
def test_what_the_runner_saw_takes_words_and_severity_from_the_table(row: object) -> None:
    code = row.code  # type: ignore[attr-defined]  # a row of the table
    (found,) = reasons_of(replace(CLEAN, found={code: "seen"}))
    assert (found.code, found.severity, found.evidence) == (code, REASON[code].severity, "seen")
    assert reason(code, "seen") == found


def test_a_code_of_a_later_version_degrades_to_suspect() -> None:
    (found,) = reasons_of(replace(CLEAN, found={"flux_capacitor_low": "1.1 GW"}))
    assert found.severity is Severity.SUSPECT
    assert found.words == "flux capacitor low"
    assert verdict([found]) == Verdict.SUSPECT
    assert verdict([{"code": "x", "severity": "strange"}]) == Verdict.SUSPECT


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["no_window"], Verdict.VALID),
        (["no_window", "client_lag"], Verdict.SUSPECT),
        (["client_lag", "server_died", "no_window"], Verdict.INVALID),
    ],
)
def test_the_verdict_is_that_of_the_worst_reason_which_comes_first(found: list[str], expected: Verdict) -> None:
    reasons = reasons_of(replace(CLEAN, found=dict.fromkeys(found, "seen")))
    assert verdict(reasons) == expected
    assert verdict([r.to_dict() for r in reasons]) == expected
    order = [list(Severity).index(r.severity) for r in reasons]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ok": 7, "issued": 7, "by_outcome": {"ok": 7}}, {"few_samples": "suspect"}),
        ({"ok": 8, "issued": 8, "by_outcome": {"ok": 8}}, {"few_samples": "note"}),
        ({"ok": 20, "issued": 20, "by_outcome": {"ok": 20}}, {}),
        ({"output_delivered": 990, "output_delivered_in_chunks": 990}, {}),
        ({"server_generation_tokens": 1010}, {}),
        ({"server_generation_tokens": 1011}, {"token_counts_disagree": "suspect"}),
        ({"server_generation_tokens": 0}, {"token_counts_disagree": "suspect"}),
        ({"server_prompt_tokens": 5051}, {"token_counts_disagree": "suspect"}),
        ({"server_prompt_tokens": None, "server_generation_tokens": None}, {"token_counts_unchecked": "note"}),
        ({"server_prompt_tokens": None}, {}),
        ({"sampler_ended": "the sampler ended with code 1"}, {"sampling_ended": "note"}),
        ({"output_delivered_in_chunks": 999}, {"token_counts_disagree": "suspect"}),
        ({"output_delivered_in_chunks": None}, {}),
        (
            {"prompts_differ": 3, "prompts_difference": "e.g. 128 sent, 129 counted"},
            {"prompt_tokens_disagree": "suspect"},
        ),
        ({"disordered": 1, "disordered_example": "r1"}, {"stamps_disordered": "invalid"}),
        ({"counter_fell": "prompt_tokens_total"}, {"server_restarted": "invalid"}),
        ({"lag_ms_p99": 2.1}, {}),
        ({"lag_ms_p99": 2.1, "receive_stamps": "read"}, {"client_lag": "suspect", "no_kernel_stamps": "note"}),
        ({"lag_ms_p99": 1.9, "receive_stamps": "read"}, {"no_kernel_stamps": "note"}),
        ({"lag_ms_p99": 6.0, "tpot_ms_p50": 100.0}, {"client_lag": "note"}),
        ({"lag_ms_p99": 30.0, "e2e_ms_p50": 601.0}, {"client_lag": "note"}),
        ({"lag_ms_p99": 30.0, "e2e_ms_p50": 599.0}, {"client_lag": "suspect"}),
        ({"lag_ms_p99": 30.0, "e2e_ms_p50": None}, {"client_lag": "suspect"}),
        ({"lag_ms_p99": 6.0, "receive_stamps": "read"}, {"client_lag": "suspect", "no_kernel_stamps": "note"}),
        (
            {"lag_ms_p99": 6.0, "tpot_ms_p50": None, "receive_stamps": "read"},
            {"client_lag": "suspect", "no_kernel_stamps": "note"},
        ),
        ({"lag_ms_p99": None}, {}),
        ({"coalesced_events": 20, "token_chunks": 100}, {"coalesced_events": "note"}),
        ({"coalesced_events": 21, "token_chunks": 100}, {"coalesced_events": "suspect"}),
        ({"foreign_cores": 0.31, "host_cpus": 2.0}, {"foreign_load": "suspect"}),
        ({"foreign_cores": 0.29, "host_cpus": 2.0}, {}),
        ({"foreign_cores": None, "host_cpus": 2.0}, {}),
        ({"wave_count": 3, "wave_rates": (10.0, 15.1)}, {"waves_disagree": "suspect"}),
        ({"wave_count": 3, "wave_rates": (10.0, 15.0)}, {}),
        ({"wave_count": 2, "wave_rates": (10.0, 90.0)}, {}),
        ({"server_samples": 0, "server_generation_tokens": None}, {"no_server_metrics": "note"}),
        ({"has_window": False}, {"no_window": "note"}),
        ({"device": DeviceFacts()}, {"no_device_telemetry": "note"}),
        ({"mode": "concurrency", "lock_index": 0.9, "lock_phases": 20}, {"phase_lock": "suspect"}),
        ({"mode": "concurrency", "lock_index": 0.9, "lock_phases": 7}, {}),
        ({"mode": "concurrency", "lock_index": 0.6, "lock_phases": 20}, {}),
        ({"mode": "concurrency", "lock_index": 0.75, "lock_phases": 20, "slots": 8}, {"phase_lock": "suspect"}),
        ({"mode": "concurrency", "lock_index": 0.98, "lock_phases": 20, "slots": 2}, {}),
        ({"mode": "concurrency", "lock_index": 0.995, "lock_phases": 20, "slots": 2}, {"phase_lock": "suspect"}),
        ({"mode": "batch", "lock_index": 0.9, "lock_phases": 20}, {}),
        ({"withheld": ("ttft_ms p99 (n = 50)",)}, {"percentiles_withheld": "note"}),
    ],
)
def test_rules(changes: dict[str, object], expected: dict[str, str]) -> None:
    assert severities(replace(CLEAN, **changes)) == expected  # type: ignore[arg-type]  # fields of several types from one table


def test_the_runners_evidence_joins_the_rules() -> None:
    (found,) = reasons_of(replace(CLEAN, counter_fell="x_total", found={"server_restarted": "new pid 7"}))
    assert found.evidence == "the server's counter x_total fell during the cell; new pid 7"
