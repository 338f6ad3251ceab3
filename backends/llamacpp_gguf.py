"""A GGUF of a Hugging Face Llama folder, in bf16 or f16, so that llama.cpp serves the very weights the other engines serve.

Needs the packages gguf and numpy (the extra `models`), neither torch nor transformers. llama.cpp interleaves the rows of q and k
for its rotary embedding, so they are put into its order.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from results.errors import UsageError

Array = npt.NDArray[Any]
TYPES = ("bfloat16", "float16")
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_NORMAL, _CONTROL = 1, 3


def gguf_of(model: Path, dtype: str, cache: Path) -> Path:
    """The GGUF to serve: the folder's own where it has exactly one, else one written from its weights (once; kept in `cache`
    under the weights' sizes and times). Raises UsageError for what is no plain Llama."""
    own = sorted(model.glob("*.gguf"))
    if len(own) == 1:
        return own[0]
    shards = sorted(model.glob("*.safetensors"))
    if not shards:
        raise UsageError(f"{model} holds neither one .gguf nor .safetensors: llama.cpp has nothing to serve.")
    marks = [f"{shard.stat().st_size}-{shard.stat().st_mtime_ns}" for shard in shards]
    made = cache / f"{model.name}-{'-'.join(marks[:1])}-{len(shards)}-{dtype}.gguf"
    if not made.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = made.with_suffix(f".{os.getpid()}.part")
        try:
            write_gguf(model, shards, dtype, partial)
            partial.replace(made)
        finally:
            partial.unlink(missing_ok=True)
    return made


def write_gguf(model: Path, shards: list[Path], dtype: str, out: Path) -> None:
    """Write the whole file."""
    import gguf

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if (
        config.get("architectures") != ["LlamaForCausalLM"]
        or config.get("rope_scaling")
        or config.get("attention_bias")
    ):
        raise UsageError(
            f"{model} is no plain Llama ({config.get('architectures')}, rope_scaling {config.get('rope_scaling')}): make a GGUF "
            "with llama.cpp's own converter and put it into the folder."
        )
    writer = gguf.GGUFWriter(out, "llama")
    _parameters(writer, config, dtype, gguf)
    _tokenizer(writer, model, config)
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", config["num_attention_heads"])
    for name, values in _tensors(shards):
        ours = _name(name)
        if ".attn_q." in ours or ".attn_k." in ours:
            values = _interleave(values, heads if ".attn_q." in ours else kv_heads)
        if values.ndim == 1:
            writer.add_tensor(ours, _widen(values))
        elif dtype == "bfloat16":
            writer.add_tensor(ours, _bf16(values).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(ours, _widen(values).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _parameters(writer: Any, config: dict[str, Any], dtype: str, gguf: Any) -> None:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head = config.get("head_dim") or hidden // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(_rope(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if dtype == "bfloat16" else gguf.LlamaFileType.MOSTLY_F16)


def _rope(config: dict[str, Any]) -> float:
    parameters = config.get("rope_parameters")
    inner = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    return float(config.get("rope_theta") or inner or 10_000.0)


def _tokenizer(writer: Any, model: Path, config: dict[str, Any]) -> None:
    """Byte-level BPE with its merges; whether digits are split one by one is read from its pre-tokenizer."""
    data = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    if data["model"]["type"] != "BPE":
        raise UsageError(
            f"The tokenizer of {model} is {data['model']['type']}, not BPE: put a GGUF into the folder yourself."
        )
    ids: dict[str, int] = dict(data["model"]["vocab"])
    special = {entry["content"]: entry["id"] for entry in data.get("added_tokens", ()) if entry.get("special")}
    ids |= {entry["content"]: entry["id"] for entry in data.get("added_tokens", ())}
    tokens = [f"[unused{i}]" for i in range(config["vocab_size"])]
    types = [_NORMAL] * config["vocab_size"]
    for token, number in ids.items():
        tokens[number] = token
        types[number] = _CONTROL if token in special else _NORMAL
    merges = [" ".join(m) if isinstance(m, list) else m for m in data["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if '"Digits"' in json.dumps(data.get("pre_tokenizer")) else "gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    for key, add in (
        ("bos_token_id", writer.add_bos_token_id),
        ("eos_token_id", writer.add_eos_token_id),
        ("pad_token_id", writer.add_pad_token_id),
    ):
        value = config.get(key)
        if isinstance(value, list):
            value = value[0]
        if value is not None:
            add(int(value))
    writer.add_add_bos_token(False)


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    prefix, _, rest = stem.partition("model.layers.")
    layer, _, part = rest.partition(".")
    if prefix or part not in _LAYER:
        raise UsageError(f"The weights hold {name!r}, which a plain Llama does not have.")
    return f"blk.{layer}.{_LAYER[part]}.{kind}"


def _tensors(shards: list[Path]) -> Iterator[tuple[str, Array]]:
    """Every tensor as it is stored; bf16 as its bits (uint16)."""
    kinds = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
    for shard in shards:
        with shard.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        data = np.memmap(shard, dtype=np.uint8, mode="r", offset=8 + length)
        for name, about in header.items():
            if name == "__metadata__" or name.endswith("rotary_emb.inv_freq"):
                continue
            if about["dtype"] not in kinds:
                raise UsageError(
                    f"{shard.name} holds {name} as {about['dtype']}: only bf16, f16 and f32 can be converted."
                )
            start, end = about["data_offsets"]
            yield name, np.ascontiguousarray(data[start:end]).view(kinds[about["dtype"]]).reshape(about["shape"])


def _interleave(values: Array, heads: int) -> Array:
    """Rows (half, pair) of each head as (pair, half)."""
    rows, columns = values.shape
    turned: Array = values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return np.ascontiguousarray(turned)


def _widen(values: Array) -> Array:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32)


def _bf16(values: Array) -> Array:
    """Bits of bf16, rounded to nearest, ties to even."""
    if values.dtype == np.uint16:
        return values
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)
