"""What guessing tokens ahead gave is told, and only where it was done."""

from __future__ import annotations

import pytest

from results.rules_speculation import evidence
from results.server_use import acceptance_length


@pytest.mark.parametrize(
    ("drafts", "accepted", "length"), [(10, 20, 3.0), (10, 0, 1.0), (0, 0, None), (None, 5, None), (5, None, None)]
)
def test_acceptance_length_counts_the_own_token_and_the_kept_guesses(
    drafts: float | None, accepted: float | None, length: float | None
) -> None:
    assert acceptance_length(drafts, accepted) == length


def test_the_evidence_has_the_numbers() -> None:
    told = evidence({"acceptance_length": 2.5, "draft_tokens": 300, "accepted_tokens": 150})
    assert told == "2.50 tokens a sequence and step; 150 of 300 guessed tokens kept (50%)"
    assert evidence({"acceptance_length": 1.8, "draft_tokens": None}) == "1.80 tokens a sequence and step"
    assert evidence({"acceptance_length": None}) is None
