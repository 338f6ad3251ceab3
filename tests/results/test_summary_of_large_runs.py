"""A large run is worked out by several processes, and gives the very same summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from results import summary
from results.files import to_json
from results.summary import build_summary
from tests.results.builders import synthetic_run


def test_several_processes_give_the_summary_that_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = synthetic_run(tmp_path, batches=(1, 2))
    (sorted((store.path / "cells").iterdir())[0] / "chunks.parquet").write_bytes(b"damaged")
    alone = build_summary(store)
    monkeypatch.setattr(summary, "_LARGE_BYTES", 0)
    together = build_summary(store, processes=2)
    assert to_json(together) == to_json(alone)
    assert [c["verdict"] for c in together["cells"]].count("INVALID") == 1
