"""A cell's warm-up: within the cap, over before the load, in none of its figures, and told apart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.cell_run import nothing_sent
from harness.load.process import LoadResult
from harness.loads import ConcurrencyLoad
from harness.warm_up import WarmUp
from results.events import write_table
from results.files import read_json
from results.schema import REQUESTS
from tests.harness.fake_sessions import Runs, attached, grid
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import Received
from tests.servers.openai_fake_tokens import TokenSchedule

CAP, REQUESTS_SENT, SLOW_S = 4, 20, 1.0
# A cold server: as many answers as the session's first token and the warm-up ask for.
COLD = 1 + CAP


@dataclass
class ColdAtFirst(TokenSchedule):
    """The first answers begin `SLOW_S` late. `slow`: the ids of their requests; `most`: answers under way at once."""

    slow: list[str] = field(default_factory=list)
    most: int = 0

    async def generate(self, request: Received, transport: asyncio.Transport) -> None:
        self.most = max(self.most, self.running + 1)
        if len(self.slow) < COLD:
            self.slow.append(request.id)
            await self._until(request.at / 1e9 + SLOW_S)
        await super().generate(request, transport)


def test_the_slow_first_answers_are_in_the_warm_up_s_line_and_in_no_figure_of_the_cell(tmp_path: Path) -> None:
    schedule = ColdAtFirst(interval_s=0.002, model="fake")
    with FakeServer(schedule) as server:
        load = ConcurrencyLoad.of(CAP).model_copy(update={"requests": REQUESTS_SENT})
        outcome = Runs(tmp_path).run(grid(attached(server.url)).model_copy(update={"loads": (load,)}))
    (cell,) = outcome.summary["cells"]
    folder = tmp_path / "run" / "cells" / cell["id"]
    record = read_json(folder / "cell.json")
    warm = record["client"]["warm_up"]
    assert (warm["requests"], warm["ok"], warm["ended_before_load"]) == (CAP, CAP, True)
    assert warm["e2e_ms_p50"] >= SLOW_S * 1000 / 2  # the server counts from the receipt, which is not the send
    assert record["client"]["warm_up_why"] is None
    assert cell["client"]["warm_up"] == warm

    assert len(schedule.slow) == COLD
    warm_ids = set(schedule.slow[1:])
    assert all("-warm-up-" in one for one in warm_ids)
    sent = set(pq.read_table(folder / "requests.parquet")["request_id"].to_pylist())
    assert len(sent) == cell["requests"]["ok"] == cell["requests"]["issued"] == REQUESTS_SENT
    assert set(pq.read_table(folder / "chunks.parquet")["request_id"].to_pylist()) == sent
    assert not sent & set(schedule.slow)
    assert cell["whole"]["ttft_ms"]["n"] == REQUESTS_SENT
    last_warm = max(schedule.stamps[one][-1] for one in warm_ids)
    assert last_warm < record["started"] <= min(schedule.stamps[one][0] for one in sent)
    assert schedule.most <= CAP


def test_of_a_warm_up_without_an_answer_in_full_no_time_is_told(tmp_path: Path) -> None:
    rows = [
        {"request_id": "a", "outcome": "http_error", "sent": 1, "end": 9_000_000},
        {"request_id": "b", "outcome": "timeout", "sent": 2, "first_token": 3, "last_token": 4, "end": 5},
    ]
    write_table(
        tmp_path / "requests.parquet", REQUESTS, {name: [row.get(name) for row in rows] for name in REQUESTS.names}
    )
    warmed = LoadResult(started=0, ended=10, stopped=False, issued=2, outcomes={"http_error": 1, "timeout": 1})
    told = WarmUp.of(warmed, tmp_path, ["server_died"]).client_facts(nothing_sent(tmp_path))
    assert told == {
        "warm_up": {"requests": 2, "ok": 0, "e2e_ms_p50": None, "ended_before_load": None},
        "warm_up_why": None,
    }


@pytest.mark.parametrize(("codes", "why"), [(["load_failed"] * 2, "load_failed"), ([], "no request was sent")])
def test_a_warm_up_of_which_nothing_is_known_says_why(tmp_path: Path, codes: list[str], why: str) -> None:
    nothing = nothing_sent(tmp_path)
    told = WarmUp.of(nothing, tmp_path, codes).client_facts(nothing)
    assert told == {"warm_up": None, "warm_up_why": f"nothing was recorded of it ({why})"}


@pytest.mark.parametrize(("started", "before"), [(10, True), (9, False)])
def test_a_load_that_began_before_the_warm_up_s_end_would_be_told(started: int, before: bool) -> None:
    load = LoadResult(started=started, ended=99, stopped=False, issued=1, outcomes={"ok": 1})
    told = WarmUp(requests=4, ok=4, e2e_ms_p50=5.0, ended=10).client_facts(load)
    assert told["warm_up"]["ended_before_load"] is before
