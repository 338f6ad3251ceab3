"""What every workload gives, and the rule that seeds it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from results.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request as it will be sent: the prompt (token ids, or text), the output length asked for, and, where the
    workload itself says when (a trace), the instant in ns after the cell's start."""

    prompt: tuple[int, ...] | str
    output_len: int
    at_ns: int | None = None
    # More than `output_len`, where the client is to end the answer itself after `output_len` tokens.
    max_tokens: int | None = None
    # Requests of one chain (the turns of a conversation) go one after the other, in order: a closed loop keeps them in one slot.
    chain: int | None = None
    # What was done to it, where it is not as its file has it (truncated, repeated, or sent in the place of dropped ones).
    marks: tuple[str, ...] = ()

    @property
    def input_tokens(self) -> int | None:
        """Prompt tokens as planned; None for text, whose count only a tokenizer (or the server) knows."""
        return None if isinstance(self.prompt, str) else len(self.prompt)

    def with_output_len(self, tokens: int) -> PlannedRequest:
        return replace(self, output_len=tokens)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Which token ids may be drawn: all below `size` but the special ones. Where the tokenizer is known, `decode` makes text of
    ids, and `encode` makes ids of text, with what the tokenizer puts before a prompt (BOS), once."""

    size: int
    special: frozenset[int] = frozenset()
    decode: Callable[[Sequence[int]], str] | None = field(default=None, compare=False)
    encode: Callable[[str], Sequence[int]] | None = field(default=None, compare=False)

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids, without the marks of bytes that are no character. Read again it may be other ids, and another
        number of them. Raises UsageError."""
        if self.decode is None:
            raise UsageError(
                "Prompts are to be sent as text, but the model's tokenizer is not at hand to make text of random token ids. "
                "Name a folder with its tokenizer.json by --tokenizer, or use --endpoint completions."
            )
        return self.decode(ids).replace("\ufffd", "")


def ordinary_ids(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """The ids that may be drawn. Raises UsageError when there are too few."""
    import numpy as np

    ordinary = np.setdiff1d(np.arange(vocabulary.size), np.fromiter(vocabulary.special, dtype=np.int64))
    if len(ordinary) < 2:
        raise UsageError(
            f"A vocabulary of {vocabulary.size} tokens, {len(vocabulary.special)} of them special, leaves nothing to "
            "draw random prompts from. Name a model or tokenizer with --tokenizer."
        )
    return ordinary


def draw_ids(rng: np.random.Generator, ordinary: NDArray[np.int64], n: int) -> tuple[int, ...]:
    """`n` of the ordinary ids, each as likely."""
    return tuple(ordinary[rng.integers(0, len(ordinary), size=n)].tolist())


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


def stream_requests(workload: WorkloadLike, n: int, seed: int, vocabulary: Vocabulary) -> Iterator[PlannedRequest]:
    """`n` requests one by one. A workload with a `stream` of its own (same arguments as `requests`) need not hold them all."""
    stream = getattr(workload, "stream", None)
    found: Iterator[PlannedRequest] = (
        stream(n, seed, vocabulary) if stream else iter(workload.requests(n, seed, vocabulary))
    )
    return found


def canonical(value: Any) -> str:
    """One text for one meaning: sorted keys, no blanks. What ids and seeds are hashed from."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def request_seed(*parts: Any) -> int:
    """A 64-bit seed from what was asked (run seed, workload, load, block). The engine is left out on purpose: every
    engine of a run gets the same prompts."""
    digest = hashlib.sha256(canonical(list(parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big")
