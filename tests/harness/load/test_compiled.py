"""The client's compiled parts where they are not there, cannot be loaded, or are not to be used: Python reads, and it is told."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

import harness.load
from harness.load import compiled as parts
from harness.load.compiled import PARTS, SWITCH, compiled
from harness.load.poller import Poller
from harness.load.reader import reader_for, reader_name
from tests.harness.load.conftest import needs_compiled


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No switch, nothing loaded, and nothing told of it."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(parts, "not_loaded", {})
    for part in PARTS:
        monkeypatch.delitem(sys.modules, f"harness.load._{part}", raising=False)


def reader_used() -> str:
    """The reader that a client gets, which is also the one that is told beforehand."""
    poller = Poller()
    name = reader_for(poller, print, 0).name
    poller.close()
    assert name == reader_name()
    return name


@needs_compiled
def test_the_compiled_parts_are_used_where_they_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(compiled(part) for part in PARTS)
    assert reader_used() == "compiled"
    monkeypatch.setenv(SWITCH, "python")
    assert not any(compiled(part) for part in PARTS)
    assert reader_used() == "python"


def test_without_the_compiled_part_python_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(harness.load, "__path__", [str(tmp_path)])
    assert not any(compiled(part) for part in PARTS)
    assert reader_used() == "python"
    assert parts.not_loaded == {}


def test_a_part_that_is_there_and_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / f"_reader{EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(harness.load, "__path__", [str(tmp_path)])
    assert reader_used() == "python"
    assert compiled("reader") is None
    assert list(parts.not_loaded) == ["reader"]
    assert str(broken) in parts.not_loaded["reader"]


def test_a_part_that_was_compiled_from_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "harness.load._reader", ModuleType("_reader"))
    assert reader_used() == "python"
    assert "other sources" in parts.not_loaded["reader"]
