"""A ceiling that more threads, or the cell itself, show to be too low: it is raised, or nothing is named by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from results import model_configs
from results.ceilings import BUSY, ceilings_of
from results.cell_summary import summarise
from results.clock import NS_PER_S
from results.efficiency import efficiency, refuted
from results.events import Chunks, Samples
from results.limits_shares import UNDETERMINED
from results.limits_step import HOST, Model, StepLog, least_times, step_finding
from results.reasons import CEILING_REFUTED
from results.step_cost import format_of, shape_of
from results.step_times import Composition
from tests.results.builders import plain_record, text_chunk
from tests.results.forced import forced


def row(threads: int, flops: float, bytes_per_s: float) -> dict[str, Any]:
    def rate(best: float) -> dict[str, Any]:
        return {"best": best, "median": best / 1.05, "n": 9}

    gemm = {"bf16": rate(flops), "fp32": rate(flops / 4)}
    read, copy = rate(bytes_per_s), rate(bytes_per_s / 2)
    return {"device": "cpu", "name": "a test", "threads": threads, "read": read, "copy": copy, "gemm": gemm}


def model(flops: float, bytes_per_s: float = 1e12, others: float | None = None) -> Model:
    config = model_configs.load("smollm2-135m")
    ceilings = ceilings_of({"ceilings": {"devices": [row(2, flops, bytes_per_s)], "others_cpu": others}})
    assert ceilings is not None
    return Model(shape_of(config), format_of(config), "bfloat16", ceilings)


def prompts(true: Model, gap: float = 0.0, basis: str = "steps", slack: float = 1.1) -> StepLog:
    """Steps of a prompt each, `slack` times as long as on a machine of these ceilings they must."""
    ones = np.ones(100, dtype=np.int64)
    log = StepLog(Composition(512 * ones, ones, 0 * ones, 512 * ones), np.ones(100), np.full(100, gap), basis, ones)
    least = least_times(log, true)
    return replace(log, seconds=(least.compute_s + least.bandwidth_s) * slack)


def test_more_threads_have_no_lower_ceiling_than_fewer() -> None:
    rows = [row(1, 214e9, 10e9), row(2, 134e9, 20e9), row(4, 90e9, 15e9)]
    two = ceilings_of({"ceilings": {"devices": rows}}, 2)
    most = ceilings_of({"ceilings": {"devices": rows}})
    one = ceilings_of({"ceilings": {"devices": rows}}, 1)
    assert two is not None
    assert most is not None
    assert one is not None
    assert (two.threads, two.flops["bf16"], two.bytes_per_s) == (2, 214e9, 20e9)
    assert (most.threads, most.flops["bf16"], most.bytes_per_s) == (4, 214e9, 20e9)
    # What more threads gave is no ceiling of one.
    assert (one.flops["bf16"], one.bytes_per_s) == (214e9, 10e9)


@pytest.mark.parametrize(("others", "told"), [(0.66, True), (BUSY, False), (None, False)])
def test_work_of_others_while_ceilings_were_measured_is_said_with_them(others: float | None, told: bool) -> None:
    machine = model(134e9, others=others)
    words = "while other work used 66 % of the machine's CPU"
    log = prompts(machine)
    arithmetic = efficiency(log, machine, "")
    assert (words in arithmetic["ceilings"]["words"]) == told
    assert (words in step_finding(log, machine, "").evidence) == told
    # A board's memory and arithmetic do not wait for the host's CPU.
    assert words not in replace(machine.ceilings, threads=None).words_for("bfloat16")


def test_a_cell_that_passes_the_ceiling_names_no_factor_by_it() -> None:
    true, low = model(237e9), model(134e9)
    log = prompts(true)
    assert step_finding(log, true, "").factor == "compute"
    assert refuted(efficiency(log, true, "")) == ""
    why = refuted(efficiency(log, low, ""))
    assert why.startswith("the measured ceiling is too low, 134 GFLOP/s, since the cell itself computed at ")
    found = step_finding(log, low, "", refuted=why)
    assert (found.factor, found.why, found.rivals) == (UNDETERMINED, why, ())
    assert found.to_dict()["why"] == why


def test_bytes_beyond_the_ceiling_refute_it_too() -> None:
    log = prompts(model(237e9, 20e9))
    why = refuted(efficiency(log, model(1e15, 0.01e9), ""))
    assert why.startswith("the measured ceiling is too low, 0.01 GB/s, since the cell itself needed bytes at ")
    assert "GFLOP/s" not in why


def test_a_little_above_the_ceiling_refutes_nothing() -> None:
    true = model(237e9)
    assert refuted(efficiency(prompts(true, slack=0.98), true, "")) == ""


def test_time_between_steps_is_named_whatever_the_ceiling() -> None:
    log = prompts(model(237e9))
    log = replace(log, gap=3 * log.seconds)
    low = model(134e9)
    assert step_finding(log, low, "", refuted=refuted(efficiency(log, low, ""))).factor == HOST


def test_a_phase_refutes_by_the_engines_log_alone() -> None:
    """Half of the steps wait, so the cell as a whole stays below; those that only prefill pass the ceiling."""
    true, low = model(237e9), model(134e9)
    log = prompts(true)
    mixed = replace(log.made, decodes=np.arange(100) % 2)
    log = replace(log, made=mixed, seconds=np.where(mixed.decodes > 0, 3.0, 1.0) * log.seconds)
    logged = efficiency(log, low, "")
    assert logged["mfu"] < 1 < logged["prefill"]["mfu"]
    assert refuted(logged)
    # A few steps seen in arrivals may read short.
    assert refuted(efficiency(replace(log, basis="xray"), low, "")) == ""


@pytest.mark.parametrize(("flops", "is_there"), [(1e6, True), (1e15, False)])
def test_the_cell_says_so_with_a_note(monkeypatch: pytest.MonkeyPatch, flops: float, is_there: bool) -> None:
    cell = forced(monkeypatch)
    names = cell.requests.request_id
    arrivals = [
        text_chunk(str(names[r]), at / NS_PER_S) for r, at in zip(cell.chunks.request, cell.chunks.t, strict=True)
    ]
    found = summarise(
        plain_record({"mode": "concurrency", "concurrency": cell.concurrency, "requests": len(cell.requests)}),
        cell.session,
        model_configs.load("smollm2-135m"),
        cell.requests,
        Chunks.of(arrivals),
        Samples.of([]),
        cell.steps,
        {"devices": [row(2, flops, 1e15)]},
    )
    assert found["arithmetic"]["mfu"] > 0
    severities = {r["code"]: r["severity"] for r in found["reasons"]}
    assert severities.get(CEILING_REFUTED) == ("note" if is_there else None)
    assert bool(found["limits"]["step"]["why"]) == is_there
