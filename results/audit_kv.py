"""Equal tokens are not equal memory: what the same number of tokens takes in each engine, and what to ask for instead.

Where a token takes other bytes in one engine than in the other (fp8 beside 16 bit, a hybrid or latent cache) there are two fair
questions. Tokens: the same requests fit. Bytes: the same memory was given. The second is offered beside the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.arithmetic import Config, kv_bytes_per_token, kv_dtype_name, kv_layout, model_dtype, text_config
from results.errors import UsageError
from results.report_format import count, listed, size

SETTING = "kv_cache_bytes"


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV cache of one engine."""

    engine: str
    tokens: int
    bytes: int

    @property
    def per_token(self) -> float:
        return self.bytes / self.tokens


@dataclass(frozen=True, slots=True)
class EqualBytes:
    """The caches as they are, and the bytes that each engine could be given: those of the smallest, which all have room for."""

    pools: tuple[Pool, ...]

    @property
    def bytes(self) -> int:
        return min(pool.bytes for pool in self.pools)

    def tokens(self, pool: Pool) -> int:
        """What an engine would hold in them."""
        return int(self.bytes / pool.per_token)

    def words(self) -> str:
        now = [
            f"{count(p.tokens)} tokens take {size(p.bytes)} in {p.engine} ({size(p.per_token)} each)"
            for p in self.pools
        ]
        then = [f"{p.engine} {count(self.tokens(p))}" for p in self.pools]
        if len(self.pools) == 1:
            return f"{now[0]}. Asked for in bytes that is {SETTING}={self.bytes}."
        return (
            f"{listed(now, 6)}. For equal memory instead of equal tokens give each engine {SETTING}={self.bytes}: "
            f"then {listed(then, 6)} tokens."
        )

    def to_dict(self) -> dict[str, Any]:
        pools = [
            {"engine": p.engine, "tokens": p.tokens, "bytes": p.bytes, "tokens_at_equal_bytes": self.tokens(p)}
            for p in self.pools
        ]
        return {"bytes": self.bytes, "setting": f"{SETTING}={self.bytes}", "engines": pools}


def equal_bytes(engines: Sequence[str], tokens: Sequence[Any], sizes: Sequence[Any]) -> EqualBytes | None:
    """The offer for caches that are told in tokens and in bytes; None where one is not."""
    pools = [
        Pool(engine, held, taken)
        for engine, held, taken in zip(engines, tokens, sizes, strict=True)
        if isinstance(held, int) and isinstance(taken, int) and held > 0 and taken > 0
    ]
    return EqualBytes(tuple(pools)) if len(pools) == len(engines) and pools else None


def asked_in_tokens(config: Config, engines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a plan should say of caches asked in tokens (`engines`: label -> its settings): empty unless a token's bytes are not
    plain, because the engines keep it in different formats or the model's layers do not all keep the whole context."""
    asked = {label: s for label, s in engines.items() if isinstance(s.get("kv_cache_tokens"), int)}
    if not asked or not config:
        return []
    try:
        kind = _kind(config)
        each = {label: kv_bytes_per_token(config, _kv_dtype(config, settings)) for label, settings in asked.items()}
    except UsageError as error:
        return [
            f"kv_cache_tokens was asked, and how many bytes a token takes is not known ({str(error).rstrip('.')}): the engine's own "
            f"count of tokens is read back. For equal memory give each engine {SETTING}."
        ]
    if not kind and len(set(each.values())) == 1:
        return []
    pools = tuple(Pool(label, s["kv_cache_tokens"], s["kv_cache_tokens"] * each[label]) for label, s in asked.items())
    why = f" ({kind})" if kind else ""
    return [f"kv_cache_tokens was asked{why}: {EqualBytes(pools).words()}"]


def _kind(config: Config) -> str:
    """Why a token's bytes are not those of every layer's keys and values; empty where they are."""
    layout = kv_layout(config)
    if text_config(config).get("kv_lora_rank"):
        return "latent attention: a token leaves one compressed vector a layer"
    if layout.window is not None and layout.windowed:
        share = layout.windowed / layout.per_token
        return (
            f"{share:.0%} of a token's bytes are in layers that keep the last {count(layout.window)} tokens only, so long requests "
            "take less than this"
        )
    return ""


def _kv_dtype(config: Config, settings: Mapping[str, Any]) -> str:
    dtype = str(settings.get("dtype") or "auto")
    own = model_dtype(config) if dtype == "auto" else dtype
    return kv_dtype_name(str(settings.get("kv_dtype") or "auto"), own, config)
