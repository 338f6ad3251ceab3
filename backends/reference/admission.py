"""What is refused at once: a request that could never run with these settings, whatever else does. Knows no tensors."""

from __future__ import annotations

from backends.reference.kv_cache import BlockManager


class RefusedError(ValueError):
    """A request that can never run with these settings; the message has the arithmetic."""


def refuse_impossible(blocks: BlockManager, max_model_len: int, num_prompt_tokens: int, max_tokens: int) -> None:
    """Raise RefusedError where the request is longer than the model allows or its KV larger than the whole pool."""
    if num_prompt_tokens < 1:
        raise RefusedError("The prompt is empty: 0 tokens; at least 1 is needed.")
    if max_tokens < 1:
        raise RefusedError(f"max_tokens is {max_tokens}; at least 1 is needed.")
    total = num_prompt_tokens + max_tokens
    asked = f"The prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}: {total} tokens"
    if total > max_model_len:
        raise RefusedError(
            f"{asked}, but max_model_len is {max_model_len}. Shorten the prompt or lower max_tokens by "
            f"{total - max_model_len}."
        )
    # The last generated token is never fed back, so it needs no KV.
    needed = blocks.blocks_for(total - 1)
    if needed > blocks.num_blocks:
        raise RefusedError(
            f"{asked}, whose KV needs {needed} blocks of {blocks.block_size}, but the whole pool has "
            f"{blocks.num_blocks} ({blocks.num_tokens} tokens). Raise --kv-cache-tokens or ask for less."
        )
