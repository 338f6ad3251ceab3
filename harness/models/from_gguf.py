"""A Hugging Face folder from a GGUF of the Llama architecture, without torch or transformers.

What llama.cpp changed on the way in is undone: weights are dequantised, and the rows of q and k, which it interleaves
for its own rotary embedding, go back to Hugging Face's order (first half, second half of each head).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness.models.errors import ModelFetchError
from harness.models.folder import Array, byte_level_bpe, write_bf16_safetensors, write_json

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# Pre-tokenizers this module can rebuild: does it split digits one by one before GPT-2's pattern?
_SPLITS_DIGITS = {"smollm": True, "gpt-2": False}
_CONTROL_TOKEN = 3


def require_gguf() -> Any:
    """The gguf module, or the error that says how to get it."""
    try:
        import gguf
    except ImportError as error:
        raise ModelFetchError(
            "Building this model needs the gguf package (the extra `models` of llm-dyno), which is not installed. "
            f"Install it with: {sys.executable} -m pip install 'gguf>=0.17'"
        ) from error
    return gguf


def convert(gguf_file: Path, folder: Path) -> None:
    """Write config, weights (bf16) and tokenizer of `gguf_file` into `folder`. Raises ModelFetchError."""
    reader = require_gguf().GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        raise ModelFetchError(f"{gguf_file.name} is of the architecture {fields['general.architecture']}, not llama.")
    tensors = {_hugging_face_name(tensor.name): tensor for tensor in reader.tensors}
    config = _config(fields, tied="lm_head.weight" not in tensors)
    write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    write_json(folder / "generation_config.json", ids)
    _write_tokenizer(fields, folder)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}

    def read(name: str) -> Array:
        values = _dequantised(tensors[name])
        projection = name.split(".")[-2]
        return _unpermute(values, heads[projection]) if projection in heads else values

    # GGUF lists the fastest dimension first.
    shapes = {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in sorted(tensors.items())}
    write_bf16_safetensors(folder / "model.safetensors", shapes, read)


def _hugging_face_name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _TOP_NAMES:
        return f"{_TOP_NAMES[parts[0]]}.{parts[1]}"
    raise ModelFetchError(f"The GGUF holds a tensor {name!r} that a plain Llama does not have.")


def _dequantised(tensor: Any) -> Array:
    from gguf.quants import dequantize

    values: Array = dequantize(tensor.data, tensor.tensor_type)
    return values


def _unpermute(values: Array, heads: int) -> Array:
    """Rows (pair, half) of each head back to (half, pair)."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": fields.get("llama.rope.dimension_count", hidden // heads),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": float(fields.get("llama.rope.freq_base", 10000.0)),
        # The field is a float32: 7 digits bring back the number that was meant.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if (token := fields.get(f"tokenizer.ggml.{theirs}_token_id")) is not None:
            config[f"{ours}_token_id"] = token
    return config


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    kind, pre = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in _SPLITS_DIGITS:
        raise ModelFetchError(
            f"The GGUF's tokenizer ({kind}, pre-tokenizer {pre}) is not one this command can rebuild."
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    special = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == _CONTROL_TOKEN}
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"]]
    write_json(folder / "tokenizer.json", byte_level_bpe(vocab, merges, special, split_digits=_SPLITS_DIGITS[pre]))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        if (token := fields.get(f"tokenizer.ggml.{theirs}_token_id")) is not None:
            config[f"{ours}_token"] = tokens[token]
    if template := fields.get("tokenizer.chat_template"):
        config["chat_template"] = template
    write_json(folder / "tokenizer_config.json", config)
