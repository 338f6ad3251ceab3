"""A server that fails while a cell runs ends that cell, not the run: what was measured stays, the next cell gets a fresh one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness import health
from harness.load.process import Progress
from harness.loads import RateLoad
from harness.observer import CellProgress, Observer
from harness.session import Session
from tests.harness.fake_sessions import Runs, attached, fake_engine, grid
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import Gate, Received, Step, Wait, json_answer
from tests.servers.openai_fake_tokens import TokenSchedule
from tests.waiting import LONG_S

LOOK_S = 0.25
# Of the watch's own time, which costs nothing; it is also how long an answer may really take that a busy machine holds up.
WELL_WITHIN_S = 10
STUCK = Progress(issued=4, done=2, ok=2, failed=0, in_flight=2, tokens=8, elapsed_s=1.0)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(health, "POLL_S", 0.1)
    monkeypatch.setattr(health, "_LAST_WORDS_S", 0.3)
    return Runs(tmp_path)


class Clock:
    """The watch's time: it passes from look to look only, however slow the machine is."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        time.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(health, "time", made)
    return made


class Patient:
    """A session whose server changes its mood on request."""

    def __init__(self, session: Session, clock: Clock) -> None:
        self.session, self.clock = session, clock

    def ends(self, progress: Callable[[int], Progress] = lambda _: STUCK, looks: int = 10_000) -> bool:
        """Whether the load is ended within so many looks; what one of them asked of the server is answered before the next."""
        for number in range(looks):
            if not self.session.healthy(progress(number)):
                return True
            for thread in threading.enumerate():
                if thread.name in ("health", "first-token"):
                    thread.join(LONG_S)
            time.sleep(0.01)
            self.clock.now += LOOK_S
        return False

    def faults(self, *broken: str) -> dict[str, str]:
        return {fault.code: fault.evidence for fault in self.session.faults(broken)}


@contextmanager
def patient(runs: Runs, clock: Clock, *faults: str, mood: str = "", unhealthy_s: float = 0.8) -> Iterator[Patient]:
    file = runs.folder / "mood"
    with runs.session(grid(fake_engine("--mood", str(file), *faults), unhealthy_s=unhealthy_s)) as session:
        file.write_text(mood)
        yield Patient(session, clock)


