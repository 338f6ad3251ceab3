"""The conformance suite: what conforms passes, and every check fails for a server or adapter that breaks its promise."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from backends.base import Backend, Capabilities, EngineSettings, LaunchContext, LaunchPlan, Resolved, Source
from backends.openai import KEY_VARIABLE, OpenAIBackend
from backends.vllm_metrics import VLLM_METRICS
from harness.conformance import CHECKS, Bench, Outcome, Result, lifecycle, run_check, run_suite
from harness.conformance.suite import SECRET_VARIABLE, check_backend
from harness.experiment import EngineSpec, Timeouts
from harness.models import ModelRef, open_folder
from harness.open_server import open_server
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_defects import DEFECTS, Conforming
from tests.servers.openai_fake_tokens import TokenSchedule
from tests.waiting import LONG_S

ENGINE_FAKE = Path(__file__).resolve().parents[1] / "servers" / "engine_fake.py"
OF_ID = {check.id: check for check in CHECKS}
SECRET = "sk-planted-0123456789"


class Telling(OpenAIBackend):
    """Attaches to a server that tells everything."""

    capabilities: ClassVar[Capabilities] = Capabilities(launches=False, continuous_usage=True, return_token_ids=True)


@contextmanager
def attached(script: TokenSchedule, folder: Path, **more: Any) -> Iterator[Bench]:
    with FakeServer(script) as fake:
        engine = EngineSpec(label="fake", backend="openai", url=fake.url)
        with open_server(engine, None, "", folder, backend=Telling()) as server:
            yield Bench(server, timeout_s=LONG_S, **more)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that never come to rest: nothing is gained by waiting for them."""
    monkeypatch.setattr(lifecycle, "_SETTLE_S", 1.0)


def outcomes(results: list[Result]) -> dict[str, str]:
    return {result.check: str(result.outcome) for result in results}


def test_the_reference_engine_keeps_every_promise(tiny_dir: Path, tmp_path: Path) -> None:
    model = open_folder("tiny", tiny_dir)
    engine = EngineSpec(label="reference", backend="reference", settings=EngineSettings(threads=1, dtype="float32"))
    results = check_backend(engine, model, tmp_path)
    assert outcomes(results) == dict.fromkeys(OF_ID, "pass"), [r for r in results if r.outcome != "pass"]


