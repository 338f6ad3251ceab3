"""Prompts that begin alike: what a prefix cache is worth at a known share of hits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from workloads.base import PlannedRequest, Vocabulary, draw_ids, ordinary_ids, request_seed
from workloads.lengths import Length


class PrefixWorkload(BaseModel):
    """Each prompt is a prefix of `prefix_len` tokens and a tail of its own (`input_len`).

    The share `hit_share` of the requests begins with one of `groups` shared prefixes, the others with a prefix that nobody
    else has: prompts are as long at every share, so only what the cache spares differs. The first request of each group has to
    compute its prefix.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    type: Literal["prefix"] = "prefix"
    prefix_len: int = Field(gt=0)
    groups: int = Field(1, gt=0, le=1_000_000)
    hit_share: float = Field(ge=0, le=1)
    input_len: Length
    output_len: Length

    @property
    def longest_input(self) -> int:
        return self.prefix_len + self.input_len.longest

    @property
    def longest_output(self) -> int:
        return self.output_len.longest

    @property
    def longest(self) -> int:
        return self.longest_input + self.longest_output

    @property
    def expected_input(self) -> int:
        return self.prefix_len + self.input_len.nominal

    @property
    def expected_output(self) -> int:
        return self.output_len.nominal

    @property
    def cached_share(self) -> float:
        """The share of the prompt tokens that a cache without limits spares, the first of each group left aside."""
        return self.hit_share * self.prefix_len / self.expected_input

    @property
    def label(self) -> str:
        return (
            f"{self.prefix_len} shared by {self.hit_share:.0%} + {self.input_len.nominal} in / "
            f"{self.output_len.nominal} out"
        )

    def requests(self, n: int, seed: int, vocabulary: Vocabulary) -> list[PlannedRequest]:
        """The first `n` requests of that seed."""
        return list(islice(self.stream(n, seed, vocabulary), n))

    def stream(self, n: int, seed: int, vocabulary: Vocabulary) -> Iterator[PlannedRequest]:
        """One by one; the first of them are the same whatever `n` is."""
        ordinary = ordinary_ids(vocabulary)
        rng = np.random.default_rng(seed)
        shared: dict[int, tuple[int, ...]] = {}
        for _ in range(n):
            if rng.random() < self.hit_share:
                group = int(rng.integers(self.groups))
                if group not in shared:
                    shared[group] = draw_ids(
                        np.random.default_rng(request_seed(seed, group)), ordinary, self.prefix_len
                    )
                prefix = shared[group]
            else:
                prefix = draw_ids(rng, ordinary, self.prefix_len)
            (tail,), (output,) = self.input_len.draw(rng, 1), self.output_len.draw(rng, 1)
            yield PlannedRequest(prefix + draw_ids(rng, ordinary, tail), output)
