"""From flags (over an experiment file or a preset) to an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from backends.base import get_backend, normalise_backend_name
from backends.http_probe import ServerURL
from harness.cli.values import engine_fields, positive_int, positive_ints
from harness.experiment import (
    BatchLoad,
    ConcurrencyLoad,
    EngineSpec,
    Experiment,
    Timeouts,
    describe_validation,
    experiment_from,
    load_experiment,
)
from results.errors import UnknownNameError, UsageError
from workloads.lengths import FixedLength, UniformLength

_PRESETS = Path(__file__).resolve().parents[2] / "workloads" / "presets"
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
    blocks: str | None
    seed: int | None
    url: str | None
    tokenizer: str | None


def build_experiment(flags: SweepFlags) -> Experiment:
    """Raises UsageError for anything that cannot be made sense of, naming the flag."""
    data, origin = _base(flags)
    if engines := engine_mappings(flags.backends, flags.engines, flags.url):
        data["engines"] = engines
    if flags.model is not None:
        data["model"] = flags.model
    if flags.tokenizer is not None:
        data["tokenizer"] = flags.tokenizer
    if flags.seed is not None:
        data["seed"] = flags.seed
    if flags.blocks is not None:
        data["blocks"] = positive_int("--blocks", flags.blocks)
    _loads(flags, data)
    _workloads(flags, data)
    if not data.get("engines"):
        raise UsageError(
            "No engine named. Give --backend reference (`dyno backends` lists them), --engine, or an experiment file."
        )
    for engine in data["engines"]:
        _check_engine(engine)
    if not data.get("model"):
        data["model"] = _served_model(data["engines"])
    return experiment_from(data, origin)


def preset_names() -> list[str]:
    """The presets that ship with dyno."""
    return sorted(p.stem for p in _PRESETS.glob("*.yaml"))


def _base(flags: SweepFlags) -> tuple[dict[str, Any], str]:
    if flags.experiment is not None and flags.preset is not None:
        raise UsageError("Give an experiment file or --preset, not both.")
    if flags.experiment is not None:
        return load_experiment(flags.experiment).model_dump(mode="json"), str(flags.experiment)
    if flags.preset is not None:
        if flags.preset not in preset_names():
            raise UnknownNameError("preset", flags.preset, preset_names())
        data = yaml.safe_load((_PRESETS / f"{flags.preset}.yaml").read_text(encoding="utf-8"))
        return {k: v for k, v in data.items() if k != "about"}, f"preset {flags.preset}"
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
    for engine in engine_mappings(backends, texts, url):
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
    loads: list[BatchLoad | ConcurrencyLoad] = []
    try:
        if flags.batch is not None:
            loads += [BatchLoad.of(b, number) for b in positive_ints("--batch", flags.batch)]
        if flags.concurrency is not None:
            loads += [ConcurrencyLoad.of(c, number) for c in positive_ints("--concurrency", flags.concurrency)]
    except ValidationError as error:
        raise UsageError(f"--requests: {describe_validation(error.errors())}.") from error
    if loads:
        data["loads"] = [load.model_dump(mode="json") for load in loads]
    elif "loads" not in data:
        raise UsageError("No load named. Give --batch 1,8,32 or --concurrency 1,8,32.")
    elif number is not None:
        raise UsageError("--requests changes the loads of --batch or --concurrency: give one of them with it.")


def _workloads(flags: SweepFlags, data: dict[str, Any]) -> None:
    if flags.input_len is None and flags.output_len is None and "workloads" in data:
        if flags.exact_lengths:
            raise UsageError(
                "--exact-lengths goes with --input-len or --output-len: the lengths of a file or preset are its own."
            )
        return
    inputs = positive_ints("--input-len", flags.input_len or DEFAULT_INPUT)
    outputs = positive_ints("--output-len", flags.output_len or DEFAULT_OUTPUT)
    modes = {load["mode"] for load in data["loads"]}
    spread = "concurrency" in modes and not flags.exact_lengths
    if spread and "batch" in modes:
        raise UsageError(
            "--batch wants exact lengths and --concurrency spreads them by +-20 %: add --exact-lengths, or make two runs."
        )

    def length(tokens: int) -> dict[str, Any]:
        made = UniformLength.around(tokens) if spread else FixedLength(tokens=tokens)
        return made.model_dump(mode="json")

    data["workloads"] = [
        {"type": "random", "input_len": length(i), "output_len": length(o)} for i in inputs for o in outputs
    ]
