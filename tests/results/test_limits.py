"""The limiting factor as a pair: cells forced into each, named; what cannot be told is said to be undetermined."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results import model_configs
from results.ceilings import Ceilings, Rate, ceilings_of
from results.efficiency import efficiency
from results.elasticity import Elasticity, elasticity
from results.events import Samples
from results.limits import CellData, limit_numbers
from results.limits_batch import BATCH_FACTORS, Load, batch_from_gauges, batch_from_steps, batch_from_xray
from results.limits_shares import MIXED, UNDETERMINED, UNEXPLAINED, Finding, finding
from results.limits_step import (
    STEP_FACTORS,
    Clock,
    Model,
    StepLog,
    least_times,
    log_from_steps,
    log_from_xray,
    step_finding,
)
from results.step_cost import Format, Group, Peaks, format_of, shape_of, step_cost
from results.step_fit import StepFit, fit_steps
from results.step_times import Composition, step_times
from results.xray import XRay, xray
from tests.results.forced import Forced, forced

NS = 1_000_000_000


def batch(cell: Forced) -> Finding:
    load = Load("concurrency", cell.concurrency)
    return batch_from_steps(cell.steps, cell.requests, cell.input_tokens, load, cell.session)


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"concurrency": 1, "count": 16}, "offered_load"),
        ({"concurrency": 8}, "offered_load"),
        ({"max_num_seqs": 2}, "max_num_seqs"),
        ({"pool_tokens": 512, "prompts": (60, 120)}, "kv_capacity"),
        ({"pool_tokens": 1024, "admission": "reserve-max"}, "kv_reservation"),
        ({"pool_tokens": 1024, "admission": "reserve-pow2", "concurrency": 16}, "kv_reservation"),
        ({"budget": 16, "prompts": (100, 200), "outputs": (5, 20)}, "token_budget"),
        ({"batching": "static-drop", "count": 200, "concurrency": 32, "outputs": (4, 120)}, "static_batching"),
        ({"think_ns": NS}, "client"),
    ],
)
def test_a_cell_forced_into_a_factor_names_it(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], factor: str
) -> None:
    found = batch(forced(monkeypatch, **settings))
    assert found.factor == factor, found
    assert found.shares[0].name == factor
    assert found.shares[0].low > 0.5
    assert found.evidence


def test_a_cell_between_two_factors_is_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slots rest about as long as their requests take."""
    found = batch(forced(monkeypatch, concurrency=4, count=40, think_ns=130_000_000))
    assert found.factor == MIXED
    assert {s.name for s in found.shares[:2]} == {"client", "offered_load"}


def test_gauges_tell_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = forced(monkeypatch, max_num_seqs=2)
    times = range(int(cell.steps.start[0]), int(cell.steps.end[-1]), 20_000_000)
    at = np.clip(np.searchsorted(cell.steps.end, times), 0, len(cell.steps) - 1)

    def samples(**readings: Any) -> Samples:
        rows = []
        for metric, values in readings.items():
            rows += [
                {"source": "server", "metric": metric, "t0": t, "t1": t, "value": float(v)}
                for t, v in zip(times, values, strict=True)
            ]
        return Samples.of(rows)

    load, span = Load("concurrency", 8), (0, 2 * 10**12)
    told = samples(running=cell.steps.running[at], waiting=cell.steps.waiting[at])
    found = batch_from_gauges(told, cell.requests, load, cell.session, span)
    assert found is not None
    assert (found.factor, found.basis) == ("max_num_seqs", "gauges")
    full = samples(running=[3] * len(at), waiting=[5] * len(at), kv_usage=[0.99] * len(at))
    capacity = batch_from_gauges(full, cell.requests, load, {}, span)
    assert capacity is not None
    assert capacity.factor == "kv_capacity"
    # Requests wait, and nothing that gauges show is at its end: the budget, a reservation, something else.
    open_ = samples(running=[3] * len(at), waiting=[5] * len(at), kv_usage=[0.4] * len(at))
    unknown = batch_from_gauges(open_, cell.requests, load, {}, span)
    assert unknown is not None
    assert unknown.factor == UNDETERMINED
    assert batch_from_gauges(samples(), cell.requests, load, {}, span) is None


