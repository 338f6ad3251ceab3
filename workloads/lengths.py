"""How long prompts and outputs are: a tagged union of distributions, each drawn from a seeded generator."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

# Draws outside [low, high] are drawn anew; what is still outside after so many rounds is moved to the nearer bound.
_ROUNDS = 200
_MOST_TOKENS = 10_000_000


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


class _Tailed(BaseModel):
    """A distribution with a tail, cut to [low, high]: what falls outside is drawn anew. `mean` is that before the cut."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    mean: float = Field(gt=0, le=_MOST_TOKENS)
    low: int = Field(1, gt=0)
    high: int = Field(gt=0, le=_MOST_TOKENS)

    @model_validator(mode="after")
    def _inside(self) -> _Tailed:
        if not self.low <= self.mean <= self.high:
            raise ValueError(f"the mean ({self.mean:g}) is not between low ({self.low}) and high ({self.high})")
        return self

    @abstractmethod
    def _raw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]: ...

    def draw(self, rng: np.random.Generator, n: int) -> list[int]:
        values = np.rint(self._raw(rng, n))
        for _ in range(_ROUNDS):
            outside = np.flatnonzero((values < self.low) | (values > self.high))
            if not len(outside):
                break
            values[outside] = np.rint(self._raw(rng, len(outside)))
        return [int(v) for v in np.clip(values, self.low, self.high)]

    @property
    def longest(self) -> int:
        return self.high

    @property
    def nominal(self) -> int:
        return max(1, round(self.mean))


def _high(values: Any, factor: float) -> Any:
    """`high`, where it is not given, so many standard deviations above the mean: it is part of what was asked."""
    if isinstance(values, dict) and values.get("high") is None:
        mean, std = values.get("mean"), values.get("std", values.get("mean"))
        if isinstance(mean, int | float) and isinstance(std, int | float) and math.isfinite(mean + std):
            return {**values, "high": max(1, math.ceil(mean + factor * std))}
    return values


class NormalLength(_Tailed):
    """Normal about `mean` with standard deviation `std`."""

    dist: Literal["normal"] = "normal"
    std: float = Field(gt=0, le=_MOST_TOKENS)

    @model_validator(mode="before")
    @classmethod
    def _default(cls, values: Any) -> Any:
        return _high(values, 4)

    def _raw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return rng.normal(self.mean, self.std, size=n)


class LognormalLength(_Tailed):
    """Lognormal with the mean and standard deviation of the lengths themselves (not of their logarithm): few are very long."""

    dist: Literal["lognormal"] = "lognormal"
    std: float = Field(gt=0, le=_MOST_TOKENS)

    @model_validator(mode="before")
    @classmethod
    def _default(cls, values: Any) -> Any:
        return _high(values, 8)

    def _raw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        variance = math.log1p((self.std / self.mean) ** 2)
        return rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), size=n)


class ExponentialLength(_Tailed):
    """Exponential with that mean: most are short."""

    dist: Literal["exponential"] = "exponential"

    @model_validator(mode="before")
    @classmethod
    def _default(cls, values: Any) -> Any:
        return _high(values, 7)

    def _raw(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return rng.exponential(self.mean, size=n)


Length = Annotated[
    FixedLength | UniformLength | NormalLength | LognormalLength | ExponentialLength, Field(discriminator="dist")
]
