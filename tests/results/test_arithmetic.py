"""Parameters and KV bytes from config.json alone, against published figures and against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results import model_configs
from results.arithmetic import (
    dtype_name,
    kv_bytes,
    kv_bytes_per_token,
    kv_dtype_name,
    kv_layout,
    length_where_kv_outgrows,
    parameters,
    weight_bytes,
)
from results.errors import UnknownNameError, UsageError

DATA = Path(__file__).parents[1] / "data"
GIB = 2**30

# Published: bytes a token at 2 bytes an element.
KV_BYTES_PER_TOKEN = {
    "gpt2-xl": 307_200,
    "llama-7b": 524_288,
    "llama-2-7b": 524_288,
    "opt-13b": 819_200,
    "llama-2-13b": 819_200,
    "llama-2-70b": 327_680,
    "llama-3-70b": 327_680,
    "qwen2.5-72b": 327_680,
    "llama-3-8b": 131_072,
    "llama-3.1-8b": 131_072,
    "mistral-7b": 131_072,
    "mixtral-8x7b": 131_072,
    "llama-3.1-405b": 516_096,
    "llama-3.2-1b": 32_768,
    "llama-3.2-3b": 114_688,
    "qwen2.5-0.5b": 12_288,
    "qwen2.5-1.5b": 28_672,
    "qwen2.5-7b": 57_344,
    "qwen2.5-32b": 262_144,
    "qwen3-0.6b": 114_688,
    "qwen3-8b": 147_456,
    "qwen3-32b": 262_144,
    "qwen3-30b-a3b": 98_304,
    "falcon-7b": 8_192,
    "qwen3-14b": 163_840,
    "qwen3-235b-a22b": 192_512,
    "gpt-oss-20b": 49_152,
    "gpt-oss-120b": 73_728,
    "mistral-nemo": 163_840,
    "deepseek-v3": 70_272,
    "deepseek-v2-lite": 31_104,
    "smollm2-135m": 23_040,
}
PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-2-70b": 68_976_648_192,
    "llama-3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "smollm2-135m": 134_515_008,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2-lite": 15_706_484_224,
    "mistral-nemo": 12_247_782_400,
    "qwen3-14b": 14_768_307_200,
}


def llama(**changes: Any) -> dict[str, Any]:
    return model_configs.load("llama-7b") | changes


def test_every_shipped_config_has_a_published_figure() -> None:
    assert set(KV_BYTES_PER_TOKEN) == set(model_configs.names())


@pytest.mark.parametrize(("name", "expected"), KV_BYTES_PER_TOKEN.items())
def test_kv_bytes_per_token_match_what_is_published(name: str, expected: int) -> None:
    config = model_configs.load(name)
    assert kv_bytes_per_token(config, "float16") == expected
    assert kv_bytes_per_token(config, "fp8") * 2 == expected
    assert kv_bytes_per_token(config, "float32") == expected * 2


@pytest.mark.parametrize(("name", "expected"), PARAMETERS.items())
def test_parameters_match_what_is_published(name: str, expected: int) -> None:
    assert parameters(model_configs.load(name)).total == expected


@pytest.mark.parametrize("name", model_configs.names())
def test_parameters_by_part_equal_those_of_the_model_transformers_builds(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = model_configs.load(name)
    fields = {key: value for key, value in config.items() if key != "special_token_ranges"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.CONFIG_MAPPING[config["model_type"]].from_dict(fields)
        )
    tensors = dict(model.named_parameters())  # a tied table appears once
    tensors |= {key: value for key, value in model.named_buffers() if "e_score_correction_bias" in key}
    counted = parameters(config)
    assert counted.total == sum(tensor.numel() for tensor in tensors.values())
    attention = sum(
        tensor.numel()
        for key, tensor in tensors.items()
        if ("attn." in key or "attention." in key) and "norm" not in key
    )
    assert counted.attention == attention
    norms = sum(t.numel() for key, t in tensors.items() if any(n in key for n in ("norm", "ln_1", "ln_2", "ln_f")))
    assert counted.norms == norms


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-2-7b-hf", 524_288),
        ("llama-3.1-8b-instruct", 131_072),
        ("mistral-nemo-instruct-2407", 163_840),
        ("qwen2.5-7b-instruct", 57_344),
        ("qwen3-14b", 163_840),
        ("qwen3-30b-a3b", 98_304),
        ("mixtral-8x7b-v0.1", 131_072),
    ],
)
def test_config_files_as_published_give_the_right_kv_bytes(name: str, expected: int) -> None:
    """Explicit head_dim (Mistral Nemo), a window that is switched off (Qwen2.5), missing fields."""
    configs = json.loads((DATA / "model_configs_gqa.json").read_text())
    config = configs[name]["config"]
    assert kv_bytes_per_token(config, "bfloat16") == expected
    assert kv_layout(config).window is None


def test_llama_7b_with_64_sequences_of_1024_tokens_takes_32_gib() -> None:
    assert kv_bytes(llama(), "float16", batch=64, seq_len=1024) == 32 * GIB


def test_ffn_is_two_thirds_of_a_llama_layer_and_parts_add_up() -> None:
    count = parameters(llama())
    assert count.ffn_share_of_layer == pytest.approx(2 / 3, abs=0.01)
    assert count.attention == 32 * 4 * 4096**2
    assert count.total == count.attention + count.ffn + count.embeddings + count.lm_head + count.norms


def test_without_kv_heads_all_heads_keep_their_own() -> None:
    config = llama()
    del config["num_key_value_heads"]
    assert kv_bytes_per_token(config, "float16") == 524_288


def test_falcons_new_architecture_has_kv_head_groups_and_two_norms() -> None:
    config = model_configs.load("falcon-7b") | {"new_decoder_architecture": True, "num_kv_heads": 8}
    config |= {"hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60}
    assert kv_bytes_per_token(config, "bfloat16") == 2 * 60 * 8 * 64 * 2
    assert parameters(config).norms == (2 * 60 + 1) * 2 * 8192


def test_a_wider_key_than_value_head_counts_both() -> None:
    assert kv_layout(llama(head_dim=192, v_head_dim=128)).per_token == 32 * 32 * (192 + 128)


def test_biases_named_in_the_config_count() -> None:
    plain, biased = parameters(llama()), parameters(llama(attention_bias=True, mlp_bias=True))
    assert biased.attention - plain.attention == 32 * 4 * 4096
    assert biased.ffn - plain.ffn == 32 * (2 * 11008 + 4096)


def test_the_text_part_of_a_multimodal_config_is_read() -> None:
    wrapped = {"model_type": "llava", "text_config": llama(), "vision_config": {"hidden_size": 1}}
    assert kv_bytes_per_token(wrapped, "float16") == 524_288
    assert parameters(wrapped).total == 6_738_415_616


def test_a_sliding_window_caps_what_a_sequence_keeps() -> None:
    config = model_configs.load("mistral-7b")
    assert kv_bytes(config, "float16", batch=1, seq_len=4096) == 512 * 2**20
    assert kv_bytes(config, "float16", batch=1, seq_len=32768) == 512 * 2**20
    assert kv_bytes(config, "float16", batch=1, seq_len=100) == 100 * 131_072


def test_only_the_windowed_layers_of_a_hybrid_are_capped() -> None:
    kinds = ["sliding_attention", "full_attention"] * 16
    config = llama(layer_types=kinds, sliding_window=128)
    per_layer = 524_288 // 32
    assert kv_bytes(config, "float16", batch=2, seq_len=1000) == 2 * 16 * per_layer * (1000 + 128)


def test_qwens_first_layers_stay_full_when_its_window_is_on() -> None:
    config = model_configs.load("qwen2.5-7b") | {
        "use_sliding_window": True,
        "sliding_window": 512,
        "max_window_layers": 20,
    }
    layout = kv_layout(config)
    assert (layout.growing, layout.windowed, layout.window) == (20 * 1024, 8 * 1024, 512)


@given(
    batch=st.integers(1, 512),
    seq_len=st.integers(1, 200_000),
    block=st.integers(1, 512),
    name=st.sampled_from(model_configs.names()),
)
def test_whole_blocks_hold_every_token_and_waste_less_than_one_block_a_sequence(
    batch: int, seq_len: int, block: int, name: str
) -> None:
    config = model_configs.load(name)
    exact = kv_bytes(config, "float16", batch=batch, seq_len=seq_len)
    blocks = kv_bytes(config, "float16", batch=batch, seq_len=seq_len, block_size=block)
    assert exact <= blocks < exact + batch * block * kv_bytes_per_token(config, "float16")
    assert blocks % block == 0


@given(
    batch=st.integers(1, 1024),
    weights=st.integers(1, 10**13),
    windowed=st.integers(0, 32),
    window=st.integers(1, 10_000),
)
def test_kv_outgrows_the_weights_at_that_length_and_not_one_token_before(
    batch: int, weights: int, windowed: int, window: int
) -> None:
    kinds = ["sliding_attention"] * windowed + ["full_attention"] * (32 - windowed)
    config = llama(layer_types=kinds, sliding_window=window)
    length = length_where_kv_outgrows(weights, config, "float16", batch)
    if length is None:
        assert windowed == 32
        assert kv_bytes(config, "float16", batch=batch, seq_len=10**9) <= weights
        return
    assert kv_bytes(config, "float16", batch=batch, seq_len=length) > weights
    assert kv_bytes(config, "float16", batch=batch, seq_len=length - 1) <= weights


def test_weight_bytes_follow_the_dtype() -> None:
    assert weight_bytes(llama(), "float32") == 4 * 6_738_415_616
    assert weight_bytes(llama(), "half") == 2 * 6_738_415_616
    assert weight_bytes(llama(), "int4") * 2 == 6_738_415_616


def test_auto_kv_dtype_follows_16_bit_weights_and_stays_16_bit_under_quantised_ones() -> None:
    assert kv_dtype_name("auto", "float32", llama()) == "float32"
    assert kv_dtype_name("auto", "int4", llama()) == "float16"
    assert kv_dtype_name("auto", "int8", llama(torch_dtype="bfloat16")) == "bfloat16"
    assert kv_dtype_name("fp8", "bfloat16", llama()) == "fp8"


def test_an_unknown_dtype_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"float61.*Did you mean 'float16'.*bfloat16"):
        dtype_name("float61")
    assert dtype_name("torch.bfloat16") == dtype_name("BF16") == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"num_attention_heads": "32"}, "num_attention_heads is '32'"),
        ({"num_key_value_heads": -1}, "num_key_value_heads is -1"),
        ({"hidden_size": 4095}, "not a multiple of its 32 heads"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"layer_types": ["full_attention"] * 3}, "names 3 layers"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "gemma3_text"}, "layer_types"),
        ({"mamba_d_state": 16}, "layer_types"),
    ],
)
def test_a_config_that_gives_no_exact_answer_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kv_bytes_per_token(llama(**changes), "float16")


def test_parameters_of_an_unknown_family_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'phi9'.*mixtral.*opt"):
        parameters(llama(model_type="phi9"))
