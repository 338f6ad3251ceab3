"""Checks of what surrounds requests: metrics, settings, secrets, a client that leaves, the end of the server."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import asdict

import psutil

from backends.base import EngineSettings, LaunchContext, Source
from backends.container import inner_command
from backends.failures import LeftBehindError
from backends.ports import port_is_free
from backends.process import public_argv, public_environment
from backends.server_log import tail_lines
from harness.conformance.base import Bench, CheckFailedError, NotClaimedError, require
from results.errors import UsageError
from results.files import to_json
from results.truth import read_tokens, seal

_SETTLE_S = 15.0
# A value for each neutral setting, to ask for what an adapter says it cannot do.
_ANY_VALUE = {bool: True, int: 3, float: 0.5, str: "anything"}


def metrics(bench: Bench) -> str:
    """Counters under neutral names grow by what was sent; gauges tell what runs."""
    bench.claims("server_metrics")
    before = bench.metrics()
    if before is None:
        if bench.launched:
            raise CheckFailedError(f"capabilities.server_metrics is True, but there is no {bench.backend.metrics_path}")
        raise NotClaimedError(f"this server has no {bench.backend.metrics_path}")
    require(bool(before), f"{bench.backend.metrics_path} holds none of the names the adapter's rules know")
    answer = bench.complete(bench.prompt(11), 7)
    wanted = {"prompt_tokens_total": 11, "generation_tokens_total": answer.stream.output_tokens}
    if not bench.capabilities.token_id_prompts:
        wanted["prompt_tokens_total"] = answer.stream.input_tokens or 0
    told = {name: grown for name, grown in wanted.items() if name in before}
    require(bool(told), f"no token counter among {', '.join(sorted(before))}")
    last: dict[str, float] = {}

    def arrived() -> bool:
        last.update(bench.metrics() or {})
        return all(last.get(name, 0) - before[name] >= grown for name, grown in told.items())

    bench.wait_for(arrived, _SETTLE_S)
    for name, grown in told.items():
        moved = last.get(name, 0) - before[name]
        exact = moved == grown or (bench.others and moved > grown)
        require(exact, f"{name} moved by {moved:g} for {grown} tokens")
    moves = ", ".join(f"{name} +{grown}" for name, grown in told.items())
    return f"{moves}; also told: {', '.join(sorted(before.keys() - told.keys())) or 'nothing'}"


def running_gauge(bench: Bench) -> str:
    """While a request runs the server says so, and when it is over it says that too."""
    bench.claims("server_metrics")
    if "running" not in (bench.metrics() or {}):
        raise NotClaimedError("the server tells no number of running requests")
    tokens = _long(bench)
    done = threading.Event()
    problems: list[str] = []

    def run() -> None:
        try:
            bench.complete(bench.prompt(8), tokens)
        except CheckFailedError as error:
            problems.append(str(error))
        finally:
            done.set()

    thread = threading.Thread(target=run, name="check-running", daemon=True)
    thread.start()
    seen = 0.0
    while not done.is_set() and not seen:
        seen = (bench.metrics() or {}).get("running", 0)
        time.sleep(0.01)
    thread.join(bench.timeout_s)
    require(not problems, "; ".join(problems))
    require(seen >= 1, f"`running` stayed 0 while {tokens} tokens were generated")
    idle = bench.wait_for(lambda: bench.others or (bench.metrics() or {}).get("running") == 0, _SETTLE_S)
    require(idle, f"`running` is not 0 again {_SETTLE_S:g} s after the last request")
    return f"{seen:g} while a request ran, 0 after it"


def disconnect(bench: Bench) -> str:
    """A client that leaves frees its place: the server stops generating for nobody."""
    before = bench.metrics()
    if not before or "running" not in before:
        raise NotClaimedError("the server tells no number of running requests, so this cannot be seen")
    tokens = _long(bench)
    answer = bench.send(bench.body(bench.prompt(8), tokens), cut_after=2)
    require(answer.status == 200 and not answer.stream.error, f"the stream to be cut failed: {answer.trouble()}")
    left = time.monotonic()
    idle = bench.wait_for(lambda: (bench.metrics() or {}).get("running") == 0, _SETTLE_S)
    require(idle, f"{_SETTLE_S:g} s after the client left the request still runs")
    took = time.monotonic() - left
    after = bench.metrics() or {}
    made = after.get("generation_tokens_total", 0) - before.get("generation_tokens_total", 0)
    if "generation_tokens_total" in before and not bench.others:
        require(made < tokens, f"the client left after 2 events, yet all {tokens} tokens were generated")
    bench.complete(bench.prompt(4), 1)
    return f"idle {took:.2f} s after the client left, {made:g} of {tokens} tokens generated"


def _long(bench: Bench) -> int:
    """As many tokens as a server cannot make in an instant."""
    limit = bench.server.max_model_len or 1024
    return max(1, min(1500, limit - 16))


def settings(bench: Bench) -> str:
    """What the engine runs with is read back, says where from, and is what was asked."""
    found = bench.server.settings
    if not found and not bench.launched:
        raise NotClaimedError("this server tells nothing of how it is set")
    require(bool(found), "no setting is known")
    sources = {source: sorted(n for n, r in found.items() if r.source is source) for source in Source}
    read = sources[Source.ENDPOINT] + sources[Source.LOG]
    require(bool(read), "every setting is only asked or fixed: nothing is read from an endpoint or the log")
    for name, value in bench.server.engine.settings.asked().items():
        require(name in found, f"{name}={value!r} was asked and is not told")
        told = found[name].value
        require(_same(told, value), f"{name}={value!r} was asked, the engine runs with {told!r}")
    counts = ", ".join(f"{len(names)} {source}" for source, names in sources.items() if names)
    return f"{counts} ({', '.join(read[:6])}{', ...' if len(read) > 6 else ''})"


def _same(told: object, asked: object) -> bool:
    """Engines name a dtype in several ways (torch.bfloat16, bfloat16)."""
    return told == asked or str(told).lower().rpartition(".")[2] == str(asked).lower()


def unsupported_refused(bench: Bench) -> str:
    """A setting the adapter cannot pass on is refused when the launch is planned, never dropped in silence."""
    backend = bench.backend
    if not backend.capabilities.launches:
        raise NotClaimedError("the adapter launches nothing")
    cannot = sorted(set(EngineSettings.model_fields) - backend.settings - set(backend.fixed))
    for name in cannot:
        asked = EngineSettings(**{name: _value_of(name)})
        try:
            backend.launch_plan(_context(bench, asked))
        except UsageError:
            continue
        raise CheckFailedError(f"{name} is not among its settings, and launch_plan dropped it in silence")
    for name, only in backend.fixed.items():
        other = (not only) if isinstance(only, bool) else _value_of(name) if only != _value_of(name) else None
        if other is None:
            continue
        try:
            backend.launch_plan(_context(bench, EngineSettings(**{name: other})))
        except UsageError:
            continue
        raise CheckFailedError(f"{name} is always {only!r} there, and launch_plan took {other!r}")
    return f"{len(cannot)} settings it does not know and {len(backend.fixed)} fixed ones refused"


def _value_of(name: str) -> object:
    annotation = str(EngineSettings.model_fields[name].annotation)
    return next(value for kind, value in _ANY_VALUE.items() if kind.__name__ in annotation)


def _context(bench: Bench, asked: EngineSettings) -> LaunchContext:
    server = bench.server
    engine, container = server.engine, server.engine.container
    if container is None:
        command, image = bench.backend.command(engine.command), None
    else:
        command, image = inner_command(bench.backend, container, engine.command).command, container.image
    return LaunchContext(
        model=server.folder,
        served_name=server.served_name,
        settings=asked,
        session_dir=server.folder,
        host="127.0.0.1",
        port=1,
        command=command,
        image=image,
    )


def redaction(bench: Bench) -> str:
    """A key appears in nothing that is kept: command line, environment, settings, versions, log."""
    server = bench.server
    secret = bench.secret or os.environ.get(bench.backend.api_key_env() or "", "")
    if not secret:
        raise NotClaimedError("no key is in use")
    record = {"settings": {k: asdict(v) for k, v in server.settings.items()}, "versions": server.versions}
    places = {"what the server tells": to_json(record).decode(), "the server's log": _text(server.log)}
    if server.plan is not None:
        # A session's record is made from these two, so an adapter must not carry a key past them.
        places["the command line"] = " ".join(public_argv(server.plan.argv))
        places["the environment"] = str(public_environment({**server.plan.env, **server.engine.env}))
        places["the written files"] = "\n".join(server.plan.files.values())
    for place, text in places.items():
        require(secret not in text, f"the key stands in {place}")
    return f"looked for it in {', '.join(places)}"


def _text(path: os.PathLike[str]) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def truth_log(bench: Bench) -> str:
    """The engine's own log has each token of each request that was answered. Ends the server."""
    bench.claims("truth_log")
    if bench.server.process is None:
        raise NotClaimedError("attached: its truth log is not ours to read")
    if not bench.done:
        bench.complete(bench.prompt(8), 5)
    bench.server.process.stop()
    seal(bench.server.folder)
    tokens = read_tokens(bench.server.folder)
    if tokens is None:
        raise CheckFailedError("capabilities.truth_log is True, and no truth log was written")
    logged = Counter(tokens.request_id.tolist())
    wrong = [
        f"{name}: {n} tokens received, {logged[name]} logged" for name, n in bench.done.items() if logged[name] != n
    ]
    require(not wrong, f"{len(wrong)} of {len(bench.done)} requests differ ({'; '.join(wrong[:3])})")
    return f"{sum(bench.done.values())} tokens of {len(bench.done)} requests, each logged once"


def clean_stop(bench: Bench) -> str:
    """When it is stopped nothing of it is left: no process, no held port. Ends the server."""
    process = bench.server.process
    if process is None:
        raise NotClaimedError("attached: nothing to stop")
    pids = process.pids() if process.alive() else []
    began = time.monotonic()
    try:
        code = process.stop()
    except LeftBehindError as error:
        raise CheckFailedError(str(error)) from error
    took = time.monotonic() - began
    left = [pid for pid in pids if _runs(pid)]
    require(not left, f"processes {left} still run")
    port = process.port or 0
    require(port_is_free(process.host, port), f"port {port} is still held")
    if code not in (0, -15, 130, 143):
        last = " | ".join(tail_lines(_text(bench.server.log))[-3:])
        raise CheckFailedError(f"it ended with exit code {code} when it was asked to stop. {last}")
    return f"{len(pids)} process{'' if len(pids) == 1 else 'es'} gone and port {port} free in {took:.1f} s, exit code {code}"


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
