"""How many parameters a model has, part by part, from its config.json alone.

Symbols: L layers, D hidden, q query heads, k KV heads, d head_dim, I FFN width, V vocabulary, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from results.errors import UsageError

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by part. Biases count with their matrix, routers with the FFN, position tables with the embeddings.

    `lm_head` is 0 where it is tied to the input embedding.
    """

    attention: int
    ffn: int
    embeddings: int
    lm_head: int
    norms: int

    @property
    def total(self) -> int:
        """All of them; a tied table counts once."""
        return self.attention + self.ffn + self.embeddings + self.lm_head + self.norms

    @property
    def ffn_share_of_layer(self) -> float:
        """The FFN's part of a layer's matrices, 0 to 1 (about two thirds in a Llama with as many KV as query heads)."""
        return self.ffn / (self.attention + self.ffn)


def parameters(config: Config) -> ParameterCount:
    """Count parameters part by part.

    Llama and its kin (Mistral, Mixtral, Qwen2, Qwen3): attention D(q+2k)d + qdD, gated FFN 3DI, two norms of D a layer,
    V D for the table and again for the LM head unless tied; experts multiply the FFN and add a router of D E.
    GPT-2, OPT and Falcon have an FFN of two matrices and their own biases and norms; DeepSeek's MLA has low-rank q and
    KV; gpt-oss has biases everywhere and a sink a head. Raises UsageError for a family whose layers this module does not know.
    """
    config = text_config(config)
    family = str(config.get("model_type", "llama"))
    counters = {
        "gpt2": _gpt2,
        "opt": _opt,
        "falcon": _falcon,
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
        "gpt_oss": _gpt_oss,
    }
    if family in counters:
        return counters[family](config)
    if family in _LLAMA_LIKE:
        return _llama(config, family)
    known = ", ".join(sorted([*_LLAMA_LIKE, *counters]))
    raise UsageError(f"The parameters of the model family {family!r} cannot be counted. Known families: {known}.")


def text_config(config: Config) -> Config:
    """The language model's part of a multimodal config, else the config itself."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def kv_heads(config: Config) -> int:
    """KV heads: explicit, else 1 under Falcon's `multi_query`, else as many as query heads."""
    heads = positive_int(config, "num_attention_heads", "n_head")
    if config.get("model_type") in ("falcon", "RefinedWeb", "RefinedWebModel"):
        if config.get("new_decoder_architecture"):
            return positive_int(config, "num_kv_heads", "n_head_kv")
        return 1 if config.get("multi_query", True) else heads
    if config.get("num_key_value_heads") is not None:
        return positive_int(config, "num_key_value_heads")
    return 1 if config.get("multi_query") else heads


def head_dim(config: Config) -> int:
    """The explicit head_dim, else hidden size / heads."""
    if config.get("head_dim") is not None:
        return positive_int(config, "head_dim")
    hidden, heads = positive_int(config, "hidden_size", "n_embd"), positive_int(config, "num_attention_heads", "n_head")
    if hidden % heads:
        raise UsageError(f"config.json: hidden_size {hidden} is not a multiple of its {heads} heads, and no head_dim.")
    return hidden // heads


_LLAMA_LIKE = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}


def _llama(config: Config, family: str) -> ParameterCount:
    layers, hidden, ffn = (
        positive_int(config, key) for key in ("num_hidden_layers", "hidden_size", "intermediate_size")
    )  # fmt: skip
    head = head_dim(config)
    q, kv = positive_int(config, "num_attention_heads") * head, kv_heads(config) * head
    attention = hidden * (q + 2 * kv) + q * hidden
    if family == "qwen2" or config.get("attention_bias"):
        attention += q + 2 * kv + (0 if family == "qwen2" else hidden)
    norms = 2 * hidden + (2 * head if family.startswith("qwen3") else 0)
    dense = 3 * hidden * ffn + (2 * ffn + hidden if config.get("mlp_bias") else 0)
    experts = optional_int(config, "num_local_experts" if family == "mixtral" else "num_experts", 0)
    sparse = dense
    if experts:
        width = optional_int(config, "moe_intermediate_size", ffn)
        sparse = experts * 3 * hidden * width + hidden * experts
    step, listed = optional_int(config, "decoder_sparse_step", 1), config.get("mlp_only_layers")
    dense_only = listed if isinstance(listed, list) else []
    n_sparse = sum(1 for i in range(layers) if i not in dense_only and (i + 1) % step == 0)
    ffn_total = n_sparse * sparse + (layers - n_sparse) * dense
    table, lm_head = _tables(config, hidden, tied=False)
    return ParameterCount(layers * attention, ffn_total, table, lm_head, layers * norms + hidden)


