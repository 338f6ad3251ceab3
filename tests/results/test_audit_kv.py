"""Equal memory is offered beside equal tokens, by itself, where a token is not the same number of bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.audit_kv import EqualBytes, Pool, asked_in_tokens, equal_bytes
from results.report_audit import kv_sentence, short_lines
from tests.results.test_audit import audited, engine

GQA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}
LATENT = {**GQA, "kv_lora_rank": 12, "qk_rope_head_dim": 4}
HYBRID = {**GQA, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 32}
STATE = {**GQA, "layer_types": ["full_attention", "linear_attention"]}


class TestARunWithEqualTokens:
    def test_and_unequal_bytes_is_told_both_and_what_to_ask_for(self) -> None:
        found = audited(engine("a"), engine("b", kv_dtype="fp8", kv_bytes_per_token=500))
        words = (
            "100,000 tokens take 95.4 MiB in a (1,000 B each) and 100,000 tokens take 47.7 MiB in b (500 B each). For equal memory "
            "instead of equal tokens give each engine kv_cache_bytes=50000000: then a 50,000 and b 100,000 tokens."
        )
        assert kv_sentence(found).endswith(words)
        assert short_lines(found)[-1] == words
        offer = found.to_dict()["equal_bytes"]
        assert (offer["bytes"], offer["setting"]) == (50_000_000, "kv_cache_bytes=50000000")
        assert [e["tokens_at_equal_bytes"] for e in offer["engines"]] == [50_000, 100_000]

    @pytest.mark.parametrize("other", [{}, {"kv_cache_tokens": 50_000}, {"without": ("kv_cache_tokens",)}])
    def test_is_offered_nothing_where_memory_is_equal_tokens_are_not_or_one_is_not_told(
        self, other: dict[str, Any]
    ) -> None:
        found = audited(engine("a"), engine("b", **other))
        assert found.equal_bytes is None
        assert found.to_dict()["equal_bytes"] is None


class TestAPlan:
    def test_says_nothing_where_a_token_is_the_same_everywhere_or_tokens_were_not_asked(self) -> None:
        same = {"kv_cache_tokens": 64}
        assert asked_in_tokens(GQA, {"a": same, "b": same}) == []
        assert asked_in_tokens(LATENT, {"a": {}, "b": {"kv_cache_bytes": 1 << 20}}) == []
        assert asked_in_tokens({}, {"a": same}) == []

    def test_tells_the_bytes_of_engines_that_keep_tokens_in_other_formats(self) -> None:
        (line,) = asked_in_tokens(GQA, {"a": {"kv_cache_tokens": 64}, "b": {"kv_cache_tokens": 64, "kv_dtype": "fp8"}})
        # 2 layers x 2 heads x 16 x 2 (K and V) = 128 elements a token.
        assert "64 tokens take 16.0 KiB in a (256 B each) and 64 tokens take 8.00 KiB in b (128 B each)" in line
        assert "kv_cache_bytes=8192: then a 32 and b 64 tokens." in line

    @pytest.mark.parametrize(
        ("config", "said", "size"),
        [
            (LATENT, "latent attention", 64 * 2 * 16 * 2),
            (HYBRID, "50% of a token's bytes are in layers that keep the last 32", 64 * 256),
        ],
    )
    def test_tells_the_bytes_of_a_model_that_does_not_keep_them_plainly(
        self, config: dict[str, Any], said: str, size: int
    ) -> None:
        (line,) = asked_in_tokens(config, {"a": {"kv_cache_tokens": 64}})
        assert said in line
        assert line.endswith(f"Asked for in bytes that is kv_cache_bytes={size}.")

    def test_of_a_model_with_another_state_says_that_bytes_are_not_known(self) -> None:
        (line,) = asked_in_tokens(STATE, {"a": {"kv_cache_tokens": 64}})
        assert "how many bytes a token takes is not known" in line
        assert "give each engine kv_cache_bytes" in line


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**6)), min_size=1, max_size=5))
def test_nobody_is_offered_more_memory_than_it_has(pools: list[tuple[int, int]]) -> None:
    offer = EqualBytes(tuple(Pool(str(n), tokens, tokens * each) for n, (tokens, each) in enumerate(pools)))
    assert all(offer.bytes <= pool.bytes and offer.tokens(pool) <= pool.tokens for pool in offer.pools)


def test_a_size_that_is_not_told_leaves_nothing_to_offer() -> None:
    assert equal_bytes(["a", "b"], [5, None], [5, 5]) is None
    assert equal_bytes(["a"], [5], [10]) == EqualBytes((Pool("a", 5, 10),))