def test_arrivals_alone_tell_the_offered_load_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    free, held = forced(monkeypatch, prompts=(1, 4)), forced(monkeypatch, max_num_seqs=2)

    def named(cell: Forced) -> str:
        seen = xray(cell.requests, cell.chunks)
        assert isinstance(seen, XRay)
        return batch_from_xray(seen, cell.requests, Load("concurrency", cell.concurrency)).factor

    assert named(free) == "offered_load"
    assert named(held) == UNDETERMINED


def machine(flops: float, bytes_per_s: float, spread: float = 1.05) -> dict[str, Any]:
    def rate(best: float) -> dict[str, Any]:
        return {"best": best, "median": best / spread, "n": 9}

    row = {"device": "cpu", "name": "a test", "threads": 1, "read": rate(bytes_per_s), "copy": rate(bytes_per_s / 2)}
    return {"devices": [{**row, "gemm": {"bf16": rate(flops), "fp32": rate(flops / 2)}}]}


def model(flops: float, bytes_per_s: float, name: str = "smollm2-135m") -> Model:
    config = model_configs.load(name)
    ceilings = ceilings_of({"ceilings": machine(flops, bytes_per_s)})
    assert ceilings is not None
    return Model(shape_of(config), format_of(config), "bfloat16", ceilings)


def decode_log(steps: int, batch_size: int, context: int, seconds: float, gap: float = 0.0) -> StepLog:
    """Steps that decode a full batch; a little noise, so that shares have a spread."""
    noise = 1 + 0.02 * np.random.default_rng(0).normal(size=steps)
    whole = np.full(steps, 1)
    made = Composition(0 * whole, 0 * whole, batch_size * whole, batch_size * context * whole)
    return StepLog(made, seconds * noise, np.full(steps, gap), "steps", whole)


def test_a_step_that_takes_what_its_bytes_take_is_bandwidth_bound() -> None:
    machine_model = model(1e15, 20e9)
    least = step_cost(machine_model.shape, machine_model.form, Peaks(1e15, 1e15, 20e9), [Group(1, 1, 100)]).seconds
    log = decode_log(200, 1, 100, least * 1.1)
    board = replace(machine_model, ceilings=replace(machine_model.ceilings, threads=None))
    found = step_finding(log, board, "")
    assert found.factor == "bandwidth"
    assert found.shares[0].value == pytest.approx(0.91, abs=0.03)
    # No counter of a CPU shows what its memory did: there the share alone names nothing.
    on_cpu = step_finding(log, machine_model, "")
    assert (on_cpu.factor, on_cpu.shares) == ("undetermined", found.shares)
    assert "no counter of this CPU" in on_cpu.evidence


def test_a_step_three_times_as_long_as_its_bytes_take_is_not_called_bandwidth_bound() -> None:
    """As the reference engine at batch 1 on two cores: 33 ms where memory would need 10."""
    found = step_finding(decode_log(200, 1, 100, 0.033), model(400e9, 27e9), "")
    assert found.factor == UNDETERMINED
    assert found.shares[0].name == UNEXPLAINED
    assert "ceilings measured on a test, 1 thread" in found.evidence


def test_prefill_at_the_gemm_ceiling_is_compute_bound_and_a_lowered_clock_is_told() -> None:
    ones = np.ones(100, dtype=np.int64)
    made = Composition(512 * ones, ones, 0 * ones, 512 * ones)
    fast = model(1e12, 1e12)
    times = step_times(fast.shape, fast.form, Peaks(1e12, 1e12, 1e12), made)
    seconds = (times.compute_s + times.bandwidth_s) * 1.2
    log = StepLog(made, seconds, np.zeros(100), "steps", ones)
    assert step_finding(log, fast, "").factor == "compute"
    lowered = step_finding(log, fast, "", Clock(ratio=0.8, throttled=0.5))
    assert {s.name for s in lowered.shares[:2]} == {"compute", "power"}
    assert step_finding(log, fast, "", Clock(ratio=0.8, throttled=0.0)).shares[0].name == "compute"
    # A clock that is low for another reason (a board that idles) is not the limit's for having held once.
    shares = step_finding(log, fast, "", Clock(ratio=0.8, throttled=0.02)).shares
    assert next(s.value for s in shares if s.name == "power") <= 0.02 + 1e-9


