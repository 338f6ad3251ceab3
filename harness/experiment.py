"""An experiment: which engines meet which workloads under which loads, how often, from which seed.

Everything here is what was *asked*. What was found (versions, resolved settings, hardware) lives in sessions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from backends.base import EngineSettings, normalise_backend_name
from backends.container_spec import ContainerSpec
from backends.redact import (
    HIDDEN,
    hidden_words,
    is_secret_name,
    known_secrets,
    public_argv,
    public_environment,
    public_text,
)
from harness.axes import expand
from harness.loads import Load
from harness.telemetry.settings import Telemetry
from results.errors import UsageError
from workloads.base import canonical
from workloads.union import Workload

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
_MAX_FILE_BYTES = 4 << 20
# Of a value that is refused, in characters.
_MOST_SHOWN = 200


class EngineSpec(BaseModel):
    """One engine of an experiment: a label, a backend, and how it is to be set.

    `url` attaches to a server that is already there (backend `openai`). `options` go to the engine's command line word
    by word, after our own. `command` replaces the argv prefix that starts the engine. `container` runs it in one, instead of
    on the host.
    """

    model_config = _STRICT
    label: str = Field(min_length=1, max_length=80)
    backend: str
    command: tuple[str, ...] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    settings: EngineSettings = Field(default_factory=EngineSettings)
    options: tuple[str, ...] = ()
    url: str | None = None
    container: ContainerSpec | None = None

    @field_validator("backend")
    @classmethod
    def _backend(cls, value: str) -> str:
        return normalise_backend_name(value)

    @field_validator("label")
    @classmethod
    def _label(cls, value: str) -> str:
        # It goes to terminals, files and pages: control and direction characters have no place in a name.
        if not value.isprintable():
            raise ValueError("a label holds printable characters only")
        return value

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or "=" in name or "\0" in name + text:
                raise ValueError(f"{name!r} cannot be the name of an environment variable with that value")
        return value

    def public(self) -> EngineSpec:
        """The same without secrets: what may be written to a file, and what names a cell (a new key is no new engine)."""
        env = public_environment(self.env)
        secrets = self.secrets()
        command = None if self.command is None else tuple(public_argv(self.command, secrets))
        container = self.container
        if container is not None:
            container = container.model_copy(update={"args": tuple(public_argv(container.args, secrets))})
        options = tuple(public_argv(self.options, secrets))
        return self.model_copy(update={"env": env, "command": command, "options": options, "container": container})

    def secrets(self) -> frozenset[str]:
        """The secret values among the environment, the options and the command."""
        lists = (self.options, self.command or (), self.container.args if self.container else ())
        # Each by itself: a flag that ends one list has no value in the next.
        return known_secrets(self.env).union(*map(hidden_words, lists))


class Timeouts(BaseModel):
    """Seconds after which the client or the supervisor gives up; a timeout is an outcome, never a hang."""

    model_config = _STRICT
    ready_s: float = Field(1800, gt=0)
    # A start without a line in its log and without CPU time for so long is dead, whatever is left of `ready_s`.
    stall_s: float = Field(300, gt=0)
    connect_s: float = Field(10, gt=0)
    first_token_s: float = Field(300, gt=0)
    between_tokens_s: float = Field(120, gt=0)
    total_s: float = Field(1800, gt=0)
    stop_s: float = Field(20, gt=0)
    # In a cell: a server whose health page says no, or nothing, for so long while no token comes has failed.
    unhealthy_s: float = Field(30, gt=0)


# Options that came later: at these values they leave no trace in files and hashes, so that runs of before stay the same.
_UNSAID = {
    "endpoint": "completions",
    "stream": True,
    "workers": None,
    "workers_on": "here",
    "telemetry": Telemetry().model_dump(mode="json"),
    "until_ci": None,
    "budget_s": None,
    "slo": None,
    "placement": "apart",
    "left_out": [],
}
Endpoint = Literal["completions", "chat"]
ENDPOINTS: tuple[str, ...] = get_args(Endpoint)


class _Asked(BaseModel):
    """What says nothing of options that are as they always were."""

    model_config = _STRICT

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name not in _UNSAID or value != _UNSAID[name]}


class SloAsked(BaseModel):
    """Objectives as `results.slo` reads them (`ttft_ms.p99<=200`), and the joint share that is demanded."""

    model_config = _STRICT
    objectives: tuple[str, ...] = Field(min_length=1)
    share: float | None = Field(None, gt=0, lt=1)


class Experiment(_Asked):
    """The whole of what a sweep is asked to do.

    `endpoint` chat sends the same prompts as the text of one user message. `workers` processes share the load (null: one, or as
    many as the machine's calibration asks for), here or on the nodes of a Ray cluster. `until_ci`
    goes on after `blocks` until intervals are that narrow (0.03 is +-3 %), `slo` searches the highest load that meets it,
    and neither begins what would not fit into `budget_s`. `placement` apart gives client, API server and engine cores of
    their own where there are enough. `left_out` names combinations of an engine's settings that its backend does not take.
    """

    schema_version: Literal[1] = 1
    model: str
    tokenizer: str | None = None
    engines: tuple[EngineSpec, ...] = Field(min_length=1)
    workloads: tuple[Workload, ...] = Field(min_length=1)
    loads: tuple[Load, ...] = Field(min_length=1)
    blocks: int = Field(1, gt=0, le=1000)
    seed: int = Field(0, ge=0, lt=2**63)
    temperature: float = Field(0.0, ge=0)
    endpoint: Endpoint = "completions"
    stream: bool = True
    workers: int | None = Field(None, gt=0, le=64)
    workers_on: Literal["here", "ray"] = "here"
    sample_interval_s: float = Field(0.25, gt=0)
    telemetry: Telemetry = Field(default_factory=Telemetry)
    timeouts: Timeouts = Field(default_factory=Timeouts)
    until_ci: float | None = Field(None, gt=0, lt=1)
    budget_s: float | None = Field(None, gt=0)
    slo: SloAsked | None = None
    placement: Literal["apart", "none"] = "apart"
    left_out: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _labels(self) -> Experiment:
        labels = [e.label for e in self.engines]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"engine label used more than once: {', '.join(twice)}")
        for name, items in (("workload", self.workloads), ("load", self.loads)):
            for index, item in enumerate(items):
                if item in items[:index]:
                    raise ValueError(f"{name} {index} stands there twice: {item.model_dump(mode='json')}")
        return self

    @model_validator(mode="after")
    def _shared(self) -> Experiment:
        workers = self.workers or 1
        if self.workers is None and self.workers_on != "here":
            raise ValueError(f"workers_on: {self.workers_on} needs to know how many: give workers")
        for load in self.loads if workers > 1 else ():
            if load.mode == "batch":
                raise ValueError(
                    f"{workers} workers cannot share a batch: its waves begin when all of the one before has ended, which "
                    "several processes cannot know of each other. Use a concurrency or a rate, or one worker"
                )
            most = load.concurrency if load.mode == "concurrency" else load.max_in_flight
            if most is not None and workers > most:
                raise ValueError(f"{workers} workers are more than the {most} requests that {load.mode} has in flight")
            sent = load.requests
            if sent is not None and workers > sent:
                raise ValueError(f"{workers} workers are more than the {sent} requests that {load.mode} sends in all")
        return self

    def to_yaml(self) -> str:
        """The resolved experiment as it is kept in the run, without secrets."""
        public = self.model_copy(update={"engines": tuple(engine.public() for engine in self.engines)})
        asked = public.model_dump(mode="json", exclude_none=True)
        text: str = yaml.safe_dump(asked, sort_keys=False, allow_unicode=True)
        return text


class Cell(_Asked):
    """One (engine, workload, load, block) and the run-wide parameters that shape what is sent."""

    engine: EngineSpec
    model: str
    tokenizer: str | None
    workload: Workload
    load: Load
    block: int
    seed: int
    temperature: float
    endpoint: Endpoint = "completions"
    stream: bool = True

    @property
    def id(self) -> str:
        """A hash of what was asked; stable across machines and versions within a schema number: what was not asked is left
        out, so that an option which comes later renames no cell."""
        asked = self.model_copy(update={"engine": self.engine.public()}).model_dump(mode="json", exclude_none=True)
        return hashlib.sha256(canonical(asked).encode()).hexdigest()[:16]


def cells_of(experiment: Experiment) -> list[Cell]:
    """Every cell of the grid, in plain order (the planner decides the order they run in)."""
    return [
        Cell(
            engine=engine,
            model=experiment.model,
            tokenizer=experiment.tokenizer,
            workload=workload,
            load=load,
            block=block,
            seed=experiment.seed,
            temperature=experiment.temperature,
            endpoint=experiment.endpoint,
            stream=experiment.stream,
        )
        for block in range(experiment.blocks)
        for engine in experiment.engines
        for workload in experiment.workloads
        for load in experiment.loads
    ]


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error, not a silent loss of the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key != "<<" and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def load_experiment(path: Path) -> Experiment:
    """Read an experiment file. Raises UsageError naming the file and each field that is wrong."""
    try:
        if not path.is_file():
            raise UsageError(
                f"Cannot read the experiment {path}: {'it is no file' if path.exists() else 'there is no such file'}."
            )
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise UsageError(f"{path} has {path.stat().st_size:,} bytes; an experiment has a few hundred.")
        data = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
    except OSError as error:
        raise UsageError(f"Cannot read the experiment {path}: {error.strerror or error}.") from error
    except yaml.MarkedYAMLError as error:
        where = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{path} is not valid YAML{where}: {error.problem or error.context}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid YAML: {str(error).splitlines()[0]}.") from error
    if data is None:
        raise UsageError(f"{path} is empty. An experiment needs model, engines, workloads and loads.")
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds {type(data).__name__}, not a mapping with model, engines, workloads and loads.")
    return experiment_from(data, str(path))


def experiment_from(data: dict[str, Any], origin: str) -> Experiment:
    """Validate a mapping as an experiment, each combination of settings an engine of its own; `origin` names it in the message.
    Raises UsageError."""
    entries: Sequence[int] = ()
    if isinstance(engines := data.get("engines"), list | tuple):
        expanded = expand(engines)
        entries = expanded.origin
        data = {**data, "engines": expanded.engines}
        if expanded.left_out:
            data["left_out"] = [*(data.get("left_out") or ()), *expanded.left_out]
    try:
        return Experiment.model_validate(data)
    except ValidationError as error:
        raise UsageError(
            f"{origin} is not a valid experiment: {describe_validation(_as_given(error.errors(), entries))}."
        ) from error


def _as_given(errors: Sequence[Any], entries: Sequence[int]) -> list[Any]:
    """Findings that name an engine by the entry the user wrote, of which several may have been made."""
    found = []
    for item in errors:
        where = item["loc"]
        if len(where) > 1 and where[0] == "engines" and isinstance(where[1], int) and where[1] < len(entries):
            item = {**item, "loc": ("engines", entries[where[1]], *where[2:])}
        found.append(item)
    return found


def describe_validation(errors: Sequence[Any]) -> str:
    """Pydantic's findings as one line: field, what is wrong, what was given; each once."""
    parts = []
    # A list whose items are wrong also counts as too short: only the items tell the user something.
    roots = {item["loc"][0] for item in errors if len(item["loc"]) > 1}
    for item in errors:
        if item.get("type") == "too_short" and item["loc"][:1] and item["loc"][0] in roots and len(item["loc"]) == 1:
            continue
        where = ".".join(str(step) for step in item["loc"]) or "experiment"
        given = item.get("input")
        if isinstance(given, str):
            given = HIDDEN if is_secret_name(where) else " ".join(public_argv(public_text(given).split(" ")))
        text = repr(given)
        text = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
        shown = f" (given: {text})" if isinstance(given, str | int | float | bool) else ""
        parts.append(f"{where}: {str(item['msg']).removeprefix('Value error, ')}{shown}")
    return "; ".join(dict.fromkeys(parts))