@pytest.mark.parametrize("check", [c.id for c in CHECKS])
def test_each_check_stands_alone(check: str, tmp_path: Path) -> None:
    """Against a server that conforms, and without the checks before it."""
    with attached(Conforming(), tmp_path) as bench:
        result = run_check(OF_ID[check], bench)
    of_a_launch = {"unsupported_refused", "redaction", "truth_log", "clean_stop"}
    assert result.outcome == (Outcome.NOT_CLAIMED if check in of_a_launch else Outcome.PASS), result.evidence
    assert result.evidence


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("check", "defect"), DEFECTS, ids=[f"{c}-{d.__name__}" for c, d in DEFECTS])
def test_a_broken_server_fails_the_check_of_its_promise(
    check: str, defect: type[Conforming], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    with attached(defect(), tmp_path) as bench:
        result = run_check(OF_ID[check], bench)
    assert result.outcome is Outcome.FAIL, result.evidence
    assert SECRET not in result.evidence


def test_every_check_has_something_that_fails_it() -> None:
    covered = {check for check, _ in DEFECTS} | {check for check, _ in ADAPTERS}
    assert covered == set(OF_ID)


class Launched(Backend):
    """Launches the fake engine, and keeps its promises (but for what that fake cannot do)."""

    name: ClassVar[str] = "launched"
    words: ClassVar[str] = "a fake engine"
    capabilities: ClassVar[Capabilities] = Capabilities(ignore_eos=False, server_metrics=False)
    settings: ClassVar[frozenset[str]] = frozenset()
    fixed: ClassVar[Mapping[str, Any]] = {"prefix_caching": False}
    flags: ClassVar[tuple[str, ...]] = ()

    def default_command(self) -> tuple[str, ...]:
        return (sys.executable, str(ENGINE_FAKE))

    def settings_paths(self) -> tuple[str, ...]:
        return ("/v1/models",)

    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        self.refuse_unsupported(context.settings)
        argv = (*context.command, "--port", str(context.port), "--model", context.served_name, *self.flags)
        return LaunchPlan(argv, dict(context.env))

    def resolved_settings(self, asked: EngineSettings, documents: Mapping[str, Any], log: str) -> dict[str, Resolved]:
        return {"max_model_len": Resolved(documents["/v1/models"]["data"][0]["max_model_len"], Source.ENDPOINT)}


class OnlyAsked(Launched):
    def resolved_settings(self, asked: EngineSettings, documents: Mapping[str, Any], log: str) -> dict[str, Resolved]:
        return {"max_model_len": Resolved(2048, Source.ASKED)}


class OtherThanAsked(Launched):
    settings: ClassVar[frozenset[str]] = frozenset({"max_model_len"})


class DropsSettings(Launched):
    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        return super().launch_plan(
            LaunchContext(
                context.model, context.served_name, EngineSettings(), context.session_dir, context.host, context.port,
                context.command,
            )
        )  # fmt: skip


class TakesAnotherThanItsOnlyValue(Launched):
    fixed: ClassVar[Mapping[str, Any]] = {"prefix_caching": False}

    def refuse_unsupported(self, asked: EngineSettings) -> None:
        super().refuse_unsupported(asked.model_copy(update={"prefix_caching": None}))


class KeyInArgv(Launched):
    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        plan = super().launch_plan(context)
        return LaunchPlan((*plan.argv, "--message", context.env.get(SECRET_VARIABLE, "")), plan.env)


class KeyInLog(Launched):
    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        plan = super().launch_plan(context)
        shell = f'echo "key ${SECRET_VARIABLE}"; exec "$@"'
        return LaunchPlan(("sh", "-c", shell, "sh", *plan.argv), plan.env)


class WritesNoTruth(Launched):
    capabilities: ClassVar[Capabilities] = Capabilities(ignore_eos=False, server_metrics=False, truth_log=True)


class HasToBeKilled(Launched):
    flags: ClassVar[tuple[str, ...]] = ("--ignore-term",)


class HasNoMetrics(Launched):
    capabilities: ClassVar[Capabilities] = Capabilities(ignore_eos=False, server_metrics=True)
    metrics = VLLM_METRICS


ADAPTERS: list[tuple[str, type[Launched]]] = [
    ("settings", OnlyAsked),
    ("settings", OtherThanAsked),
    ("unsupported_refused", DropsSettings),
    ("unsupported_refused", TakesAnotherThanItsOnlyValue),
    ("redaction", KeyInArgv),
    ("redaction", KeyInLog),
    ("truth_log", WritesNoTruth),
    ("clean_stop", HasToBeKilled),
    ("metrics", HasNoMetrics),
]


@contextmanager
def launched(adapter: Launched, tmp_path: Path) -> Iterator[Bench]:
    settings = EngineSettings(max_model_len=512) if isinstance(adapter, OtherThanAsked) else EngineSettings()
    engine = EngineSpec(label="x", backend="launched", settings=settings, env={SECRET_VARIABLE: SECRET})
    model = ModelRef("fake", tmp_path, {})
    timeouts = engine_timeouts(adapter)
    with open_server(engine, model, "fake", tmp_path, timeouts, backend=adapter) as server:
        yield Bench(server, timeout_s=LONG_S, secret=SECRET)


def engine_timeouts(adapter: Launched) -> Timeouts:
    return Timeouts(ready_s=LONG_S, stop_s=1 if "--ignore-term" in adapter.flags else LONG_S)


@pytest.mark.parametrize("check", ["settings", "unsupported_refused", "redaction", "clean_stop"])
def test_an_adapter_that_keeps_a_promise_passes_its_check(check: str, tmp_path: Path) -> None:
    with launched(Launched(), tmp_path) as bench:
        result = run_check(OF_ID[check], bench)
    assert result.outcome is Outcome.PASS, result.evidence


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("check", "adapter"), ADAPTERS, ids=[f"{c}-{a.__name__}" for c, a in ADAPTERS])
def test_a_broken_adapter_fails_the_check_of_its_promise(check: str, adapter: type[Launched], tmp_path: Path) -> None:
    with launched(adapter(), tmp_path) as bench:
        result = run_check(OF_ID[check], bench)
    assert result.outcome is Outcome.FAIL, result.evidence
    assert SECRET not in result.evidence


class Dies(Launched):
    flags: ClassVar[tuple[str, ...]] = ("--die-after-tokens", "0", "--die-code", "3")


def test_a_server_that_dies_fails_the_check_it_died_in_and_the_rest_is_not_run(tmp_path: Path) -> None:
    with launched(Dies(), tmp_path) as bench:
        results = outcomes(run_suite(bench))
    assert results["ready"] == "fail"
    assert results["clean_stop"] == "fail"  # its exit code is its own
    assert {results[c] for c in OF_ID if c not in ("ready", "clean_stop", "truth_log")} == {"not run"}
