"""Each model family against transformers in float32: logits of a prompt, and greedy tokens through cache and batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.reference.config import read_model_config
from results.errors import UsageError
from tests.backends.reference.test_model import (
    TINY,
    built,
    chunk_logits,
    generate,
    random_prompts,
    save_model,
    transformers_greedy,
)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Small, but each with what sets its family apart.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 2": ("Llama", {"num_key_value_heads": 6, "rms_norm_eps": 1e-5}),
    "Llama 3": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "SmolLM2": ("Llama", {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}),
    "Mistral": ("Mistral", {"sliding_window": None}),
    "Mistral Nemo": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "Qwen2": ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "Qwen2.5, small": ("Qwen2", {"tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 32}),
    "Qwen3": ("Qwen3", {"head_dim": 32}),
    "Qwen3, tied, with biases": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens_equal_transformers(family: str, tmp_path: Path) -> None:
    kind, changes = FAMILIES[family]
    reference = save_model(kind, tmp_path, **changes)
    prompts = random_prompts((90, 17, 1), TINY["vocab_size"])
    with torch.inference_mode():
        expected = reference(torch.tensor([prompts[0]])).logits[0]
    engine = built(tmp_path)
    for start, logits in chunk_logits(engine, prompts[0], 37):
        torch.testing.assert_close(logits, expected[start : start + 37], rtol=1e-4, atol=1e-4)
    assert generate(built(tmp_path), prompts, 12) == [transformers_greedy(reference, prompt, 12) for prompt in prompts]
    assert engine.model.num_bytes == 4 * sum(parameter.numel() for parameter in reference.parameters())


def save_config(folder: Path, **values: Any) -> Path:
    config = TINY | {"architectures": ["LlamaForCausalLM"]} | values
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "GemmaForCausalLM", "MixtralForCausalLM"])
def test_another_architecture_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"Architecture {name} .* supported: LlamaForCausalLM, Mistral.* Qwen3For"):
        read_model_config(save_config(tmp_path, architectures=[name]))


def test_another_activation_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Activation 'gelu'"):
        read_model_config(save_config(tmp_path, hidden_act="gelu"))


@pytest.mark.parametrize(
    ("values", "longest"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 100}, 100),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, 256),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 100, "use_sliding_window": True}, 100),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 100, "use_sliding_window": False}, 256),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 100}, 256),
    ],
)
def test_requests_end_where_a_sliding_window_would_hide_tokens(
    values: dict[str, Any], longest: int, tmp_path: Path
) -> None:
    assert read_model_config(save_config(tmp_path, **values)).max_position == longest


def test_dummy_weights_serve_every_family(tmp_path: Path) -> None:
    for kind in ("Llama", "Mistral", "Qwen2", "Qwen3"):
        save_config(tmp_path, architectures=[f"{kind}ForCausalLM"])
        assert len(generate(built(tmp_path, load_format="dummy"), [[1, 2, 3]], 4)[0]) == 4
