"""A Llama-style decoder: embeddings, layers of attention and gated MLP, and the head. Llama, Mistral, Qwen2, Qwen3.

Works on one flat batch [tokens, ...] whatever requests the tokens belong to; only attention looks at requests.
Query, key and value weights are fused into one product, and so are gate and up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from backends.reference.attention import AttentionIndex, PagedKV
from backends.reference.config import ModelConfig
from backends.reference.linear import Linear, LinearMaker, linear_class
from backends.reference.loader import WeightSource


@dataclass(slots=True)
class Layer:
    """Weights of one decoder layer."""

    attention_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None  # [query heads + KV heads, head_dim]
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Llama:
    """The model. `num_bytes` counts its parameters once (a tied head is not a second copy)."""

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        linear: LinearMaker | None = None,
    ) -> None:
        self.config = config
        self.num_bytes = 0
        self._source = source
        self._linear = linear or linear_class(dtype, device)
        self.linear_name = self._linear.__name__
        hidden = config.hidden_size
        self.embedding = self._get("model.embed_tokens.weight", config.vocab_size, hidden)
        self.layers = [self._layer(f"model.layers.{i}") for i in range(config.num_layers)]
        self.norm = self._get("model.norm.weight", hidden)
        head = self.embedding if config.tie_word_embeddings else self._get("lm_head.weight", config.vocab_size, hidden)
        self.head: Linear = self._linear(head)
        self.cos, self.sin = rotary_tables(config, dtype, device)

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv: PagedKV,
        index: AttentionIndex,
    ) -> torch.Tensor:
        """Compute one step: write the KV of token_ids [tokens]; the last layer's output [tokens, hidden_size] back."""
        config = self.config
        heads = config.num_heads + config.num_kv_heads
        # [tokens, 1, head_dim]: the same for all heads and layers of the step
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        x = functional.embedding(token_ids, self.embedding)
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(self._norm(x, layer.attention_norm)).view(len(x), -1, config.head_dim)
            query_keys = qkv[:, :heads]
            if layer.qk_norm is not None:
                query_keys = (
                    functional.rms_norm(query_keys, (config.head_dim,), eps=config.rms_norm_eps) * layer.qk_norm
                )
            rotated = rotate(query_keys, cos, sin)
            query, keys = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
            values = qkv[:, heads:]
            kv.write(number, keys, values, index)
            attended = kv.attend(number, query, keys, values, index)
            x = x + layer.out(attended.flatten(1))
            gate, up = layer.gate_up(self._norm(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = x + layer.down(functional.silu(gate) * up)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token after each row of `hidden`: [rows, vocabulary]."""
        return self.head(self._norm(hidden, self.norm))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _layer(self, prefix: str) -> Layer:
        c = self.config
        hidden, inner, q, kv = c.hidden_size, c.intermediate_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return Layer(
            attention_norm=self._get(f"{prefix}.input_layernorm.weight", hidden),
            qkv=self._fused(
                {f"{attention}.q_proj": q, f"{attention}.k_proj": kv, f"{attention}.v_proj": kv},
                hidden,
                c.qkv_bias,
            ),
            qk_norm=self._qk_norm(attention),
            out=self._fused({f"{attention}.o_proj": hidden}, q, c.out_bias),
            mlp_norm=self._get(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=self._fused({f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}, hidden, c.mlp_bias),
            down=self._fused({f"{mlp}.down_proj": hidden}, inner, c.mlp_bias),
        )

    def _qk_norm(self, attention: str) -> torch.Tensor | None:
        """Weights that Qwen3 norms each query and key head with, one row a head."""
        c = self.config
        if not c.qk_norm:
            return None
        query, key = (self._get(f"{attention}.{name}_norm.weight", c.head_dim) for name in ("q", "k"))
        return torch.cat([query.expand(c.num_heads, -1), key.expand(c.num_kv_heads, -1)])

    def _fused(self, rows_of: dict[str, int], columns: int, has_bias: bool) -> Linear:
        """One product for several weight matrices that share their input."""
        return self._linear(*self._joined(rows_of, columns, has_bias))

    def _joined(
        self, rows_of: dict[str, int], columns: int, has_bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Several weight matrices one above the other, and their biases."""
        weight = torch.cat([self._get(f"{name}.weight", rows, columns) for name, rows in rows_of.items()])
        bias = torch.cat([self._get(f"{name}.bias", rows) for name, rows in rows_of.items()]) if has_bias else None
        return weight, bias

    def _get(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._source.get(name, shape)
        self.num_bytes += tensor.nbytes
        return tensor


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of x [tokens, heads, head_dim]; coordinate i turns with coordinate i + head_dim / 2.

    cos and sin are [tokens, 1, head_dim], sin with the signs of the two halves.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def rotary_tables(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and signed sin for every position the model knows, each [max_position, head_dim]."""
    angles = torch.outer(torch.arange(config.max_position, dtype=torch.float32), _scaled_frequencies(config))
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=1).to(device, dtype), torch.cat([-sin, sin], dim=1).to(device, dtype)


def _scaled_frequencies(config: ModelConfig) -> torch.Tensor:
    """Angle per position of each coordinate pair, after the config's rope scaling."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    rope = config.rope
    if rope["rope_type"] == "linear":
        return frequencies / float(rope["factor"])
    if rope["rope_type"] == "llama3":
        # Long wavelengths are stretched by `factor`, short ones kept, those between blended.
        factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        turns = original * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        return frequencies / factor * (1 - kept) + frequencies * kept
    return frequencies
