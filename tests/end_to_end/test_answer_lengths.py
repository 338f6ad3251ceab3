"""Answers of another length than asked for: a server that refuses to ignore the end of the sequence, and one that says nothing."""

from __future__ import annotations

import json

from tests.end_to_end.conftest import Run, finish
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_defects import IgnoresIgnoreEos
from tests.servers.openai_fake_steps import Received, Step, json_answer
from tests.servers.openai_fake_tokens import TokenSchedule

COMMON = ("--tokenizer", "llama-7b", "--concurrency", "2", "--requests", "24")
REFUSAL = "Unrecognized request argument supplied: ignore_eos"


class Strict(TokenSchedule):
    """Refuses a field that it does not know; answers end by themselves."""

    def page(self, request: Received) -> list[Step] | None:
        if isinstance(request.json, dict) and "ignore_eos" in request.json:
            return json_answer({"error": {"message": REFUSAL, "type": "invalid_request_error"}}, 400)
        return super().page(request)


def test_a_server_that_refuses_ignore_eos_is_told_as_that_and_can_be_measured_with_natural_ends(run: Run) -> None:
    with FakeServer(Strict(interval_s=0.001, natural=7, model="fake")) as server:
        words = ("sweep", "--url", server.url, "--out", str(run.folder), *COMMON)
        code, _, err = finish(run.start(*words, "--input-len", "16", "--output-len", "32"))
        assert code == 4
        assert REFUSAL in err
        assert "natural_eos=true" in err
        sent = [request for request in server.requests if request.method == "POST"]
        assert len(sent) == 1, "one request finds it, no load is sent"
        assert run.summary()["cells"] == []
        other = str(run.folder) + "-natural"
        workload = ("--workload", "random:input_len=16,output_len=32,natural_eos=true")
        code, _, err = finish(run.start("sweep", "--url", server.url, "--out", other, *COMMON, *workload))
        assert code == 0, err
    (cell,) = json.loads((run.folder.parent / (run.folder.name + "-natural") / "summary.json").read_text())["cells"]
    assert cell["requests"]["by_outcome"] == {"ok": 24}
    assert cell["whole"]["output_tokens"] == 24 * 7
    assert cell["workload"]["natural_eos"] is True


def test_an_engine_that_writes_less_than_asked_is_never_the_faster_one(run: Run) -> None:
    short = IgnoresIgnoreEos()
    short.natural, short.interval_s, short.model = 16, 0.001, "fake"
    with FakeServer(TokenSchedule(interval_s=0.001, model="fake")) as full, FakeServer(short) as early:
        engines = (f"label=a,backend=openai,url={full.url}", f"label=b,backend=openai,url={early.url}")
        named = [word for engine in engines for word in ("--engine", engine)]
        asked = ("--model", "fake", "--input-len", "16", "--output-len", "128", "--exact-lengths")
        code, _, err = finish(run.start("sweep", *named, "--out", str(run.folder), *COMMON, *asked))
    assert code == 1, err
    cells = {cell["engine"]: cell for cell in run.summary()["cells"]}
    assert cells["a"]["verdict"] != "INVALID"
    assert cells["b"]["verdict"] == "INVALID"
    # All but the two that were to be short anyhow: the first of each slot, shortened so that the loop does not lock in phase.
    assert cells["b"]["requests"]["by_outcome"]["short"] >= 22
    assert {reason["code"] for reason in cells["b"]["reasons"]} >= {"short_outputs"}
    code, out, err = finish(run.start("compare", str(run.folder)))
    assert code in (1, 2, 3)
    assert "faster" not in out