def _deepseek(config: Config) -> ParameterCount:
    layers, hidden, heads = (
        positive_int(config, key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )  # fmt: skip
    rank, rope, nope, value = (
        positive_int(config, key) for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )  # fmt: skip
    q_rank = optional_int(config, "q_lora_rank", 0)
    query = hidden * q_rank + q_rank * heads * (nope + rope) if q_rank else hidden * heads * (nope + rope)
    attention = query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    experts, width = positive_int(config, "n_routed_experts"), positive_int(config, "moe_intermediate_size")
    dense_layers = min(layers, optional_int(config, "first_k_dense_replace", 0))
    dense = 3 * hidden * positive_int(config, "intermediate_size")
    sparse = (experts + optional_int(config, "n_shared_experts", 0)) * 3 * hidden * width + hidden * experts
    if config.get("model_type") == "deepseek_v3":
        sparse += experts  # the router's correction bias
    ffn = dense_layers * dense + (layers - dense_layers) * sparse
    norms = layers * (2 * hidden + rank + q_rank) + hidden
    table, lm_head = _tables(config, hidden, tied=False)
    return ParameterCount(layers * attention, ffn, table, lm_head, norms)


def _gpt_oss(config: Config) -> ParameterCount:
    """Everything has a bias, the experts too; each query head has a sink logit."""
    layers, hidden, width, heads, experts = (
        positive_int(config, key)
        for key in (
            "num_hidden_layers",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_local_experts",
        )
    )
    head = head_dim(config)
    q, kv = heads * head, kv_heads(config) * head
    bias = q + 2 * kv + hidden if config.get("attention_bias", True) else 0
    attention = hidden * (q + 2 * kv) + q * hidden + bias + heads
    ffn = experts * (3 * hidden * width + 2 * width + hidden) + (hidden + 1) * experts
    table, lm_head = _tables(config, hidden, tied=False)
    return ParameterCount(layers * attention, layers * ffn, table, lm_head, (2 * layers + 1) * hidden)


def _gpt2(config: Config) -> ParameterCount:
    layers, hidden = positive_int(config, "n_layer", "num_hidden_layers"), positive_int(config, "n_embd", "hidden_size")
    ffn = optional_int(config, "n_inner", 4 * hidden)
    attention = 4 * hidden * hidden + 4 * hidden
    table, lm_head = _tables(config, hidden, tied=True)
    positions = positive_int(config, "n_positions", "max_position_embeddings") * hidden
    feed = 2 * hidden * ffn + ffn + hidden
    return ParameterCount(layers * attention, layers * feed, table + positions, lm_head, (2 * layers + 1) * 2 * hidden)


def _opt(config: Config) -> ParameterCount:
    layers, hidden, ffn = (positive_int(config, key) for key in ("num_hidden_layers", "hidden_size", "ffn_dim"))
    width = optional_int(config, "word_embed_proj_dim", hidden)
    bias = 1 if config.get("enable_bias", True) else 0
    affine = 2 if config.get("layer_norm_elementwise_affine", True) else 0
    table, lm_head = _tables(config, width, tied=True)
    # Two position rows are reserved; a narrower table is projected in and out.
    embeddings = table + (positive_int(config, "max_position_embeddings") + 2) * hidden
    embeddings += 2 * hidden * width if width != hidden else 0
    final = 1 if config.get("do_layer_norm_before", True) and not config.get("_remove_final_layer_norm") else 0
    attention = 4 * hidden * hidden + bias * 4 * hidden
    feed = 2 * hidden * ffn + bias * (ffn + hidden)
    norms = (2 * layers + final) * affine * hidden
    return ParameterCount(layers * attention, layers * feed, embeddings, lm_head, norms)


def _falcon(config: Config) -> ParameterCount:
    layers, hidden = positive_int(config, "num_hidden_layers", "n_layer"), positive_int(config, "hidden_size")
    head, bias = head_dim(config), 1 if config.get("bias") else 0
    q, kv = positive_int(config, "num_attention_heads", "n_head") * head, kv_heads(config) * head
    ffn = optional_int(config, "ffn_hidden_size", 4 * hidden)
    attention = hidden * (q + 2 * kv) + q * hidden + bias * (q + 2 * kv + hidden)
    feed = 2 * hidden * ffn + bias * (ffn + hidden)
    # A parallel block shares one norm, except in the new architecture, which has one for each branch.
    shared = config.get("parallel_attn", True) and not config.get("new_decoder_architecture")
    norms = (layers * (1 if shared else 2) + 1) * 2 * hidden
    table, lm_head = _tables(config, hidden, tied=True)
    return ParameterCount(layers * attention, layers * feed, table, lm_head, norms)


def _tables(config: Config, hidden: int, *, tied: bool) -> tuple[int, int]:
    """Input embedding and LM head; `tied` is the family's default."""
    size = positive_int(config, "vocab_size") * hidden
    return size, 0 if config.get("tie_word_embeddings", tied) else size


def optional_int(config: Config, name: str, default: int) -> int:
    """A field that may be absent, null or 0, all of which mean `default`. Raises UsageError."""
    return positive_int(config, name) if config.get(name) not in (None, 0) else default


# Well above any model's dimension; keeps sums of bytes printable and loops over layers short.
_LARGEST = 100_000_000


def positive_int(config: Config, *names: str) -> int:
    """The first of `names` the config has, a positive integer. Raises UsageError."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"config.json: {name} is {value!r}, not a positive integer.")
        if value > _LARGEST:
            raise UsageError(f"config.json: {name} is larger than {_LARGEST:,}; no model is.")
        return value
    raise UsageError(f"config.json has no {' or '.join(names)}; is it a language model's?")
