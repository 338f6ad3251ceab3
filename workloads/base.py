"""What every workload gives, and the rule that seeds it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request as it will be sent: prompt token ids and the output length asked for."""

    prompt: tuple[int, ...]
    output_len: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Which token ids may be drawn: all below `size` but the special ones."""

    size: int
    special: frozenset[int] = frozenset()


def canonical(value: Any) -> str:
    """One text for one meaning: sorted keys, no blanks. What ids and seeds are hashed from."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def request_seed(*parts: Any) -> int:
    """A 64-bit seed from what was asked (run seed, workload, load, block). The engine is left out on purpose: every
    engine of a run gets the same prompts."""
    digest = hashlib.sha256(canonical(list(parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big")
