"""Open loops, several workers and an interrupt, through the command, on a fake of known schedule."""

from __future__ import annotations

import json
import os
import signal

import pyarrow.parquet as pq
import pytest

from results.store import RunStore
from tests.end_to_end.conftest import Run, finish
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_tokens import TokenSchedule
from tests.waiting import wait_until

SENT = ("--input-len", "16", "--output-len", "8", "--tokenizer", "llama-7b", "--workers", "2")


def words(run: Run, url: str, *load: str) -> tuple[str, ...]:
    return ("sweep", "--url", url, "--out", str(run.folder), *SENT, *load)


def test_a_rate_shared_by_two_workers_is_the_rate_that_was_asked_for(run: Run) -> None:
    with FakeServer(TokenSchedule(ttft_s=0.01, interval_s=0.004, model="fake")) as server:
        load = ("--rate", "40", "--arrivals", "constant", "--requests", "60", "--max-in-flight", "60")
        code, _, err = finish(run.start(*words(run, server.url, *load)))
    assert code == 0, err
    (cell,) = run.summary()["cells"]
    assert (cell["load"]["mode"], cell["load"]["value"]) == ("rate", 40.0)
    assert cell["requests"] == {"issued": 60, "ok": 60, "by_outcome": {"ok": 60}}
    arrivals = cell["client"]["arrivals"]
    assert arrivals["intended_per_s"] == pytest.approx(40)
    assert arrivals["intended_gap_cv"] == pytest.approx(0, abs=1e-6)
    assert arrivals["held"] == 0
    assert arrivals["achieved_per_s"] > 0
    whole = cell["whole"]
    assert whole["scheduled_ttft_ms"]["min"] >= whole["ttft_ms"]["min"] >= 10
    assert cell["verdict"] != "INVALID"
    rows = pq.read_table(run.folder / "cells" / cell["id"] / "requests.parquet").to_pylist()
    assert {row["worker"] for row in rows} == {0, 1}


def answers_read(server: FakeServer) -> int:
    """How many answers of the load (not of its warm-up) its client has surely read: another request came on their connection."""
    connections = [request.connection for request in list(server.requests) if "-load-" in request.id]
    return len(connections) - len(set(connections))


def test_ctrl_c_in_an_open_loop_of_two_workers_keeps_what_was_measured_and_marks_it(run: Run) -> None:
    with FakeServer(TokenSchedule(interval_s=0.002, model="fake")) as server:
        child = run.start(*words(run, server.url, "--rate", "50", "--duration", "60"))
        wait_until(lambda: answers_read(server) > 20, "a cell under way")
        os.killpg(child.pid, signal.SIGINT)
        code, _, err = finish(child)
    assert code == 130, err
    assert "Traceback" not in err
    assert run.summary()["cells"] == []
    (aside,) = run.folder.glob("aside/*-interrupted-1")
    record = json.loads((aside / "cell.json").read_text())
    rows = pq.read_table(aside / "requests.parquet").to_pylist()
    answered = sum(row["outcome"] == "ok" for row in rows)
    assert answered > 0
    assert [fault["code"] for fault in record["faults"]] == ["interrupted"]
    warm = record["client"]["warm_up"]
    assert warm["requests"] == warm["ok"] > 0
    assert f"{len(rows)} requests were sent, {answered} of them" in record["faults"][0]["evidence"]
    assert sorted(p.name for p in aside.iterdir()) == [
        "cell.json", "chunks.parquet", "requests.parquet", "samples.parquet",
    ]  # fmt: skip
    assert not run.processes()
    assert not RunStore.open(run.folder).has_cell(record["id"])