def test_time_between_steps_is_the_hosts_only_while_requests_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = forced(monkeypatch, host_ns=5_000_000)
    log = log_from_steps(busy.steps, busy.requests)
    found = step_finding(log, None, "no model")
    assert found.shares[0].name in ("host_gap", UNEXPLAINED)
    assert next(s.value for s in found.shares if s.name == "host_gap") > 0.5
    resting = forced(monkeypatch, concurrency=1, count=12, think_ns=NS)
    rest = log_from_steps(resting.steps, resting.requests)
    assert rest.gap.sum() < 0.05 * rest.seconds.sum()


def test_without_ceilings_nothing_is_claimed_of_compute_and_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = forced(monkeypatch)
    found = step_finding(log_from_steps(cell.steps, cell.requests), None, "no ceilings of this machine were measured")
    assert found.factor == UNDETERMINED
    assert "no ceilings of this machine were measured" in found.evidence
    assert not {s.name for s in found.shares} & {"compute", "bandwidth"}


def test_steps_seen_in_arrivals_hold_what_the_log_says(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = forced(monkeypatch, count=160)
    seen = xray(cell.requests, cell.chunks)
    assert isinstance(seen, XRay)
    told = log_from_steps(cell.steps, cell.requests)
    by_arrivals = log_from_xray(seen, cell.requests, cell.chunks, cell.input_tokens)
    for name in ("prefill_tokens", "decodes", "context_tokens"):
        a, b = getattr(told.made, name).sum(), getattr(by_arrivals.made, name).sum()
        assert b == pytest.approx(a, rel=0.12), name
    assert by_arrivals.seconds.sum() == pytest.approx(told.seconds.sum(), rel=0.1)


def test_chunks_of_a_prompt_are_no_output_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = forced(monkeypatch, prompts=(200, 300), outputs=(3, 6), budget=32)
    told = log_from_steps(cell.steps, cell.requests)
    assert told.made.prefills.sum() > 2 * len(cell.requests)
    assert told.output_tokens == cell.requests.output_tokens.sum()


def test_the_summary_of_a_cell_carries_the_pair_and_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = forced(monkeypatch, max_num_seqs=2)
    data = CellData(
        requests=cell.requests,
        chunks=cell.chunks,
        samples=Samples.of([]),
        steps=cell.steps,
        input_tokens=cell.input_tokens,
        session=cell.session,
        config=model_configs.load("smollm2-135m"),
        machine=machine(400e9, 27e9),
        load=Load("concurrency", 8),
        cell=(0, 2 * 10**12),
        span=(0, 2 * 10**12),
        server={"weight_bytes": 269_030_016, "kv_pool_bytes": 10**8, "rss_bytes_max": 10**9},
        device={"bandwidth_gb_per_s": 10.0, "duration_s": 2.0},
        output_tokens=1000,
    )
    limits, arithmetic = limit_numbers(data)
    assert limits["batch"]["factor"] == "max_num_seqs"
    seen = limits["xray"]
    assert seen["decode_steps_logged"] <= seen["steps"] <= seen["steps_logged"] == len(cell.steps)
    assert 0 < arithmetic["mbu"] < 30
    steps_bytes = arithmetic["bytes"]
    assert arithmetic["bytes_per_output_token"] == steps_bytes / 1000
    # Of a window only the steps count whose traffic the device's counter saw there too.
    middle = (int(cell.steps.start[0]), int(cell.steps.end[len(cell.steps) // 2]))
    _, windowed = limit_numbers(replace(data, span=middle, output_tokens=500))
    assert 0.3 * steps_bytes < 500 * windowed["bytes_per_output_token"] < 0.7 * steps_bytes
    assert windowed["bytes"] == steps_bytes
    assert arithmetic["bytes_per_output_token_counted"] == 2e7
    assert arithmetic["memory"]["other_bytes"] == 10**9 - 10**8 - 269_030_016
    assert arithmetic["ceilings"]["words"] == "measured on a test, 1 thread"
    nothing, empty = limit_numbers(replace(data, config=None, machine=None))
    assert nothing["step"]["factor"] == UNDETERMINED
    assert empty["mfu"] is None
    assert empty["step_reason"] == "the manifest holds no model config"


@given(
    prefill=st.integers(0, 4000),
    decodes=st.integers(0, 300),
    context=st.integers(1, 3000),
    name=st.sampled_from(model_configs.names()),
)
def test_many_steps_at_once_cost_what_each_costs_alone(prefill: int, decodes: int, context: int, name: str) -> None:
    """Steps of one kind: all decodes of one context, or one whole prompt."""
    if prefill == decodes == 0:
        return
    shape, form = shape_of(model_configs.load(name)), Format("bfloat16", "bfloat16")
    peaks = Peaks(1e14, 1e14, 1e12)
    prompts = 1 if prefill and not decodes else 0
    group = Group(decodes, 1, context) if decodes else Group(1, prefill, prefill)
    made = Composition(
        *(np.array([v]) for v in (0 if decodes else prefill, prompts, decodes, decodes * context or prefill))
    )
    one, many = step_cost(shape, form, peaks, [group]), step_times(shape, form, peaks, made)
    exact = shape.window is None or decodes
    assert many.bytes[0] == pytest.approx(one.bytes, rel=1e-9 if exact else 0.05)
    assert many.flops[0] == pytest.approx(one.flops, rel=1e-3 if exact else 0.3)
    if exact:
        assert many.compute_s[0] + many.bandwidth_s[0] == pytest.approx(one.seconds, rel=0.01)


def test_a_step_time_that_follows_from_what_steps_hold_is_found_again() -> None:
    draw = np.random.default_rng(1)
    n = 400
    prefill = draw.integers(0, 3, n) * draw.integers(10, 500, n)
    decodes = draw.integers(1, 64, n)
    context = decodes * draw.integers(50, 1000, n)
    seconds = 0.010 + 2e-5 * prefill + 1e-4 * decodes + 3e-7 * context
    made = Composition(prefill, (prefill > 0).astype(np.int64), decodes, context)
    found = fit_steps(made, seconds * (1 + 0.05 * draw.normal(size=n)))
    assert isinstance(found, StepFit)
    for name, true in {"step": 0.010, "prefill_token": 2e-5, "decode": 1e-4, "context_token": 3e-7}.items():
        value, low, high = found.seconds[name]
        assert low <= true <= high
        assert value == pytest.approx(true, rel=0.2)


@pytest.mark.parametrize(
    ("made", "seconds", "reason"),
    [
        ((0, 1), 0.01, "too few"),
        ((0, 100), 0.01, "all steps held the same"),
    ],
)
def test_a_fit_is_refused_where_steps_do_not_tell(made: tuple[int, int], seconds: float, reason: str) -> None:
    ones = np.ones(made[1], dtype=np.int64)
    told = fit_steps(Composition(0 * ones, 0 * ones, 8 * ones, 800 * ones), np.full(made[1], seconds))
    assert isinstance(told, str)
    assert reason in told


def test_a_fit_is_refused_where_noise_or_one_direction_is_all_there_is() -> None:
    draw = np.random.default_rng(2)
    decodes = draw.integers(1, 64, 300)
    zero = np.zeros(300, dtype=np.int64)
    noise = fit_steps(Composition(zero, zero, decodes, decodes * 100), draw.exponential(0.01, 300))
    assert isinstance(noise, str)


@given(
    st.lists(st.lists(st.floats(0, 1e3), min_size=3, max_size=3), min_size=1, max_size=60),
)
def test_shares_are_parts_of_one_and_only_a_clear_lead_is_named(rows: list[list[float]]) -> None:
    parts = np.array(rows)
    found = finding(("a", "b", UNEXPLAINED), parts, "", "steps")
    if parts.sum() == 0:
        assert found.factor == UNDETERMINED
        return
    assert sum(s.value for s in found.shares) <= 1 + 1e-9
    assert all(0 <= s.low <= s.value <= s.high <= 1 for s in found.shares)
    if found.factor in ("a", "b"):
        assert found.shares[0].name == found.factor
        assert found.shares[0].value > 1 / 3
    # Whatever is not named says by which rule.
    assert (found.factor == MIXED) == (bool(found.rivals) and UNEXPLAINED not in found.rivals)
    if found.factor == UNDETERMINED:
        assert UNEXPLAINED in (found.rivals or (found.shares[0].name,))


def test_ceilings_of_the_engines_threads_are_taken_and_bad_ones_are_none() -> None:
    two = machine(100e9, 20e9)
    two["devices"].append({**two["devices"][0], "threads": 2, "name": "two"})
    one_thread, most = ceilings_of({"ceilings": two}, 1), ceilings_of({"ceilings": two}, 7)
    assert one_thread is not None
    assert one_thread.name == "a test"
    assert most is not None
    assert most.name == "two"
    assert most.read.spread == pytest.approx(1 - 1 / 1.05)
    for bad in ({}, {"ceilings": None}, {"ceilings": {"devices": [{"device": "cpu"}]}}, {"ceilings": {"reason": "no"}}):
        assert ceilings_of(bad) is None
    gpu = {**two["devices"][0], "device": "cuda", "threads": None}
    found = ceilings_of({"ceilings": {"devices": [*two["devices"], gpu]}}, 1)
    assert found is not None
    assert found.device == "cuda"
    # An engine that runs on the CPU of a machine with a GPU is not held against the GPU.
    on_cpu = ceilings_of({"ceilings": {"devices": [gpu, *two["devices"]]}}, 1, "cpu")
    assert on_cpu == one_thread
    assert ceilings_of({"ceilings": {"devices": [gpu]}}, 1, "cpu") is None
    assert isinstance(found, Ceilings)
    assert isinstance(found.copy, Rate)


def test_every_factor_has_words_for_the_report() -> None:
    from results.report_limits import BATCH_WORDS, STEP_WORDS

    assert {*BATCH_WORDS, UNEXPLAINED} == set(BATCH_FACTORS)
    assert {*STEP_WORDS, UNEXPLAINED} == set(STEP_FACTORS)


def tokens_per_s(cell: Forced) -> float:
    return len(cell.chunks) / float(cell.chunks.t.max() - cell.requests.sent.min()) * NS


# A resource of the simulated engine -> (how it is changed, what it was and becomes).
TURNED: dict[str, tuple[str, Any, Any]] = {
    "max_num_seqs": ("max_num_seqs", 2, 3),
    "token_budget": ("budget", 16, 12),
    "kv_capacity": ("pool_tokens", 512, 640),
    "kv_reservation": ("pool_tokens", 1024, 1536),
}


@pytest.mark.parametrize("factor", TURNED)
def test_throughput_follows_the_factor_that_was_named_and_no_other(
    monkeypatch: pytest.MonkeyPatch, factor: str
) -> None:
    """The shares and the elasticity agree: the very experiment that `dyno why` makes, on a clock of arithmetic."""
    held: dict[str, dict[str, Any]] = {
        "max_num_seqs": {"max_num_seqs": 2},
        "token_budget": {"budget": 16, "prompts": (100, 200), "outputs": (5, 20)},
        "kv_capacity": {"pool_tokens": 512, "prompts": (60, 120)},
        "kv_reservation": {"pool_tokens": 1024, "admission": "reserve-max"},
    }
    settings = {"count": 96, **held[factor]}

    def follows(option: str, before: Any, after: Any) -> Elasticity:
        pairs = []
        for seed in range(3):
            base = {**settings, option: before, "seed": seed}
            pairs.append(
                (
                    tokens_per_s(forced(monkeypatch, **base)),
                    tokens_per_s(forced(monkeypatch, **{**base, option: after})),
                )
            )
        return elasticity(option, (factor,), before, after, pairs)

    assert batch(forced(monkeypatch, **settings)).factor == factor
    own = follows(*TURNED[factor])
    assert own.value is not None
    assert own.value > 0.3
    others = {option: (before, after) for name, (option, before, after) in TURNED.items() if option not in settings}
    for option in others:
        free = {"max_num_seqs": (64, 51), "budget": (2048, 1638), "pool_tokens": (16_384, 13_104)}[option]
        other = follows(option, *free)
        assert other.value is not None
        assert abs(other.value) < 0.05, option


def test_with_one_in_flight_throughput_follows_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = (forced(monkeypatch, concurrency=1, count=24, think_ns=think) for think in (0, 30_000_000))
    cycle = float((quick.requests.end - quick.requests.sent).mean())
    step = -np.log(1 + 30_000_000 / cycle)
    assert np.log(tokens_per_s(slow) / tokens_per_s(quick)) / step == pytest.approx(1.0, abs=0.1)


def test_the_mfu_of_a_prompt_token_counts_the_attention_of_long_prompts() -> None:
    """Steps that take exactly what their FLOPs take at half the ceiling: prompts of 4,000 to 8,000 tokens beside decodes."""
    on_it = model(1e12, 1e15)
    drawn = np.random.default_rng(1)
    prompt = np.where(drawn.random(400) < 0.5, drawn.integers(4000, 8000, 400), 0)
    decodes = drawn.integers(1, 32, 400)
    context = decodes * drawn.integers(50, 3000, 400)
    made = Composition(prompt, (prompt > 0).astype(np.int64), decodes, context)
    log = StepLog(made, np.ones(400), np.zeros(400), "steps", np.arange(400))
    log.seconds = least_times(log, on_it).flops / 0.5e12
    assert efficiency(log, on_it, "")["fit"]["mfu_prefill"] == pytest.approx(0.5, abs=0.02)


def test_fp8_weights_are_held_against_an_fp8_ceiling() -> None:
    measured = machine(800e12, 4e12)
    measured["devices"][0] |= {"device": "cuda", "name": "NVIDIA H200", "threads": None}
    config = model_configs.load("llama-3-8b")

    def told(machine_said: Any) -> Any:
        ceilings = ceilings_of({"ceilings": machine_said})
        assert ceilings is not None
        model = Model(shape_of(config), format_of(config, "fp8"), "bfloat16", ceilings)
        return efficiency(decode_log(100, 8, 500, 0.005), model, "")["ceilings"]

    derived = told(measured)
    assert derived["flops_per_s"] == pytest.approx(1600e12, rel=0.01)
    assert derived["words"].endswith("fp8 by the datasheet's ratio to bf16")
    measured["devices"][0]["gemm"]["fp8"] = {"best": 1400e12, "median": 1300e12, "n": 9}
    own = told(measured)
    assert own["flops_per_s"] == 1400e12
    assert "datasheet" not in own["words"]
    # A board without fp8 units computes on such weights in 16 bit.
    measured["devices"][0]["name"] = "NVIDIA A100-SXM4-80GB"
    del measured["devices"][0]["gemm"]["fp8"]
    assert told(measured)["flops_per_s"] == 800e12


def test_a_known_devices_published_ceilings_stand_beside_the_measured() -> None:
    measured = machine(798e12, 4.3e12)
    measured["devices"][0] |= {"device": "cuda", "name": "NVIDIA H200", "threads": None}
    ceilings = ceilings_of({"ceilings": measured})
    assert ceilings is not None
    config = model_configs.load("llama-3-8b")
    on_h200 = Model(shape_of(config), format_of(config), "bfloat16", ceilings)
    told = efficiency(decode_log(100, 8, 500, 0.005), on_h200, "")["ceilings"]
    assert told["flops_per_s"] == 798e12
    assert told["published"] == {
        "bf16_flops_per_s": pytest.approx(989.4e12),
        "bytes_per_s": 4.8e12,
        "bytes_per_s_by_clock": pytest.approx(4916.7e9, rel=1e-4),
    }
