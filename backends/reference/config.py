"""What is served and how: the model's shape, read from a Hugging Face folder, and the engine's settings."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.reference.switches import STANDARD, Switches
from results.errors import UsageError

# SmolLM2 is a Llama. Qwen2.5 is a Qwen2.
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
DTYPES = ("float32", "bfloat16", "float16")
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama-style decoder. Sizes are counts; `rope` holds the scaling parameters as in config.json.

    `max_position` ends where a sliding attention window would begin to hide tokens: up to there it is full attention.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope: dict[str, Any]
    tie_word_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    dtype: str
    eos_token_ids: tuple[int, ...]

    @property
    def queries_per_kv(self) -> int:
        """Query heads that share one key/value head (the group of grouped-query attention)."""
        return self.num_heads // self.num_kv_heads

    def kv_bytes_per_token(self, dtype: str) -> int:
        """2 x layers x KV heads x head_dim x bytes: what one token keeps in the KV cache."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * DTYPE_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings as used, every automatic value resolved. `kv_cache_tokens` is a multiple of `block_size`, or 0.

    `device` is cpu or cuda: PyTorch computes alike on both, the compiled kernels on the CPU only.
    `kernels` is a form of the compiled kernels (`kernels.FORMS`), `auto` for the best that fits, or `off`.
    """

    dtype: str
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    kv_cache_tokens: int = 65536
    threads: int = 1
    seed: int = 0
    load_format: str = "auto"
    switches: Switches = STANDARD
    kernels: str = "auto"
    device: str = "cpu"

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool."""
        return self.kv_cache_tokens // self.block_size


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; UsageError when it cannot be read or is not an object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds a {type(data).__name__}, but a JSON object is expected.")
    return data


def read_model_config(folder: Path) -> ModelConfig:
    """The model's shape from `folder`/config.json. UsageError names what is missing or not supported."""
    if not folder.is_dir():
        raise UsageError(f"Model folder {folder} does not exist; give a folder that holds config.json.")
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"Model folder {folder} has no config.json; give a Hugging Face model folder.")
    raw = read_json(path)
    names = raw.get("architectures") or ["(none named)"]
    if names[0] not in ARCHITECTURES:
        raise UsageError(f"Architecture {names[0]} of {path} is not supported; supported: {', '.join(ARCHITECTURES)}.")
    try:
        config = _from_raw(raw, _eos_ids(folder, raw))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"has no {error}" if isinstance(error, KeyError) else f"has a value of the wrong kind: {error}"
        raise UsageError(f"{path} {reason}; a {names[0]} needs it.") from error
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UsageError(f"Activation {raw['hidden_act']!r} of {path} is not supported; supported: silu.")
    _check(config, path)
    return config


def _from_raw(raw: dict[str, Any], eos: tuple[int, ...]) -> ModelConfig:
    architecture = raw["architectures"][0]
    qwen3 = architecture == "Qwen3ForCausalLM"
    heads = int(raw["num_attention_heads"])
    hidden = int(raw["hidden_size"])
    # Since transformers 5 the rope settings are one object; before, `rope_theta` and `rope_scaling` stood apart.
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    theta = rope.get("rope_theta") or raw.get("rope_theta") or 10000.0
    # A missing dtype means float32, as in transformers.
    dtype = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or (128 if qwen3 else hidden // heads)),
        max_position=min(int(raw.get("max_position_embeddings", 2048)), _window(raw, architecture)),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(theta),
        rope=rope,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=bias or architecture == "Qwen2ForCausalLM",
        out_bias=bias and architecture != "Qwen2ForCausalLM",
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=qwen3,
        dtype=str(dtype),
        eos_token_ids=eos,
    )


def _window(raw: dict[str, Any], architecture: str) -> int:
    """Length of the sliding attention window, or a length no model has."""
    used = architecture == "MistralForCausalLM" or raw.get("use_sliding_window", False)
    window = raw.get("sliding_window", 4096) if used else None
    return sys.maxsize if window is None else int(window)


def _check(config: ModelConfig, path: Path) -> None:
    if config.num_heads % config.num_kv_heads:
        raise UsageError(
            f"{path} has {config.num_heads} attention heads, which {config.num_kv_heads} KV heads do not divide."
        )
    if config.rope["rope_type"] not in ROPE_TYPES:
        raise UsageError(
            f"rope type {config.rope['rope_type']!r} of {path} is not supported; supported: {', '.join(ROPE_TYPES)}."
        )


def _eos_ids(folder: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's where it has them, else config.json's. The model can give none beyond its
    vocabulary, so such ones are left out."""
    generation = folder / "generation_config.json"
    value = read_json(generation).get("eos_token_id") if generation.is_file() else None
    if value is None:
        value = raw.get("eos_token_id")
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    return tuple(token for token in map(int, ids) if 0 <= token < int(raw["vocab_size"]))
