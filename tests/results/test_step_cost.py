"""What a step computes and reads, against published figures and against the laws it must obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results import model_configs
from results.device_specs import device_names, device_spec, spec_of_device
from results.errors import UnknownNameError, UsageError
from results.experts import experts
from results.step_cost import Format, Group, Peaks, StepCost, format_of, peaks_for, shape_of, step_cost

H200 = Peaks(989.4e12, 989.4e12, 4.8e12)
# Published: GB streamed a step in bf16 (also GFLOP a token without attention), FLOPs a token of context.
STREAMED = {
    "llama-2-7b": (13.215, 524_288),
    "llama-3-8b": (15.010, 524_288),
    "llama-2-70b": (137.43, 2_621_440),
    "llama-3-70b": (139.01, 2_621_440),
    "mistral-7b": (14.221, 524_288),
}
MODELS = st.sampled_from(model_configs.names())


def decode(name: str, batch: float, context: float, form: Format | None = None, peaks: Peaks = H200) -> StepCost:
    config = model_configs.load(name)
    return step_cost(shape_of(config), form or format_of(config, "bfloat16"), peaks, [Group(batch, 1, context)])


def attention(cost: StepCost) -> tuple[float, float]:
    return next((o.flops, o.bytes) for o in cost.operators if o.name == "attention")


@pytest.mark.parametrize(("name", "published"), STREAMED.items())
def test_weights_streamed_and_flops_a_token_match_what_is_published(name: str, published: tuple[float, int]) -> None:
    giga, a_context_token = published
    cost = decode(name, 1, 1000)
    flops, moved = attention(cost)
    assert round((cost.bytes - moved) / 1e9, 3 if giga < 100 else 2) == giga
    assert round((cost.flops - flops) / 1e9, 3 if giga < 100 else 2) == giga
    assert flops == a_context_token * 1000


def test_decode_of_llama_2_7b_on_an_a100_is_at_least_6_48_ms_a_token() -> None:
    a100 = device_spec("A100 80GB")
    form = Format("bfloat16", "bfloat16")
    cost = decode("llama-2-7b", 1, 1, form, peaks_for(form, a100.flops, a100.bytes_per_s))
    assert round(cost.seconds * 1e3, 2) == 6.48
    assert int(1 / cost.seconds) == 154


def test_attention_alone_does_q_over_k_flops_a_byte_of_a_16_bit_cache() -> None:
    for name, expected in {"llama-7b": 1, "llama-3-8b": 4, "qwen2.5-7b": 7, "falcon-7b": 71}.items():
        flops, moved = attention(decode(name, 8, 100_000))
        assert flops / moved == pytest.approx(expected, rel=1e-3)


def test_a_whole_prompt_attends_to_half_of_its_square() -> None:
    config = model_configs.load("llama-3-8b")
    shape, form = shape_of(config), format_of(config)
    whole, _ = attention(step_cost(shape, form, H200, [Group(1, 1000, 1000)]))
    assert whole == 524_288 * 1000 * 1001 / 2
    chunks = [attention(step_cost(shape, form, H200, [Group(1, 250, end)]))[0] for end in (250, 500, 750, 1000)]
    assert sum(chunks) == pytest.approx(whole)


def test_only_the_last_token_of_a_prompt_goes_through_the_lm_head() -> None:
    config = model_configs.load("llama-3-8b")
    shape, form = shape_of(config), format_of(config)

    def head(sampled: bool) -> float:
        cost = step_cost(shape, form, H200, [Group(1, 512, 512, sampled)])
        return sum(o.flops for o in cost.operators if o.name == "LM head")

    assert head(True) == 2 * 128_256 * 4096
    assert head(False) == 0


def test_the_step_is_the_sum_of_its_operators_and_longer_than_one_roofline_of_the_totals() -> None:
    """At this batch the GEMMs compute while attention waits for memory: one after the other."""
    cost = decode("llama-3-8b", 512, 512)
    together = max(cost.flops / H200.gemm_flops, cost.bytes / H200.bytes_per_s)
    assert cost.seconds > 1.2 * together
    bounds = {o.name: o.bound for o in cost.operators}
    assert (bounds["FFN"], bounds["attention"]) == ("compute", "bandwidth")


def test_a_step_of_a_mixture_reads_the_experts_it_touches() -> None:
    moe = experts(model_configs.load("mixtral-8x7b"))
    assert moe is not None
    assert moe.touched(1) == pytest.approx(2)
    assert moe.touched(2) == pytest.approx(8 * (1 - 0.75**2))
    assert moe.touched(10_000) == pytest.approx(8)
    one = decode("mixtral-8x7b", 1, 1)
    assert round(one.flops / 2e9, 1) == 12.7  # 12.9 billion parameters are active, the input embedding among them
    assert shape_of(model_configs.load("mixtral-8x7b")).active * 2 == pytest.approx(one.flops, rel=1e-3)


def test_deepseeks_decode_works_in_the_latent_space_and_its_prefill_does_not() -> None:
    config = model_configs.load("deepseek-v3")
    shape, form = shape_of(config), format_of(config)
    flops, moved = attention(decode("deepseek-v3", 1, 4096))
    assert flops == 61 * 2 * 128 * (2 * 512 + 64) * 4096
    assert moved == 70_272 * 4097
    prefill, _ = attention(step_cost(shape, form, H200, [Group(1, 4096, 4096)]))
    assert prefill == pytest.approx(61 * 2 * 128 * (128 + 64 + 128) * 4096 * 4097 / 2)


def test_devices_share_kv_heads_until_they_run_out_of_them() -> None:
    config = model_configs.load("llama-3-70b")
    shape = shape_of(config)

    def moved(devices: int) -> float:
        form = Format("bfloat16", "bfloat16", devices)
        return attention(step_cost(shape, form, H200, [Group(1, 1, 1000)]))[1]

    assert moved(8) == moved(1) / 8
    assert moved(16) == moved(8)


def test_int4_weights_carry_their_scales_and_compute_in_16_bit() -> None:
    assert Format("int4", "bfloat16").weight_bytes == 0.5 + 4 / 128
    h200 = device_spec("h200")
    assert peaks_for(Format("int4", "bfloat16"), h200.flops, 1.0).gemm_flops == 989.4e12
    assert peaks_for(Format("fp8", "bfloat16"), h200.flops, 1.0).gemm_flops == 1979e12
    a100 = device_spec("a100-80gb")
    assert peaks_for(Format("fp8", "bfloat16"), a100.flops, 1.0).gemm_flops == 312e12
    with pytest.raises(UsageError, match="No FLOP/s known for bfloat16"):
        peaks_for(Format("bfloat16", "bfloat16"), {}, 1.0)


@given(name=MODELS, batch=st.integers(1, 2000), context=st.integers(1, 200_000))
def test_more_sequences_or_more_context_never_cost_less(name: str, batch: int, context: int) -> None:
    cost = decode(name, batch, context)
    assert decode(name, batch + 1, context).seconds >= cost.seconds
    assert decode(name, batch, context + 1).seconds >= cost.seconds
    # A token never costs more in a larger batch: that is why batching pays.
    assert decode(name, batch + 1, context).seconds / (batch + 1) <= cost.seconds / batch * (1 + 1e-9)


@given(name=MODELS, context=st.integers(2, 100_000), data=st.data())
def test_groups_add_up(name: str, context: int, data: st.DataObject) -> None:
    """Two halves of a batch in one step are the batch; a chunk's window never sees more than the whole context."""
    config = model_configs.load(name)
    shape, form = shape_of(config), format_of(config)
    new = data.draw(st.integers(2, context))
    half = step_cost(shape, form, H200, [Group(4, new, context), Group(4, new, context)])
    whole = step_cost(shape, form, H200, [Group(8, new, context)])
    assert half.flops == pytest.approx(whole.flops)
    assert half.bytes == pytest.approx(whole.bytes)
    layers = shape.growing + shape.windowed
    assert attention(whole)[0] <= 8 * shape.prefill_score * layers * new * context


def test_clock_times_width_is_within_a_few_per_cent_of_the_datasheet() -> None:
    checked = [device_spec(name) for name in device_names() if device_spec(name).formula_bandwidth is not None]
    assert len(checked) >= 13
    for spec in checked:
        assert spec.formula_bandwidth == pytest.approx(spec.bandwidth, rel=0.025)
    assert device_spec("h200").formula_bandwidth == pytest.approx(4916.7, abs=0.1)


@pytest.mark.parametrize(
    ("name", "ridge"),
    [
        ("t4", 203),
        ("a10", 208),
        ("l4", 403),
        ("l40s", 419),
        ("h100", 295),
        ("h200", 206),
        ("b200", 292),
        ("rtx-4090", 164),
    ],
)
def test_ridges_match_what_is_published(name: str, ridge: int) -> None:
    assert round(device_spec(name).ridge) == ridge


def test_a_device_is_found_by_its_whole_name_only() -> None:
    found = spec_of_device("NVIDIA H100 80GB HBM3")
    assert found is not None
    assert found.name == "h100"
    assert spec_of_device("NVIDIA H100 NVL") is None
    with pytest.raises(UnknownNameError, match="Did you mean 'h200'"):
        device_spec("h20")
