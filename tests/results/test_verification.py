"""verify.json of a run: kept whole, and told whether it is about the engines that were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from results.errors import StoreError
from results.verification import covers, measured_fingerprints, read_verification, unlike, write_verification


def document(**fingerprints: Any) -> dict[str, Any]:
    return {"schema": 1, "engines": [{"label": k, "fingerprint": v} for k, v in fingerprints.items()]}


def test_what_was_written_is_read_and_nothing_where_nothing_is(tmp_path: Path) -> None:
    assert read_verification(tmp_path) is None
    write_verification(tmp_path, document(a={"x": 1}))
    assert read_verification(tmp_path) == document(a={"x": 1})


@pytest.mark.parametrize("text", ["", "7", "{}", '{"schema": 2}'])
def test_what_is_no_answer_of_ours_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "verify.json").write_text(text)
    with pytest.raises(StoreError, match=r"verify\.json"):
        read_verification(tmp_path)


@pytest.mark.parametrize(
    ("kept", "measured", "covered"),
    [
        (None, {"a": 1}, False),
        (document(a=1, b=2), {"a": 1, "b": 2}, True),
        (document(a=1, b=2, c=3), {"a": 1, "b": 2}, True),
        (document(a=1, b=9), {"a": 1, "b": 2}, False),
        (document(a=1), {"a": 1, "b": 2}, False),
        (document(a=1), {"a": 1, "b": None}, False),
    ],
)
def test_an_answer_covers_the_engines_it_met_as_they_were_measured(kept: Any, measured: Any, covered: bool) -> None:
    assert covers(kept, measured) is covered


def test_only_sessions_that_own_a_cell_say_what_was_measured() -> None:
    sessions = [
        {"id": "1", "engine": "a", "fingerprint": {"v": 1}},
        {"id": "2", "engine": "a", "fingerprint": {"v": 2}},
        {"id": "3", "engine": "b", "fingerprint": None},
    ]
    assert measured_fingerprints(sessions, ["1", "3"]) == {"a": {"v": 1}}


def test_the_difference_of_two_fingerprints_is_named_to_the_setting() -> None:
    before = {"backend": "x", "settings": {"block_size": 16, "dtype": "bf16"}}
    now = {"backend": "y", "settings": {"block_size": 32, "dtype": "bf16"}}
    assert unlike(before, now) == ["backend x, then y", "block_size 16, then 32"]
    assert unlike(None, now) == []
