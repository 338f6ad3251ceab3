"""Stop strings in growing text: cut where they begin, however the tokens fall, and never given out in part."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.reference.text import OutputText

PIECES = ["a", "b", "ab", "ba", "aab", "", "c"]


class Spelling:
    """Token i reads PIECES[i]."""

    def push(self, token_ids: Sequence[int], last: bool) -> str:
        return "".join(PIECES[token] for token in token_ids)


def run(
    tokens: list[int], stops: list[str], include: bool = False, min_tokens: int = 0
) -> tuple[list[str], str | None]:
    text = OutputText(Spelling(), stops, include, min_tokens)
    deltas = []
    for number, token in enumerate(tokens, start=1):
        deltas.append(text.push(token, last=number == len(tokens)))
        if text.stopped_by is not None:
            break
    return deltas, text.stopped_by


@given(
    tokens=st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=20),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
)
def test_text_ends_at_the_first_stop_string_whatever_the_tokens(
    tokens: list[int], stops: list[str], include: bool
) -> None:
    whole = ""
    for token in tokens:  # up to the token that completes one
        whole += PIECES[token]
        if any(stop in whole for stop in stops):
            break
    found = [(whole.index(stop), stop) for stop in stops if stop in whole]
    deltas, stopped_by = run(tokens, stops, include)
    if found:
        at = min(at for at, _ in found)
        assert stopped_by in [stop for where, stop in found if where == at]
        assert "".join(deltas) == whole[:at] + (stopped_by if include else "")
    else:
        assert stopped_by is None
        assert "".join(deltas) == whole


@pytest.mark.parametrize(
    ("tokens", "stops", "deltas"),
    [
        ([0, 6, 0], ["ab"], ["", "ac", "a"]),  # a beginning that came to nothing, and one at the end
        ([0, 4], ["aab"], ["", "a"]),  # a stop string that begins again within itself
        ([6, 0, 1, 6], ["abc"], ["c", "", "", ""]),
        ([6, 6], ["x"], ["c", "c"]),
        ([0, 0, 1], ["aab"], ["", "", ""]),  # the longest beginning is held, not the shortest
        ([4], ["b", "a"], [""]),  # of two in one piece the earlier ends it
    ],
)
def test_text_is_held_back_no_longer_than_it_may_become_a_stop(
    tokens: list[int], stops: list[str], deltas: list[str]
) -> None:
    assert run(tokens, stops)[0] == deltas


def test_stop_strings_are_not_looked_for_before_min_tokens() -> None:
    assert run([6, 6, 6, 6], ["c"], min_tokens=2) == (["c", "c", ""], "c")


def test_stop_token_has_no_text_but_lets_out_what_was_held() -> None:
    text = OutputText(Spelling(), ["abc"], include_stop=False)
    assert text.push(2, last=False) == ""
    assert text.push(6, last=True, hidden=True) == "ab"
    assert text.stopped_by is None
