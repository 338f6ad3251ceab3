"""The table of checks, and the run through it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from backends.base import EngineSettings, get_backend
from harness.conformance import lifecycle, protocol
from harness.conformance.base import Bench, Check, CheckFailedError, NotClaimedError, Outcome, Result
from harness.experiment import EngineSpec, Timeouts
from harness.models import ModelRef, vocabulary
from harness.open_server import open_server
from results.errors import DynoError, EngineError

# In the order they run: cheap ones first, those that end the server last.
CHECKS: tuple[Check, ...] = (
    Check("ready", "ready means that it generates", protocol.ready),
    Check("served_name", "answers to the name it lists", protocol.served_name),
    Check("settings", "settings are read back with their source", lifecycle.settings),
    Check("unsupported_refused", "settings it cannot honour are refused", lifecycle.unsupported_refused),
    Check("prompt_ids", "token-id prompts are counted exactly", protocol.prompt_ids),
    Check("exact_length", "ignore_eos and max_tokens give the exact length", protocol.exact_length),
    Check("final_usage", "streams tell their usage", protocol.final_usage),
    Check("continuous_usage", "every event tells its count", protocol.continuous_usage),
    Check("token_ids", "generated ids are told", protocol.token_ids),
    Check("first_chunk", "the first event is the first token", protocol.first_chunk),
    Check("stream_end", "streams end with a reason and [DONE]", protocol.stream_end),
    Check("metrics", "metrics move under neutral names", lifecycle.metrics),
    Check("running_gauge", "metrics tell what runs", lifecycle.running_gauge),
    Check("two_at_once", "two requests are served together", protocol.two_at_once),
    Check("oversize", "a prompt too long is refused, the server lives", protocol.oversize),
    Check("disconnect", "a client that leaves frees its place", lifecycle.disconnect),
    Check("redaction", "keys are kept out of records", lifecycle.redaction),
    Check("clean_stop", "stopping leaves nothing behind", lifecycle.clean_stop),
    Check("truth_log", "the truth log names each token", lifecycle.truth_log),
)

# These end the server themselves.
_ENDS = frozenset({"clean_stop", "truth_log"})
_DEATH_S = 0.5
SECRET_VARIABLE = "DYNO_CHECK_API_KEY"
_SECRET = "sk-conformance-0123456789abcdef"
# Short enough that a prompt which is too long is quickly made, long enough for the checks' own.
MAX_MODEL_LEN = 2048


def run_check(check: Check, bench: Bench) -> Result:
    """One check; whatever a server does becomes an outcome, a defect of the check itself is raised."""
    began = time.monotonic()
    try:
        evidence, outcome = check.run(bench), Outcome.PASS
    except NotClaimedError as error:
        evidence, outcome = str(error), Outcome.NOT_CLAIMED
    except (CheckFailedError, DynoError) as error:
        evidence, outcome = str(error), Outcome.FAIL
    return Result(check.id, check.words, outcome, bench.hide(evidence), time.monotonic() - began)


def run_suite(
    bench: Bench, checks: Iterable[Check] = CHECKS, on_result: Callable[[Result], None] | None = None
) -> list[Result]:
    """All checks in order. Once our server has died by itself, the rest is not run (but its end is still checked)."""
    results: list[Result] = []
    dead: str | None = None
    for check in checks:
        if dead is not None and check.id not in _ENDS:
            result = Result(check.id, check.words, Outcome.NOT_RUN, dead, 0.0)
        else:
            result = run_check(check, bench)
        if dead is None and check.id not in _ENDS and (error := _death(bench, result)) is not None:
            dead = f"the server died during the check {check.id!r}"
            result = Result(check.id, check.words, Outcome.FAIL, bench.hide(str(error)), result.seconds)
        results.append(result)
        if on_result is not None:
            on_result(result)
    return results


def _death(bench: Bench, result: Result) -> EngineError | None:
    """How our server ended by itself, if it did. After a failure its end may be a moment away."""
    deadline = time.monotonic() + (_DEATH_S if result.outcome is Outcome.FAIL else 0.0)
    while bench.server.process is not None:
        try:
            bench.server.check_alive()
        except EngineError as error:
            return error
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return None


def check_backend(
    engine: EngineSpec,
    model: ModelRef | None,
    folder: Path,
    *,
    model_name: str = "",
    timeouts: Timeouts | None = None,
    timeout_s: float = 120.0,
    on_tick: Callable[[float], None] | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Launch the engine (or attach to its url) and run the suite. `folder` gets the server's log and files.

    `model_name` is the name to ask an attached server for ("" takes the one it serves). A launched one gets a made-up key
    in its environment, and a short max_model_len where the adapter can set it and it was not asked otherwise.

    Raises EngineError when there is no server to check, UsageError for what cannot be asked.
    """
    backend = get_backend(engine.backend)
    secret: str | None = None
    if engine.url is None and backend.capabilities.launches:
        secret = _SECRET
        engine = engine.model_copy(
            update={
                "env": {SECRET_VARIABLE: secret, **engine.env},
                "settings": _short(engine.settings, backend.settings, model),
            }
        )
    name = model_name if model is None else model.name
    with open_server(engine, model, name, folder, timeouts, on_tick) as server:
        words = vocabulary(model) if model is not None else None
        bench = Bench(server, timeout_s, words, secret, others=server.process is None)
        return run_suite(bench, on_result=on_result)


def _short(asked: EngineSettings, can: frozenset[str], model: ModelRef | None) -> EngineSettings:
    own = model.config.get("max_position_embeddings") if model is not None else None
    if asked.max_model_len is not None or "max_model_len" not in can:
        return asked
    return asked.model_copy(update={"max_model_len": min(MAX_MODEL_LEN, own or MAX_MODEL_LEN)})
