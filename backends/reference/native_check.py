"""Whether the compiled kernels agree with PyTorch here: a small random model, computed both ways at every start."""

from __future__ import annotations

import torch

from backends.reference.attention import PagedKV
from backends.reference.config import ModelConfig
from backends.reference.kernels import Kernels
from backends.reference.model import Llama
from backends.reference.native import NativeKV, NativeLlama
from backends.reference.request import Request, Scheduled
from backends.reference.runner import KVCache, Model

# bfloat16 keeps 8 bits, and a few layers of it stay within some per cent of the spread of the logits.
TOLERANCE = 0.05
# Two layers, two query heads to a KV head, biases and norms of heads: every branch of the kernels.
SMALL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=96,
    hidden_size=64,
    intermediate_size=112,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position=128,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope={"rope_type": "default"},
    tie_word_embeddings=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    qk_norm=True,
    dtype="bfloat16",
    eos_token_ids=(),
)
_BLOCKS, _BLOCK = 8, 16


class _Weights:
    """The same values in any dtype: all of them bfloat16 numbers, large enough that every part of the model counts."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(name.encode()) + len(name))
        values = torch.randn(shape, generator=generator) * (0.3 if len(shape) == 2 else 0.2)
        return (values + ("norm" in name)).bfloat16().to(self._dtype)


@torch.inference_mode()
def agrees(kernels: Kernels) -> bool:
    """True when logits of a prompt in two chunks beside another's decodes are near those of PyTorch in float32."""
    expected = _logits(*_plain())
    kv = NativeKV(SMALL, _BLOCKS, _BLOCK, kernels)
    found = _logits(NativeLlama(SMALL, _Weights(torch.bfloat16), kernels, kv), kv)
    return bool(((found - expected).abs().mean() < TOLERANCE * expected.std()).item())


def _plain() -> tuple[Llama, KVCache]:
    device = torch.device("cpu")
    kv = PagedKV(SMALL, _BLOCKS, _BLOCK, torch.float32, device)
    return Llama(SMALL, _Weights(torch.float32), torch.float32, device), kv


def _logits(model: Model, kv: KVCache) -> torch.Tensor:
    """Of all tokens of two requests: one of 40 tokens in chunks of 17 and 23, one whose 8 tokens come singly."""
    requests = [Request(key, "", [(7 * i + 31 * key) % SMALL.vocab_size for i in range(40)], 1) for key in (0, 1)]
    requests[0].block_table, requests[1].block_table = [5, 0, 3], [2]
    rows = []
    for step in range(8):
        items = [Scheduled(requests[1], step, 1)]
        if step in (2, 5):
            items.append(Scheduled(requests[0], *((0, 17) if step == 2 else (17, 23))))
        ids = torch.tensor([token for item in items for token in item.request.tokens[item.start : item.end]])
        positions = torch.cat([torch.arange(item.start, item.end) for item in items])
        rows.append(model.logits(model.hidden(ids, positions, kv, kv.index(items))).float())
    return torch.cat(rows)