class TestAServerOfOurs:
    def test_that_says_503_for_ever_has_failed(self, runs: Runs, clock: Clock) -> None:
        with patient(runs, clock, mood="unhealthy", unhealthy_s=WELL_WITHIN_S) as server:
            assert server.ends()
            assert "for 10 s no request was answered and /health answered HTTP 503" in server.faults()["server_failed"]
            assert not server.session.healthy(), "the next cell gets another server"

    def test_that_answers_nothing_any_more_has_failed(self, runs: Runs, clock: Clock) -> None:
        with patient(runs, clock, mood="hung") as server:
            assert server.ends()
            assert "no request was answered and /health gave no answer" in server.faults()["server_failed"]
        (record,) = (json.loads(path.read_text()) for path in runs.folder.glob("run/sessions/*/session.json"))
        assert record["failure"]["class"] == "stalled"
        assert record["exit_code"] is not None

    def test_whose_requests_all_fail_is_asked_for_a_token_though_its_page_is_green(
        self, runs: Runs, clock: Clock
    ) -> None:
        with patient(runs, clock, mood="deaf", unhealthy_s=3) as server:
            # A request fails now and then, as they do when they time out one after the other, and none is answered.
            assert server.ends(lambda n: Progress(9, 2 + n // 20, 2, n // 20, 2, 8, 1.0))
            assert "/health answered HTTP 200, but it does not generate" in server.faults()["server_failed"]

    def test_that_times_out_is_asked_again_after_the_load(self, runs: Runs, clock: Clock) -> None:
        with patient(runs, clock, mood="deaf") as server:
            assert server.session.healthy(STUCK)
            assert "after requests that timed out it does not generate" in server.faults("timeout")["server_failed"]

    def test_that_was_only_slow_goes_on(self, runs: Runs, clock: Clock) -> None:
        with patient(runs, clock, unhealthy_s=LONG_S) as server:
            assert server.faults("timeout") == {}
            assert server.session.healthy()

    def test_whose_answers_come_is_well_whatever_its_health_page_says(self, runs: Runs, clock: Clock) -> None:
        with patient(runs, clock, mood="unhealthy") as server:
            assert not server.ends(lambda n: Progress(9, n, n, 0, 2, 4 * n, 1.0), looks=8)

    def test_that_is_silent_and_healthy_is_computing(self, runs: Runs, clock: Clock) -> None:
        with patient(runs, clock, unhealthy_s=WELL_WITHIN_S) as server:
            assert not server.ends(looks=round(2 * WELL_WITHIN_S / LOOK_S))

    def test_that_nobody_looked_at_for_a_while_is_not_blamed_for_it(
        self, runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(health, "_PAUSE_S", 0.2)
        with patient(runs, clock, unhealthy_s=0.4) as server:
            assert server.session.healthy(STUCK)
            clock.now += 0.6
            assert server.session.healthy(STUCK)

    def test_that_lost_a_worker_to_memory_has_failed_though_it_answers(self, runs: Runs, clock: Clock) -> None:
        message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
        with patient(runs, clock, "--lose-worker", "0", "--message", message, mood="lose") as server:
            assert server.ends()
            found = server.faults()
            assert f"its log says that it cannot go on: '{message}'" in found["server_failed"]
            assert found["out_of_memory"] == message


class TestAServerThatIsNotOurs:
    @pytest.mark.parametrize(("hangs", "said"), [(True, "gave no answer"), (False, "answered HTTP 503")])
    def test_that_fails_in_a_cell_is_told_and_left_alone(
        self, runs: Runs, clock: Clock, hangs: bool, said: str
    ) -> None:
        gate, spoiled = Gate(), False

        def answer(request: Received) -> list[Step]:
            if spoiled:
                return [Wait(gate)] if hangs else json_answer({"error": {"message": "dead"}}, 503)
            if request.path.endswith("/completions"):
                return json_answer({"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}})
            return json_answer({"object": "list", "data": [{"id": "fake"}]})

        with FakeServer(answer) as server:
            with runs.session(grid(attached(server.url), unhealthy_s=0.8 if hangs else WELL_WITHIN_S)) as session:
                spoiled = True
                patient = Patient(session, clock)
                assert patient.ends()
                assert f"no request was answered and /v1/models {said}" in patient.faults()["server_failed"]
            gate.open()

    def test_that_refuses_connections_ends_its_cell_at_once(self, runs: Runs, clock: Clock) -> None:
        answer = json_answer({"data": [{"id": "fake"}], "choices": [{"text": "x"}]})
        with ExitStack() as stack:
            with FakeServer(answer) as server:
                session = stack.enter_context(runs.session(grid(attached(server.url), unhealthy_s=3600)))
            patient = Patient(session, clock)
            assert patient.ends()
            found = patient.faults()["server_died"]
            assert "nothing accepts connections at its address any more" in found
            assert "not started by this run" in found

    def test_whose_answers_come_is_well_though_a_look_is_refused(self, runs: Runs, clock: Clock) -> None:
        """A gateway that refuses the health page's connection serves those who are connected."""
        answer = json_answer({"data": [{"id": "fake"}], "choices": [{"text": "x"}]})
        with ExitStack() as stack:
            with FakeServer(answer) as server:
                session = stack.enter_context(runs.session(grid(attached(server.url), unhealthy_s=3600)))
            assert not Patient(session, clock).ends(lambda n: Progress(9, n, n, 0, 2, 4 * n, 1.0), looks=8)


class Spoiler(Observer):
    """Changes the server's mood once some requests of the first cell are answered, and back when another is started."""

    def __init__(self, file: Path, mood: str) -> None:
        self.file, self.mood, self.sessions = file, mood, 0

    def session_starting(self, engine: str, block: int, log: str) -> None:
        self.sessions += 1
        self.file.write_text("")

    def cell_progress(self, cell: object, progress: CellProgress) -> None:
        if self.sessions == 1 and progress.done >= 2:
            self.file.write_text(self.mood)


def test_the_cell_keeps_what_was_measured_and_the_run_goes_on_with_a_fresh_server(runs: Runs) -> None:
    file = runs.folder / "mood"
    engine = fake_engine("--mood", str(file), "--token-interval", "0.02")
    outcome = runs.run(grid(engine, inputs=(8, 16), waves=40), observer=Spoiler(file, "fatal"))
    spoiled, after = sorted(outcome.summary["cells"], key=lambda cell: cell["session"])
    assert (spoiled["verdict"], outcome.exit_code, outcome.failed_engines) == ("INVALID", 1, {})
    assert 2 <= spoiled["requests"]["ok"] < spoiled["requests"]["issued"]
    found = {reason["code"]: reason["evidence"] for reason in spoiled["reasons"]}
    assert "its log says that it cannot go on: 'ERROR EngineCore encountered a fatal error.'" in found["server_failed"]
    assert "CUDA out of memory" in found["out_of_memory"]
    assert after["verdict"] != "INVALID"
    assert after["session"] != spoiled["session"]


def test_a_server_that_is_not_ours_and_starts_refusing_keeps_what_it_gave_and_leaves_the_rest_for_later(
    runs: Runs,
) -> None:
    class Leaver(Observer):
        """Takes the server away once some requests of the first cell are answered."""

        def cell_progress(self, cell: object, progress: CellProgress) -> None:
            if progress.done >= 2:
                leaving.close()

    with ExitStack() as leaving:
        server = leaving.enter_context(FakeServer(TokenSchedule(interval_s=0.01, model="fake")))
        # For two minutes, if nobody saw that the server is gone.
        load = RateLoad(rate=20, duration_s=120)
        asked = grid(attached(server.url), inputs=(8, 16), connect_s=3).model_copy(update={"loads": (load,)})
        outcome = runs.run(asked, observer=Leaver())
    (cell,) = outcome.summary["cells"]
    assert (cell["verdict"], outcome.exit_code) == ("INVALID", 4)
    assert 2 <= cell["requests"]["ok"] < cell["requests"]["issued"] < 20 * 120
    found = {reason["code"]: reason["evidence"] for reason in cell["reasons"]}
    assert "nothing accepts connections" in found["server_died"]
    assert "Nothing answers" in str(outcome.failed_engines["there"])


def test_a_server_that_is_not_ours_is_not_restarted_its_other_cells_are_left_for_later(runs: Runs) -> None:
    gate = Gate()
    schedule = TokenSchedule(interval_s=0.01, model="fake")
    plain, served = schedule.page, iter(range(12))

    def page(request: Received) -> list[Step] | None:
        spoiled = request.path.endswith("/completions") and next(served, None) is None
        # From some request on it says that it is dead, and answers nothing that was asked of its engine.
        if spoiled:
            schedule.page = lambda _: [Wait(gate)]  # type: ignore[method-assign]  # the fake answers otherwise from here on
            return [Wait(gate)]
        return plain(request)

    schedule.page = page  # type: ignore[method-assign]  # the fake answers by this test's script
    with FakeServer(schedule) as server:
        outcome = runs.run(grid(attached(server.url), inputs=(8, 16), waves=40, unhealthy_s=3, connect_s=3))
        gate.open()
    (cell,) = outcome.summary["cells"]
    assert cell["verdict"] == "INVALID"
    assert cell["requests"]["ok"] >= 2
    assert "server_failed" in {reason["code"] for reason in cell["reasons"]}
    assert outcome.failed_engines.keys() == {"there"}
    assert outcome.exit_code == 4
