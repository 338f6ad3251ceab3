"""How long prompts and outputs are: a tagged union of distributions, each drawn from a seeded generator."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator


class FixedLength(BaseModel):
    """Always the same number of tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    dist: Literal["fixed"] = "fixed"
    tokens: int = Field(gt=0)

    def draw(self, rng: np.random.Generator, n: int) -> list[int]:
        return [self.tokens] * n

    @property
    def longest(self) -> int:
        return self.tokens

    @property
    def nominal(self) -> int:
        return self.tokens


class UniformLength(BaseModel):
    """Any whole number from `low` to `high`, both included, equally likely."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    dist: Literal["uniform"] = "uniform"
    low: int = Field(gt=0)
    high: int = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> UniformLength:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low})")
        return self

    @classmethod
    def around(cls, tokens: int, spread: float = 0.2) -> UniformLength:
        """+-`spread` about `tokens`, at least one token."""
        width = int(tokens * spread)
        return cls(low=max(1, tokens - width), high=tokens + width)

    def draw(self, rng: np.random.Generator, n: int) -> list[int]:
        return [int(v) for v in rng.integers(self.low, self.high, size=n, endpoint=True)]

    @property
    def longest(self) -> int:
        return self.high

    @property
    def nominal(self) -> int:
        return (self.low + self.high) // 2


Length = Annotated[FixedLength | UniformLength, Field(discriminator="dist")]
