"""What speculative decoding gave: an engine that guesses tokens ahead is read by how many of its guesses it kept."""

from __future__ import annotations

from typing import Any

from results.reason_rules import CellFacts, Finding


def evidence(numbers: dict[str, Any]) -> str | None:
    """In words, from the server's numbers of a cell; None where it did not guess."""
    length, drafted, accepted = (numbers.get(key) for key in ("acceptance_length", "draft_tokens", "accepted_tokens"))
    if length is None:
        return None
    kept = f"; {accepted:,} of {drafted:,} guessed tokens kept ({accepted / drafted:.0%})" if drafted else ""
    return f"{length:.2f} tokens a sequence and step{kept}"


def speculation_in_use(f: CellFacts) -> Finding | None:
    return None if f.speculation is None else Finding(f.speculation)
