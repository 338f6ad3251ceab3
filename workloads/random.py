"""Random token ids: no prefix cache can flatter a number, and the length in tokens is exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from workloads.base import PlannedRequest, Vocabulary, ordinary_ids, request_seed
from workloads.lengths import Length

_PART = 1024


class RandomWorkload(BaseModel):
    """Prompts of uniformly drawn ordinary token ids, with lengths of the given distributions.

    With `max_tokens` so many are asked of the server each time, and the client ends the answer after `output_len` tokens: it
    is then as long as wanted on servers that cannot be made to ignore the end of the sequence. With `natural_eos` the model ends
    its answers itself, and `output_len` is the most that is asked for. `temperature` is that of these requests, where it is not
    the run's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    type: Literal["random"] = "random"
    input_len: Length
    output_len: Length
    max_tokens: int | None = Field(None, gt=0)
    natural_eos: bool | None = None
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)

    @model_validator(mode="after")
    def _room(self) -> RandomWorkload:
        if self.max_tokens is not None and self.max_tokens <= self.output_len.longest:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) must be above the longest output ({self.output_len.longest}): the client ends "
                "each answer before the server does"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_nulls(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """An option that is not given leaves no trace, so that it renames no cell."""
        return {name: value for name, value in handler(self).items() if value is not None}

    @property
    def longest_input(self) -> int:
        return self.input_len.longest

    @property
    def longest_output(self) -> int:
        return self.max_tokens or self.output_len.longest

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
        sampled = "" if self.temperature is None else f", temperature {self.temperature:g}"
        ends = ", natural ends" if self.natural_eos else ""
        return f"{self.input_len.nominal} in / {self.output_len.nominal} out{ends}{sampled}"

    def requests(self, n: int, seed: int, vocabulary: Vocabulary) -> list[PlannedRequest]:
        """The first `n` requests of that seed. Raises UsageError when the vocabulary leaves nothing to draw from."""
        ordinary = ordinary_ids(vocabulary)
        rng = np.random.default_rng(seed)
        inputs = self.input_len.draw(rng, n)
        outputs = self.output_len.draw(rng, n)
        ids = ordinary[rng.integers(0, len(ordinary), size=sum(inputs))].tolist()
        requests, start = [], 0
        for length, output in zip(inputs, outputs, strict=True):
            requests.append(PlannedRequest(tuple(ids[start : start + length]), output, max_tokens=self.max_tokens))
            start += length
        return requests

    def stream(self, n: int, seed: int, vocabulary: Vocabulary) -> Iterator[PlannedRequest]:
        """`n` requests in parts of their own seeds: the first of them are the same whatever `n` is."""
        for part in range(-(-n // _PART)):
            yield from self.requests(min(_PART, n - part * _PART), request_seed(seed, "part", part), vocabulary)
