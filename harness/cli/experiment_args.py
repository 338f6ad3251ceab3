"""From flags (over an experiment file or a preset) to an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backends.base import get_backend, normalise_backend_name
from backends.http_probe import ServerURL
from harness.axes import expand
from harness.cli.amounts import share
from harness.cli.presets import preset_fields, scale_factor, scaled
from harness.cli.values import (
    engine_fields,
    positive_int,
    positive_ints,
    positive_number,
    positive_numbers,
    seconds,
)
from harness.cli.workload_args import trace_of, workload_of
from harness.experiment import (
    ENDPOINTS,
    EngineSpec,
    Experiment,
    Timeouts,
    describe_validation,
    experiment_from,
    load_experiment,
)
from harness.loads import ARRIVALS, BatchLoad, ConcurrencyLoad, Load, RampLoad, RateLoad, ScheduleLoad
from harness.telemetry.settings import TelemetrySource
from results.errors import UnknownNameError, UsageError
from workloads.lengths import FixedLength, UniformLength

DEFAULT_INPUT, DEFAULT_OUTPUT = "128", "64"


@dataclass(frozen=True, slots=True)
class SweepFlags:
    """The flags of `dyno sweep` as typed."""

    experiment: Path | None
    preset: str | None
    backends: list[str]
    engines: list[str]
    model: str | None
    batch: str | None
    concurrency: str | None
    input_len: str | None
    output_len: str | None
    exact_lengths: bool
    requests: str | None
    rate: str | None
    ramp: str | None
    arrivals: str | None
    burstiness: str | None
    max_in_flight: str | None
    duration: str | None
    max_tokens: str | None
    workers: str | None
    endpoint: str | None
    no_stream: bool
    blocks: str | None
    seed: int | None
    url: str | None
    tokenizer: str | None
    telemetry: str | None = None
    require_telemetry: bool = False
    until_ci: str | None = None
    budget: str | None = None
    slo: Sequence[str] = ()
    slo_share: str | None = None
    workload: Sequence[str] = ()
    trace: str | None = None
    trace_format: str | None = None
    speed_up: str | None = None
    scale: str | None = None
    num_workers: str | None = None


def build_experiment(flags: SweepFlags, engines: Sequence[dict[str, Any]] = ()) -> Experiment:
    """`engines` take the place of those that the flags name. Raises UsageError for anything that cannot be made sense of, naming
    the flag."""
    data, origin = _base(flags)
    if named := [*(engines or engine_mappings(flags.backends, flags.engines, flags.url))]:
        data["engines"] = named
    # A name that is misspelt is told before what is missing.
    for engine in data.get("engines") or []:
        _check_engine(engine)
    if flags.model is not None:
        data["model"] = flags.model
    if flags.tokenizer is not None:
        data["tokenizer"] = flags.tokenizer
    if flags.seed is not None:
        data["seed"] = flags.seed
    if flags.blocks is not None:
        data["blocks"] = positive_int("--blocks", flags.blocks)
    _workers(flags, data)
    if flags.endpoint is not None:
        if flags.endpoint not in ENDPOINTS:
            raise UnknownNameError("endpoint", flags.endpoint, list(ENDPOINTS))
        data["endpoint"] = flags.endpoint
    if flags.no_stream:
        data["stream"] = False
    _telemetry(flags, data)
    _stopping(flags, data)
    _loads(flags, data)
    _workloads(flags, data)
    if not data.get("engines"):
        raise UsageError(
            "No engine named. Give --backend reference (`dyno backends` lists them), --engine, or an experiment file."
        )
    if flags.scale is not None:
        data = scaled(data, scale_factor(flags.scale))
    if not data.get("model"):
        data["model"] = _served_model(data["engines"])
    return experiment_from(data, origin)


def _workers(flags: SweepFlags, data: dict[str, Any]) -> None:
    """--workers N, or --workers ray --num-workers N."""
    on_ray = flags.workers == "ray"
    if on_ray and flags.num_workers is None:
        raise UsageError("--workers ray needs to know how many: give --num-workers 4 (the nodes get them in turn).")
    if flags.num_workers is not None and not on_ray:
        raise UsageError("--num-workers goes with --workers ray; for processes of this machine give --workers N.")
    if flags.workers is not None:
        flag, number = ("--num-workers", flags.num_workers) if on_ray else ("--workers", flags.workers)
        data |= {"workers": positive_int(flag, number or ""), "workers_on": "ray" if on_ray else "here"}


def _telemetry(flags: SweepFlags, data: dict[str, Any]) -> None:
    asked: dict[str, Any] = {}
    if flags.telemetry is not None:
        if flags.telemetry not in list(TelemetrySource):
            raise UnknownNameError("telemetry", flags.telemetry, [str(source) for source in TelemetrySource])
        asked["source"] = flags.telemetry
    if flags.require_telemetry:
        asked["required"] = True
    if asked:
        data["telemetry"] = {**(data.get("telemetry") or {}), **asked}


def _stopping(flags: SweepFlags, data: dict[str, Any]) -> None:
    """When a run ends by itself: intervals, budget, objectives."""
    if flags.until_ci is not None:
        data["until_ci"] = share("--until-ci", flags.until_ci)
    if flags.budget is not None:
        data["budget_s"] = seconds("--budget", flags.budget)
    if flags.slo:
        data["slo"] = {"objectives": list(flags.slo), "share": None}
    if flags.slo_share is not None:
        if not data.get("slo"):
            raise UsageError("--slo-share goes with --slo 'ttft_ms.p99<=200' (or an experiment's slo).")
        data["slo"] = {**data["slo"], "share": share("--slo-share", flags.slo_share)}
    if data.get("slo"):
        from results.slo import parse_slo

        parse_slo(data["slo"]["objectives"], data["slo"].get("share"))
    if data.get("slo") and data.get("until_ci"):
        raise UsageError("--slo searches a load and --until-ci repeats a grid: give one of them.")


def _base(flags: SweepFlags) -> tuple[dict[str, Any], str]:
    if flags.experiment is not None and flags.preset is not None:
        raise UsageError("Give an experiment file or --preset, not both.")
    if flags.experiment is not None:
        return load_experiment(flags.experiment).model_dump(mode="json"), str(flags.experiment)
    if flags.preset is not None:
        return preset_fields(flags.preset), f"preset {flags.preset}"
    return {}, "The command line"


def engine_mappings(backends: Sequence[str], texts: Sequence[str], url: str | None) -> list[dict[str, Any]]:
    """Engines as in an experiment file, from --backend, --engine and --url."""
    engines: list[dict[str, Any]] = [{"label": normalise_backend_name(b), "backend": b} for b in backends]
    engines += [engine_fields(text) for text in texts]
    if url is not None:
        attachable = [e for e in engines if normalise_backend_name(e["backend"]) == "openai"]
        if not engines:
            attachable = engines = [{"label": "openai", "backend": "openai"}]
        if len(attachable) != 1:
            raise UsageError(
                f"--url names the server of one engine with backend openai; here are {len(attachable)}. "
                "With several, give each its own: --engine label=a,backend=openai,url=http://..."
            )
        attachable[0].setdefault("url", url)
    return engines


def engine_specs(backends: Sequence[str], texts: Sequence[str], url: str | None) -> list[EngineSpec]:
    """The same, each checked by itself and with a label of its own. Raises UsageError."""
    specs: list[EngineSpec] = []
    expanded = expand(engine_mappings(backends, texts, url))
    if expanded.left_out:
        raise UsageError(expanded.left_out[0])
    for engine in expanded.engines:
        _check_engine(engine)
        try:
            spec = EngineSpec.model_validate(engine)
        except ValidationError as error:
            raise UsageError(f"Engine {engine['label']!r}: {describe_validation(error.errors())}.") from error
        if any(spec.label == other.label for other in specs):
            raise UsageError(
                f"Two engines are labelled {spec.label!r}: give each its own, --engine label=..,backend=.."
            )
        specs.append(spec)
    return specs


def _check_engine(engine: dict[str, Any]) -> None:
    backend = get_backend(str(engine.get("backend")))
    if backend.capabilities.launches:
        if engine.get("url"):
            raise UsageError(f"Engine {engine['label']!r} (backend {backend.name}) is launched: leave its url out.")
    elif not engine.get("url"):
        raise UsageError(
            f"Engine {engine['label']!r} (backend {backend.name}) attaches to a server: give --url http://HOST:PORT."
        )
    else:
        ServerURL.parse(engine["url"])


def _served_model(engines: list[dict[str, Any]]) -> str:
    """Without --model, a server that is already there may say what it serves."""
    attached = [e for e in engines if e.get("url")]
    if len(attached) != len(engines):
        raise UsageError(
            "No model named. Give --model smollm2-135m (`dyno models` lists the known ones), a folder, or a Hub id."
        )
    first = attached[0]
    from harness.launch import fetch_documents

    backend = get_backend(first["backend"])
    backend.check_attached(first["url"], Timeouts().connect_s)
    return backend.served_name("", fetch_documents(backend, first["url"]))


def _loads(flags: SweepFlags, data: dict[str, Any]) -> None:
    number = positive_int("--requests", flags.requests) if flags.requests is not None else None
    duration = seconds("--duration", flags.duration) if flags.duration is not None else None
    loads: list[Load] = []
    speed = 1.0
    if flags.speed_up is not None:
        if flags.trace is None:
            raise UsageError("--speed-up plays a trace faster: give --trace FILE with it.")
        speed = positive_number("--speed-up", flags.speed_up, "2")
    try:
        if flags.batch is not None:
            loads += [BatchLoad.of(b, number, duration) for b in positive_ints("--batch", flags.batch)]
        if flags.concurrency is not None:
            slots = positive_ints("--concurrency", flags.concurrency)
            loads += [ConcurrencyLoad.of(c, number, duration) for c in slots]
        loads += _open_loops(flags, number, duration)
        if flags.trace is not None and not loads:
            loads.append(ScheduleLoad(requests=number, duration_s=duration, speed=speed))
        elif flags.speed_up is not None:
            raise UsageError(
                "--speed-up plays the times of a trace; with --rate or --concurrency only its lengths are used."
            )
    except ValidationError as error:
        flag = "--requests" if number is not None else "--duration" if duration is not None else "The load"
        raise UsageError(f"{flag}: {describe_validation(error.errors())}.") from error
    if loads:
        data["loads"] = [load.model_dump(mode="json") for load in loads]
    elif "loads" not in data:
        raise UsageError(
            "No load named. Give --batch 1,8,32, --concurrency 1,8,32, --rate 1,2,4 or --ramp 1:8, or a --trace to replay."
        )
    elif number is not None or duration is not None:
        flag = "--requests" if number is not None else "--duration"
        raise UsageError(
            f"{flag} changes the loads of --batch, --concurrency, --rate or --ramp: give one of them with it."
        )


def _open_loops(flags: SweepFlags, number: int | None, duration: float | None) -> list[Load]:
    arrival, burstiness = flags.arrivals, None
    if flags.burstiness is not None:
        burstiness = positive_number("--burstiness", flags.burstiness, "0.5", most=1000)
        arrival = arrival or "gamma"
    if arrival is not None and arrival not in ARRIVALS:
        raise UnknownNameError("kind of arrivals", arrival, list(ARRIVALS))
    if burstiness is not None and arrival != "gamma":
        raise UsageError(
            f"--burstiness is the shape of gamma arrivals; here they are {arrival}: leave one of the two out."
        )
    if arrival == "gamma" and burstiness is None:
        raise UsageError(
            "--arrivals gamma needs --burstiness: 0.25 comes in bursts, 1 is Poisson, 4 is steadier than that."
        )
    if flags.rate is None and flags.ramp is None:
        given = {"--arrivals": flags.arrivals, "--burstiness": burstiness, "--max-in-flight": flags.max_in_flight}
        if named := [flag for flag, value in given.items() if value is not None]:
            raise UsageError(f"{named[0]} goes with --rate or --ramp, and neither is given.")
        return []
    cap = positive_int("--max-in-flight", flags.max_in_flight) if flags.max_in_flight is not None else None
    more: dict[str, Any] = {"arrival": arrival or "poisson", "burstiness": burstiness, "max_in_flight": cap}
    rates = positive_numbers("--rate", flags.rate, "1,2,4") if flags.rate is not None else []
    loads: list[Load] = [RateLoad.of(rate, number, duration, **more) for rate in rates]
    if flags.ramp is not None:
        ends = flags.ramp.split(":")
        if len(ends) != 2:
            raise UsageError(
                f"--ramp takes two rates, FROM:TO in requests a second (given: {flags.ramp!r}). Example: --ramp 1:16."
            )
        low, high = (positive_number("--ramp", end, "1:16") for end in ends)
        loads.append(RampLoad.of(low, high, number, duration, **more))
    return loads


def _workloads(flags: SweepFlags, data: dict[str, Any]) -> None:
    if flags.workload or flags.trace is not None:
        if flags.input_len or flags.output_len or flags.exact_lengths or flags.max_tokens:
            raise UsageError(
                "--workload and --trace have lengths of their own: leave out --input-len, --output-len, --exact-lengths and "
                "--max-tokens, or write --workload random:input_len=128,output_len=64."
            )
        before = data.get("workloads") or []
        data["workloads"] = [_over(before, workload_of(text)) for text in flags.workload]
        if flags.trace is not None:
            data["workloads"].append(trace_of(flags.trace, flags.trace_format))
        return
    if flags.trace_format is not None:
        raise UsageError("--trace-format says how --trace FILE is written: give that too.")
    if flags.input_len is None and flags.output_len is None and "workloads" in data:
        if flags.exact_lengths or flags.max_tokens is not None:
            flag = "--exact-lengths" if flags.exact_lengths else "--max-tokens"
            raise UsageError(
                f"{flag} goes with --input-len or --output-len: the lengths of a file or preset are its own."
            )
        return
    inputs = positive_ints("--input-len", flags.input_len or DEFAULT_INPUT)
    outputs = positive_ints("--output-len", flags.output_len or DEFAULT_OUTPUT)
    modes = {load["mode"] for load in data["loads"]}
    spread = bool(modes - {"batch"}) and not flags.exact_lengths
    if spread and "batch" in modes:
        raise UsageError(
            "--batch wants exact lengths, and --concurrency, --rate and --ramp spread them by +-20 %: make two runs, or "
            "add --exact-lengths to `dyno sweep`."
        )
    most = positive_int("--max-tokens", flags.max_tokens) if flags.max_tokens is not None else None

    def length(tokens: int) -> dict[str, Any]:
        made = UniformLength.around(tokens) if spread else FixedLength(tokens=tokens)
        return made.model_dump(mode="json")

    data["workloads"] = [
        {"type": "random", "input_len": length(i), "output_len": length(o), "max_tokens": most}
        for i in inputs
        for o in outputs
    ]


def _over(before: list[dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
    """A workload of the command line over the only one of its type in a preset or file: what it does not say stays."""
    alike = [w for w in before if w.get("type") == given["type"]]
    if len(alike) != 1:
        return given
    return {**{k: v for k, v in alike[0].items() if k != "sha256"}, **given}
