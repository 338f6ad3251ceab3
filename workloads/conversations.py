"""Conversations of several turns, made of random ids: each prompt is all that was said before and something new."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from workloads.base import PlannedRequest, Vocabulary, draw_ids, ordinary_ids
from workloads.lengths import Length


class ConversationsWorkload(BaseModel):
    """`turns` turns: the first prompt has `input_len` tokens, each later one adds an answer and `turn_len` new tokens.

    In the place of answers stand random ids of the lengths asked for: what is sent is the same for every engine, whatever it
    answers. A closed loop keeps a conversation in one slot, so that a turn goes out when the one before has been answered.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    type: Literal["conversations"] = "conversations"
    turns: Length
    input_len: Length
    turn_len: Length
    output_len: Length

    @property
    def longest_input(self) -> int:
        return self.input_len.longest + (self.turns.longest - 1) * (self.turn_len.longest + self.output_len.longest)

    @property
    def longest_output(self) -> int:
        return self.output_len.longest

    @property
    def longest(self) -> int:
        return self.longest_input + self.longest_output

    @property
    def expected_input(self) -> int:
        """The prompt of a turn in the middle."""
        return (
            self.input_len.nominal + (self.turns.nominal - 1) * (self.turn_len.nominal + self.output_len.nominal) // 2
        )

    @property
    def expected_output(self) -> int:
        return self.output_len.nominal

    @property
    def label(self) -> str:
        return f"{self.turns.nominal} turns, {self.input_len.nominal} + {self.turn_len.nominal} in / {self.output_len.nominal} out"

    def requests(self, n: int, seed: int, vocabulary: Vocabulary) -> list[PlannedRequest]:
        """The first `n` requests of that seed, conversation by conversation."""
        return list(islice(self.stream(n, seed, vocabulary), n))

    def stream(self, n: int, seed: int, vocabulary: Vocabulary) -> Iterator[PlannedRequest]:
        """One by one; the first of them are the same whatever `n` is."""
        ordinary = ordinary_ids(vocabulary)
        rng = np.random.default_rng(seed)
        sent = chain = 0
        while sent < n:
            said: tuple[int, ...] = ()
            (turns,) = self.turns.draw(rng, 1)
            for turn in range(turns):
                (new,), (output,) = (
                    (self.turn_len if turn else self.input_len).draw(rng, 1),
                    self.output_len.draw(rng, 1),
                )
                ids = draw_ids(rng, ordinary, new + output)
                said += ids[:new]
                yield PlannedRequest(said, output, chain=chain)
                said += ids[new:]
                sent += 1
            chain += 1
