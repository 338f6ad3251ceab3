"""A tiny random Llama: milliseconds to build and to run, for tests and for trying the harness without a download."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

from harness.models.cache import Origin
from harness.models.folder import Array, byte_level_bpe, write_bf16_safetensors, write_json

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}
SPECIAL = {"<|bos|>": 256, "<|eos|>": 257, "<|pad|>": 258}
SEED = 20240229


def make(folder: Path) -> Origin:
    """Write the model's folder; the same bytes on every machine."""
    write_bf16_safetensors(folder / "model.safetensors", shapes := _shapes(), _weights(shapes).__getitem__)
    write_json(folder / "config.json", CONFIG)
    ids = {key: CONFIG[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "generation_config.json", ids)
    write_json(folder / "tokenizer.json", _tokenizer())
    names = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    rest = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, "chat_template": template}
    write_json(folder / "tokenizer_config.json", names | rest)
    return Origin("generated", f"seed {SEED}", "1")


def _shapes() -> dict[str, tuple[int, ...]]:
    hidden, ffn, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    q, kv = (CONFIG[key] * CONFIG["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}self_attn.q_proj.weight": (q, hidden),
            f"{at}self_attn.k_proj.weight": (kv, hidden),
            f"{at}self_attn.v_proj.weight": (kv, hidden),
            f"{at}self_attn.o_proj.weight": (hidden, q),
            f"{at}post_attention_layernorm.weight": (hidden,),
            f"{at}mlp.gate_proj.weight": (ffn, hidden),
            f"{at}mlp.up_proj.weight": (ffn, hidden),
            f"{at}mlp.down_proj.weight": (hidden, ffn),
        }
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def _weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Normal weights, wide enough that what comes out depends on the whole context and not on the last token alone."""
    random = np.random.RandomState(SEED)  # its stream is frozen across numpy versions; Generator's is not
    weights = {}
    for name, shape in shapes.items():
        noise = random.standard_normal(shape)
        weights[name] = (1.0 + 0.1 * noise if len(shape) == 1 else 0.15 * noise).astype(np.float32)
    return weights


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 byte values, in the order of the values."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spare = iter(range(256, 512))
    return [chr(value) if value in printable else chr(next(spare)) for value in range(256)]


def _tokenizer() -> dict[str, Any]:
    """Ids 0-255 are the bytes, 256-258 special, the rest pairs of letters, so that every id has a text."""
    vocab = {character: i for i, character in enumerate(byte_characters())}
    merges = [list(pair) for pair in product(ascii_lowercase, repeat=2)][: CONFIG["vocab_size"] - 259]
    vocab |= SPECIAL
    vocab |= {a + b: 259 + i for i, (a, b) in enumerate(merges)}
    return byte_level_bpe(vocab, merges, SPECIAL, split_digits=False)
