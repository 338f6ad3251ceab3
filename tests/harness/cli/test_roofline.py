"""`dyno roofline`: ceilings offline, by batch and context, and mistakes by the flag's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness.cli.commands import app
from results import model_configs
from results.device_specs import device_names, device_spec
from results.roofline import LARGEST_BATCH, Machine, Roofline, roofline, smallest
from results.step_cost import format_of, peaks_for


def answer(dyno: Callable[..., Any], *words: str) -> dict[str, Any]:
    result = dyno("roofline", *words, "--json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def line(name: str, device: str = "h200", **form: Any) -> Roofline:
    config, spec = model_configs.load(name), device_spec(device)
    made = format_of(config, **form)
    return roofline(config, made, Machine(peaks_for(made, spec.flops, spec.bytes_per_s), spec.memory_bytes))


def test_llama_3_8b_on_an_h200(dyno: Callable[..., Any]) -> None:
    found = answer(dyno, "llama-3-8b", "--device", "H200", "--batch", "1,256", "--context", "1,4096")
    by_place = {(p["batch"], p["context"]): p for p in found["ceilings"]}
    # 15.010 GB at 4.8 TB/s.
    assert by_place[1, 1]["tokens_per_s"] == pytest.approx(4800 / 15.010, rel=1e-3)
    assert by_place[1, 1]["bound"] == "bandwidth"
    assert not by_place[256, 4096]["fits"]
    turns = found["compute_bound_from"]
    assert turns["gemms"] == 207  # the ridge is 206
    assert turns["step"] == [{"context": 1, "batch": 207}, {"context": 4096, "batch": None}]
    # 2 N' / P a token in GEMMs against C x 131,072 / BW in attention.
    assert turns["longest_context"] == pytest.approx(15.010e9 / 989.4e12 * 4.8e12 / 131_072, rel=0.02)
    fits = {row["context"]: row["requests"] for row in found["fits"]}
    assert fits[4096] == int((0.9 * 141 * 2**30 - 16_060_522_496) // (4096 * 131_072))


def test_the_legend_names_only_what_stands_in_the_table(dyno: Callable[..., Any]) -> None:
    plain = dyno("roofline", "llama-3-8b", "--device", "H100").out
    bound = dyno("roofline", "llama-3-8b", "--device", "H100", "--batch", "512", "--context", "128").out
    legend = "more than half of the step is compute-bound"
    assert legend not in plain
    assert legend in bound
    assert "last block stays empty" in plain
    assert "last block" not in dyno("roofline", "llama-3-8b", "--block-size", "512").out


def test_what_sharing_kv_heads_a_smaller_cache_and_larger_blocks_change(dyno: Callable[..., Any]) -> None:
    found = answer(dyno, "llama-3-8b", "--context", "4096")["changes"]
    rows = {row["words"]: row for row in found["at"]}
    asked = rows["as asked"]
    assert asked["fit"] / rows["every head its own KV"]["fit"] == pytest.approx(4, rel=0.05)
    assert rows["fp8 KV cache"]["fit"] / asked["fit"] == pytest.approx(2, rel=0.05)
    # Blocks of 16 are asked for, and a request loses half a block in the mean.
    assert rows["blocks of 512 tokens"]["kv_bytes_per_request"] - 4096 * 131_072 == (512 - 16) / 2 * 131_072
    assert rows["int4 weights"]["fit"] > asked["fit"]


@pytest.mark.parametrize("context", [512, 4096, 8192, 777])
def test_one_point_fits_as_many_wherever_it_stands(dyno: Callable[..., Any], context: int) -> None:
    found = answer(dyno, "llama-3-8b", "--context", str(context))
    assert found["changes"]["at"][0]["fit"] == found["fits"][0]["requests"]


def test_a_change_that_moves_nothing_says_why(dyno: Callable[..., Any]) -> None:
    found = answer(dyno, "llama-3-8b", "--context", "8192")["changes"]["at"]
    asked = found[0]["tokens_per_s"]
    assert found[0]["why"] == ""
    for row in found[1:]:
        assert bool(row["why"]) == (abs(row["tokens_per_s"] / asked - 1) <= 0.01), row
    shown = " ".join(dyno("roofline", "llama-3-8b", "--context", "8192", columns=80).out.split())
    assert "of the step goes to reading KV" in shown
    assert "blocks of 512 tokens change next to nothing" in shown


def test_a_context_beyond_the_models_positions_is_flagged(dyno: Callable[..., Any]) -> None:
    found = answer(dyno, "llama-3-8b", "--context", "512,16384")
    assert (found["positions"], found["beyond_positions"]) == (8192, [16384])
    assert (
        "16,384 is longer than the model's 8,192 positions"
        in dyno("roofline", "llama-3-8b", "--context", "512,16384").out
    )
    assert "longer than" not in dyno("roofline", "llama-3-8b", "--context", "512,8192").out


def test_a_device_that_is_not_known_offers_this_machine(dyno: Callable[..., Any]) -> None:
    assert "`this` measures the machine here" in dyno("roofline", "llama-3-8b", "--device", "cpu").err


@pytest.mark.parametrize(
    ("others", "median", "words"), [(0.02, 0.97, ""), (0.4, 0.97, "40 %"), (0.02, 0.6, "40 % below")]
)
def test_ceilings_of_a_busy_machine_carry_a_warning(
    dyno: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, others: float, median: float, words: str
) -> None:
    def rate(best: float) -> dict[str, float]:
        return {"best": best, "median": median * best, "n": 9}

    gemm = {"bf16": rate(1e12), "fp32": rate(5e11)}
    row = {"device": "cpu", "name": "this CPU", "threads": 2, "read": rate(2e10), "copy": rate(1.5e10), "gemm": gemm}
    measured = {"devices": [{**row, "memory_bytes": 2**34}], "others_cpu": others}
    monkeypatch.setattr("harness.roofline_target.measure_ceilings", lambda: measured)
    found = answer(dyno, "smollm2-135m", "--device", "this")["device"]
    assert (found["others_cpu"], found["bytes_per_s"], found["bytes_per_s_median"]) == (others, 2e10, median * 2e10)
    assert bool(found["warning"]) == bool(words)
    assert words in (found["warning"] or "")
    shown = " ".join(dyno("roofline", "smollm2-135m", "--device", "this", columns=80).out.split())
    assert ("too low" in shown) == bool(words)


def test_a_latent_cache_has_no_heads_to_share_and_more_devices_hold_more(dyno: Callable[..., Any]) -> None:
    eight = answer(dyno, "deepseek-v3", "--dtype", "fp8", "--tp", "8", "--context", "4096")
    assert "every head its own KV" not in {row["words"] for row in eight["changes"]["at"]}
    assert eight["fits"][0]["requests"] > 0
    one = answer(dyno, "deepseek-v3", "--dtype", "fp8", "--context", "4096")
    assert one["fits"][0]["requests"] == 0
    assert "no room" in dyno("roofline", "deepseek-v3", "--dtype", "fp8").out


@pytest.mark.parametrize("words", [("llama-3.1-405b", "--tp", "8"), ("deepseek-v3",), ("gpt-oss-120b",), ("gpt2-xl",)])
def test_tables_fit_80_columns(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["roofline", *words], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    shown = result.output
    assert "tokens/s" in shown
    assert max(map(len, shown.splitlines())) <= 80
    # Nothing is broken over two lines by the terminal's edge.
    assert not [row for row in shown.splitlines() if row.endswith(" ") and len(row) == 80]


def test_the_denominators_are_named(dyno: Callable[..., Any]) -> None:
    shown = dyno("roofline", "llama-2-7b", "--device", "a100-80gb").out
    assert "312 TFLOP/s and 2,039 GB/s, datasheet (by clock and width 2,039)" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama-3-8b", "--device", "h201"), "Unknown device 'h201'. Did you mean 'h200'?"),
        (("llama-3-8b", "--tp", "3"), "32 query heads cannot be split over 3 devices"),
        (("llama-3-8b", "--batch", "0"), "--batch: '0' is not a whole number above zero"),
        (("llama-3-8b", "--context", "4k"), "--context: '4k'"),
        (("lama-3-8b",), "Did you mean 'llama-3-8b'"),
        (("llama-3-8b", "--dtype", "bf15"), "Did you mean"),
    ],
)
def test_mistakes_are_one_paragraph(words: tuple[str, ...], message: str, dyno: Callable[..., Any]) -> None:
    result = dyno("roofline", *words)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


@given(
    name=st.sampled_from(model_configs.names()), device=st.sampled_from(device_names()), context=st.integers(1, 4096)
)
@settings(max_examples=40, deadline=None)
def test_batches_named_are_where_it_turns_and_what_fits_fits(name: str, device: str, context: int) -> None:
    found = line(name, device)
    turn = found.step_turns(context)
    if turn is None:
        assert found.step(LARGEST_BATCH, context).compute_share <= 0.5
    else:
        assert found.step(turn, context).compute_share > 0.5
        assert turn == 1 or found.step(turn - 1, context).compute_share <= 0.5
    room = found.requests_that_fit(context)
    taken = found.weights_per_device + room * found.kv_per_request(context)
    assert room == 0 or taken <= 0.9 * found.machine.memory_bytes < taken + found.kv_per_request(context)


@given(threshold=st.integers(1, LARGEST_BATCH + 10))
def test_the_smallest_number_is_found(threshold: int) -> None:
    found = smallest(lambda n: n >= threshold)
    assert found == (threshold if threshold <= LARGEST_BATCH else None)
