"""What a model's config.json says about its size: parameters, weight bytes, bytes of KV cache.

Everything is worked out from the plain dict, without a framework and without the weights. Symbols: L layers, D hidden,
q query heads, k KV heads, d head_dim. Parameters are counted in results.parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from results.errors import UnknownNameError, UsageError
from results.parameters import (
    Config,
    ParameterCount,
    head_dim,
    kv_heads,
    optional_int,
    parameters,
    positive_int,
    text_config,
)

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "DTYPE_BITS",
    "Config",
    "KVLayout",
    "ParameterCount",
    "dtype_name",
    "head_dim",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_dtype_name",
    "kv_heads",
    "kv_layout",
    "length_where_kv_outgrows",
    "model_dtype",
    "parameters",
    "text_config",
    "weight_bytes",
]

DTYPE_BITS = {
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "fp8": 8,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8": 8,
    "int4": 4,
}
_ALIASES = {"float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bf16": "bfloat16"}
# One block of tokens of vLLM's default size, for those who want the rounding and do not care which.
DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Elements of KV cache one token adds, over all layers.

    `growing`: layers that keep the whole context. `windowed`: layers that keep the last `window` tokens only.
    """

    growing: int
    windowed: int
    window: int | None

    @property
    def per_token(self) -> int:
        """Elements a token takes while the context is within the window."""
        return self.growing + self.windowed


def dtype_name(dtype: str) -> str:
    """The one spelling of a dtype (`half` -> `float16`, `torch.bfloat16` -> `bfloat16`). Raises UnknownNameError."""
    name = dtype.strip().lower().removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name not in DTYPE_BITS:
        raise UnknownNameError("dtype", dtype, [*DTYPE_BITS, *_ALIASES])
    return name


def model_dtype(config: Config) -> str:
    """The dtype the config was published in; float16 where it names none."""
    text = text_config(config)
    dtype = text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or config.get("dtype")
    return dtype_name(dtype) if isinstance(dtype, str) else "float16"


def kv_dtype_name(kv_dtype: str, dtype: str, config: Config) -> str:
    """`auto` is the dtype of the activations: the weights' own, or the model's where the weights are quantised."""
    if kv_dtype != "auto":
        return dtype_name(kv_dtype)
    weights = dtype_name(dtype)
    if DTYPE_BITS[weights] >= 16:
        return weights
    published = model_dtype(config)
    return published if DTYPE_BITS[published] >= 16 else "bfloat16"


def weight_bytes(config: Config, dtype: str) -> int:
    """Parameters x bits / 8. Scales and zeros of quantised formats are not counted."""
    return parameters(config).total * DTYPE_BITS[dtype_name(dtype)] // 8


def kv_layout(config: Config) -> KVLayout:
    """What a token leaves in the cache: 2 L k d elements (K and V), or L (kv_lora_rank + qk_rope_head_dim) under MLA.

    k is the number of KV heads (GQA; 1 in multi-query models; all heads where the config names none), d the explicit
    head_dim where there is one, else D / q. Layers with a sliding window are told apart. Raises UsageError where the
    config names layers that keep something else (state-space or linear attention).
    """
    config = text_config(config)
    if config.get("is_encoder_decoder"):
        raise UsageError("An encoder-decoder keeps a second, cross-attention cache; its KV bytes are not worked out.")
    layers = positive_int(config, "num_hidden_layers", "n_layer")
    if config.get("kv_lora_rank"):
        per_layer = positive_int(config, "kv_lora_rank") + positive_int(config, "qk_rope_head_dim")
    else:
        head = head_dim(config)
        per_layer = kv_heads(config) * (
            head + (positive_int(config, "v_head_dim") if config.get("v_head_dim") else head)
        )
    windowed, window = _windowed_layers(config, layers)
    return KVLayout((layers - windowed) * per_layer, windowed * per_layer, window)


def kv_bytes_per_token(config: Config, kv_dtype: str) -> int:
    """Bytes one token takes in the cache, over all layers (see `kv_layout`)."""
    return kv_layout(config).per_token * DTYPE_BITS[dtype_name(kv_dtype)] // 8


def kv_bytes(config: Config, kv_dtype: str, *, batch: int, seq_len: int, block_size: int | None = None) -> int:
    """Bytes of KV cache for `batch` sequences of `seq_len` tokens.

    With `block_size` each sequence takes whole blocks, ceil(tokens / block) x block. Windowed layers keep min(seq_len,
    window) tokens: what the formula needs; an engine may hold a block or a prefill chunk more.
    """
    layout = kv_layout(config)

    def held(tokens: int) -> int:
        return tokens if block_size is None else -(-tokens // block_size) * block_size

    elements = layout.growing * held(seq_len) + layout.windowed * held(min(seq_len, layout.window or seq_len))
    return batch * elements * DTYPE_BITS[dtype_name(kv_dtype)] // 8


def length_where_kv_outgrows(weights: int, config: Config, kv_dtype: str, batch: int) -> int | None:
    """The smallest sequence length at which `batch` sequences' KV is larger than `weights` bytes.

    None where the windows keep it from ever getting there.
    """
    layout, bits = kv_layout(config), DTYPE_BITS[dtype_name(kv_dtype)]
    budget = weights * 8 // bits
    length = budget // (batch * layout.per_token) + 1
    if layout.window is None or length <= layout.window:
        return length
    if not layout.growing:
        return None
    return (budget - batch * layout.windowed * layout.window) // (batch * layout.growing) + 1


# Families whose windowed layers follow a pattern that only `layer_types` tells.
_PATTERNED = {"gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "cohere2", "gpt_oss", "llama4_text"}
_STATE_KEYS = ("ssm_cfg", "mamba_d_state", "state_size", "linear_num_key_heads", "rwkv_hidden_size", "lru_width")


def _windowed_layers(config: Config, layers: int) -> tuple[int, int | None]:
    """How many layers have a sliding window, and its width."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        if other := sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"}):
            raise UsageError(
                f"config.json: layers of kind {', '.join(other)} keep another state; no KV bytes for them."
            )
        if len(kinds) != layers:
            raise UsageError(f"config.json: layer_types names {len(kinds)} layers, num_hidden_layers is {layers}.")
        windowed = kinds.count("sliding_attention")
    elif str(config.get("model_type")) in _PATTERNED or any(key in config for key in _STATE_KEYS):
        family = config.get("model_type")
        raise UsageError(
            f"config.json of the family {family!r} needs layer_types to tell which layers keep the context."
        )
    elif not config.get("sliding_window") or config.get("use_sliding_window") is False:
        windowed = 0
    else:
        full_first = optional_int(config, "max_window_layers", 0) if config.get("use_sliding_window") else 0
        windowed = max(0, layers - full_first)
    return (windowed, positive_int(config, "sliding_window")) if windowed else (0, None)
