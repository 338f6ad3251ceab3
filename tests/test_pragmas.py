"""What a linter or the type checker is told to overlook says why, beside it."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("harness", "backends", "workloads", "results", "reports", "benchmarks", "tests")
PRAGMA = re.compile(r"#\s*(noqa(:\s*[A-Z]+[0-9]+(,\s*[A-Z]+[0-9]+)*)?|type:\s*ignore(\[[a-z, -]+\])?|fmt:\s*skip)")


def overlooked(path: Path) -> Iterator[tuple[int, str]]:
    """(line, comment) of each pragma of a file."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and re.search(r"#\s*(noqa|type:\s*ignore)", token.string):
                yield token.start[0], token.string


def has_reason(comment: str) -> bool:
    """Whether a word is left beside the pragmas themselves."""
    return bool(re.search(r"\w", PRAGMA.sub("", comment)))


@pytest.mark.parametrize("folder", FOLDERS)
def test_whatever_is_overlooked_has_its_reason_on_the_line(folder: str) -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{line}: {comment}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "noqa" in (text := path.read_text(encoding="utf-8")) or "type:" in text
        for line, comment in overlooked(path)
        if not has_reason(comment)
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ("# noqa: E731", False),
        ("# noqa: E731, B006 - never changed", True),
        ("# noqa", False),
        ("# type: ignore[arg-type, misc]", False),
        ("# type: ignore[arg-type]  # fmt: skip", False),
        ("# type: ignore[arg-type]  # passed on  # fmt: skip", True),
    ],
)
def test_codes_alone_are_no_reason(comment: str, told: bool) -> None:
    assert has_reason(comment) == told
