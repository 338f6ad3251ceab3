"""Random token ids: no prefix cache can flatter a number, and the length in tokens is exact."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from results.errors import UsageError
from workloads.base import PlannedRequest, Vocabulary
from workloads.lengths import Length


class RandomWorkload(BaseModel):
    """Prompts of uniformly drawn ordinary token ids, with lengths of the given distributions."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    type: Literal["random"] = "random"
    input_len: Length
    output_len: Length

    @property
    def longest_input(self) -> int:
        return self.input_len.longest

    @property
    def longest_output(self) -> int:
        return self.output_len.longest

    @property
    def longest(self) -> int:
        return self.longest_input + self.longest_output

    @property
    def expected_input(self) -> int:
        return self.input_len.nominal

    @property
    def expected_output(self) -> int:
        return self.output_len.nominal

    @property
    def label(self) -> str:
        return f"{self.input_len.nominal} in / {self.output_len.nominal} out"

    def requests(self, n: int, seed: int, vocabulary: Vocabulary) -> list[PlannedRequest]:
        """The first `n` requests of that seed. Raises UsageError when the vocabulary leaves nothing to draw from."""
        ordinary = np.setdiff1d(np.arange(vocabulary.size), np.fromiter(vocabulary.special, dtype=np.int64))
        if len(ordinary) < 2:
            raise UsageError(
                f"A vocabulary of {vocabulary.size} tokens, {len(vocabulary.special)} of them special, leaves nothing to "
                "draw random prompts from. Name a model or tokenizer with --tokenizer."
            )
        rng = np.random.default_rng(seed)
        inputs = self.input_len.draw(rng, n)
        outputs = self.output_len.draw(rng, n)
        ids = ordinary[rng.integers(0, len(ordinary), size=sum(inputs))].tolist()
        requests, start = [], 0
        for length, output in zip(inputs, outputs, strict=True):
            requests.append(PlannedRequest(tuple(ids[start : start + length]), output))
            start += length
        return requests
