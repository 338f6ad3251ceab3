"""Reading shares as they are typed: `3%`, `0.03`."""

from __future__ import annotations

import math

from results.errors import UsageError


def share(flag: str, text: str) -> float:
    """A share between 0 and 1, both left out: `3%` or `0.03`. Raises UsageError naming the flag."""
    word = text.strip()
    value = _number(word.removesuffix("%").strip())
    if word.endswith("%"):
        value /= 100
    if not 0 < value < 1:
        raise UsageError(
            f"{flag}: {text!r} is not a share between 0 and 100 %. Write it as {flag} 3% or {flag} 0.03 (95% is 0.95)."
        )
    return value


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan
