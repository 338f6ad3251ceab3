"""What every workload gives, and the rule that seeds it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request as it will be sent: the prompt (token ids, or text), the output length asked for, and, where the
    workload itself says when (a trace), the instant in ns after the cell's start."""

    prompt: tuple[int, ...] | str
    output_len: int
    at_ns: int | None = None

    @property
    def input_tokens(self) -> int | None:
        """Prompt tokens as planned; None for text, whose count only a tokenizer (or the server) knows."""
        return None if isinstance(self.prompt, str) else len(self.prompt)

    def with_output_len(self, tokens: int) -> PlannedRequest:
        return replace(self, output_len=tokens)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Which token ids may be drawn: all below `size` but the special ones."""

    size: int
    special: frozenset[int] = frozenset()


class WorkloadLike(Protocol):
    """What the harness asks of any workload; nothing else of one is used outside `workloads`."""

    @property
    def label(self) -> str:
        """A few words for tables."""
        ...

    @property
    def longest_input(self) -> int:
        """The most prompt tokens one request can have."""
        ...

    @property
    def longest_output(self) -> int:
        """The most output tokens one request can be asked for."""
        ...

    @property
    def longest(self) -> int:
        """The most tokens, prompt and output together, one request can need."""
        ...

    @property
    def expected_input(self) -> int:
        """Prompt tokens of a typical request, for estimates of cost."""
        ...

    @property
    def expected_output(self) -> int:
        """Output tokens of a typical request, for estimates of cost."""
        ...

    def requests(self, n: int, seed: int, vocabulary: Vocabulary) -> list[PlannedRequest]:
        """The first `n` requests of that seed."""
        ...


def canonical(value: Any) -> str:
    """One text for one meaning: sorted keys, no blanks. What ids and seeds are hashed from."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def request_seed(*parts: Any) -> int:
    """A 64-bit seed from what was asked (run seed, workload, load, block). The engine is left out on purpose: every
    engine of a run gets the same prompts."""
    digest = hashlib.sha256(canonical(list(parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big")
