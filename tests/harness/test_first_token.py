"""Ready means one generated token: a health page that is green too early, or for ever, is not believed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backends.failures import StartupError
from harness.observer import Observer
from results.errors import EngineError
from tests.harness.fake_sessions import Runs, attached, fake_engine, grid
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import Received, Step, json_answer
from tests.servers.openai_fake_tokens import TokenSchedule

SECOND = 1_000_000_000


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


class Ready(Observer):
    seconds: float | None = None

    def session_ready(self, engine: str, elapsed_s: float) -> None:
        self.seconds = elapsed_s


def refused(runs: Runs, *faults: str, **limits: float) -> StartupError:
    with pytest.raises(StartupError) as caught, runs.session(grid(fake_engine(*faults), **limits)):
        pass
    return caught.value


def test_a_server_that_is_healthy_before_it_can_generate_is_waited_for(runs: Runs) -> None:
    observer = Ready()
    with runs.session(grid(fake_engine("--generates-after", "3")), observer) as session:
        timeline = session.record.timeline
    assert list(timeline)[:4] == ["spawn", "listening", "ready", "first_token"]
    assert [timeline[event] for event in list(timeline)[:4]] == sorted(list(timeline.values())[:4])
    assert runs.log().count("request of") == 4
    assert observer.seconds is not None
    assert observer.seconds == (timeline["first_token"] - timeline["spawn"]) / SECOND


def test_one_token_is_asked_with_a_prompt_shorter_than_any_cache_block(runs: Runs) -> None:
    with runs.session(grid(fake_engine())):
        pass
    assert re.findall("request of .*", runs.log()) == ["request of 5 for 1"]


def test_a_healthy_server_that_cannot_generate_is_a_failure_with_the_cause_it_named(runs: Runs) -> None:
    error = refused(runs, "--refuse", "500", "--message", "CUDA out of memory. Tried to allocate 2 GiB")
    assert error.failure.failure == "out_of_memory_device"
    assert "its health page was green, but it cannot generate: HTTP 500: CUDA out of memory" in str(error)
    assert "before it gave its first token" in str(error)
    (record,) = runs.folder.glob("run/sessions/*/session.json")
    assert '"stage":"first_token"' in record.read_text().replace(" ", "")


def test_a_healthy_server_that_never_answers_is_ended_as_stalled(runs: Runs) -> None:
    error = refused(runs, "--deaf", stall_s=3)
    assert error.failure.failure == "stalled"
    assert "the last line is 'request of 5 for 1'" in str(error)


def test_a_server_that_never_stops_saying_not_yet_ends_at_the_limit(runs: Runs) -> None:
    error = refused(runs, "--generates-after", "1000000", ready_s=8, first_token_s=1)
    assert "it gave no token within" in str(error)
    assert error.failure.failure == "timeout"


def test_a_server_that_dies_of_its_first_request_is_told_by_its_end(runs: Runs) -> None:
    error = refused(runs, "--refuse", "500", "--die-after-bind", "-11")
    assert (error.failure.failure, error.server_exit) == ("crash", -11)


def test_an_answer_of_another_model_is_no_answer(runs: Runs) -> None:
    error = refused(runs, "--model", "another")
    assert "the model 'another' answered where 'fake' was asked" in str(error)


class TestAServerThatIsThereAlready:
    def test_is_asked_for_a_token_too(self, runs: Runs) -> None:
        with FakeServer(TokenSchedule(model="fake")) as server, runs.session(grid(attached(server.url))) as session:
            assert session.record.timeline["first_token"] >= session.record.timeline["ready"]
            (asked,) = [r.json for r in server.requests if r.path.endswith("/completions")]
        assert (len(asked["prompt"]), asked["max_tokens"]) == (5, 1)

    def test_and_is_given_time_while_it_loads(self, runs: Runs) -> None:
        schedule, refusals = TokenSchedule(model="fake"), iter(range(3))

        def page(request: Received) -> list[Step] | None:
            if request.path.endswith("/completions") and next(refusals, None) is not None:
                return json_answer({"error": {"message": "Loading model"}}, 503)
            return plain(request)

        plain, schedule.page = schedule.page, page  # type: ignore[method-assign]  # the fake answers by this test's script
        with FakeServer(schedule) as server, runs.session(grid(attached(server.url))):
            assert len([r for r in server.requests if r.path.endswith("/completions")]) == 4

    @pytest.mark.parametrize(
        ("status", "said"),
        [
            (500, "gave no token when asked for one: HTTP 500: no luck"),
            (401, "Set .*DYNO_API_KEY"),
            (503, "cannot generate for 3 s"),
        ],
    )
    def test_and_one_that_cannot_generate_is_refused_in_words(self, runs: Runs, status: int, said: str) -> None:
        def answer(request: Received) -> list[Step]:
            if request.path.endswith("/completions"):
                return json_answer({"error": {"message": "no luck"}}, status)
            return json_answer({"object": "list", "data": [{"id": "fake"}]})

        with FakeServer(answer) as server:
            experiment = grid(attached(server.url), connect_s=3)
            with pytest.raises(EngineError, match=said), runs.session(experiment):
                pass
