"""An experiment: which engines meet which workloads under which loads, how often, from which seed.

Everything here is what was *asked*. What was found (versions, resolved settings, hardware) lives in sessions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from backends.base import EngineSettings, normalise_backend_name
from backends.redact import hidden_words, known_secrets, public_argv, public_environment
from results.errors import UsageError
from workloads.base import canonical
from workloads.union import Workload

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
_MAX_FILE_BYTES = 4 << 20


class EngineSpec(BaseModel):
    """One engine of an experiment: a label, a backend, and how it is to be set.

    `url` attaches to a server that is already there (backend `openai`). `options` go to the engine's command line word
    by word, after our own. `command` replaces the argv prefix that starts the engine.
    """

    model_config = _STRICT
    label: str = Field(min_length=1, max_length=80)
    backend: str
    command: tuple[str, ...] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    settings: EngineSettings = Field(default_factory=EngineSettings)
    options: tuple[str, ...] = ()
    url: str | None = None

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
        secrets = known_secrets(self.env)
        command = None if self.command is None else tuple(public_argv(self.command, secrets))
        return self.model_copy(
            update={"env": env, "command": command, "options": tuple(public_argv(self.options, secrets))}
        )

    def secrets(self) -> frozenset[str]:
        """The secret values among the environment, the options and the command."""
        words = [*self.options, *(self.command or ())]
        return known_secrets(self.env) | hidden_words(words)


class BatchLoad(BaseModel):
    """`batch` requests sent at once, `waves` times; a wave starts when the one before has ended. The deliberate lock."""

    model_config = _STRICT
    mode: Literal["batch"] = "batch"
    batch: int = Field(gt=0)
    waves: int = Field(gt=0)

    @property
    def value(self) -> int:
        return self.batch

    @property
    def in_flight(self) -> int:
        """The most requests in flight at once."""
        return self.batch

    @property
    def requests(self) -> int:
        return self.batch * self.waves

    @classmethod
    def of(cls, batch: int, requests: int | None = None) -> BatchLoad:
        """As many waves as `requests` asks for; by default at least three and at least eight requests."""
        waves = max(3, -(-8 // batch)) if requests is None else max(1, -(-requests // batch))
        return cls(batch=batch, waves=waves)


class ConcurrencyLoad(BaseModel):
    """A closed loop: `concurrency` slots, each sending its next request when its last has ended.

    Each slot's first request gets an output length uniform in [1, asked], so that the loop does not lock in phase.
    """

    model_config = _STRICT
    mode: Literal["concurrency"] = "concurrency"
    concurrency: int = Field(gt=0)
    requests: int = Field(gt=0)

    @model_validator(mode="after")
    def _enough(self) -> ConcurrencyLoad:
        if self.requests < 2 * self.concurrency:
            raise ValueError(
                f"{self.requests} requests are too few for {self.concurrency} slots: the first of each slot is shortened so "
                f"that the loop starts out of phase, so at least {2 * self.concurrency} are needed"
            )
        return self

    @property
    def value(self) -> int:
        return self.concurrency

    @property
    def in_flight(self) -> int:
        """The most requests in flight at once."""
        return self.concurrency

    @classmethod
    def of(cls, concurrency: int, requests: int | None = None) -> ConcurrencyLoad:
        """By default four requests a slot, at least 16."""
        return cls(concurrency=concurrency, requests=requests if requests is not None else max(16, 4 * concurrency))


Load = Annotated[BatchLoad | ConcurrencyLoad, Field(discriminator="mode")]


class Timeouts(BaseModel):
    """Seconds after which the client or the supervisor gives up; a timeout is an outcome, never a hang."""

    model_config = _STRICT
    ready_s: float = Field(600, gt=0)
    connect_s: float = Field(10, gt=0)
    first_token_s: float = Field(300, gt=0)
    between_tokens_s: float = Field(120, gt=0)
    total_s: float = Field(1800, gt=0)
    stop_s: float = Field(20, gt=0)


class Experiment(BaseModel):
    """The whole of what a sweep is asked to do."""

    model_config = _STRICT
    schema_version: Literal[1] = 1
    model: str
    tokenizer: str | None = None
    engines: tuple[EngineSpec, ...] = Field(min_length=1)
    workloads: tuple[Workload, ...] = Field(min_length=1)
    loads: tuple[Load, ...] = Field(min_length=1)
    blocks: int = Field(1, gt=0, le=1000)
    seed: int = Field(0, ge=0, lt=2**63)
    temperature: float = Field(0.0, ge=0)
    sample_interval_s: float = Field(0.25, gt=0)
    timeouts: Timeouts = Field(default_factory=Timeouts)

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

    def to_yaml(self) -> str:
        """The resolved experiment as it is kept in the run, without secrets."""
        public = self.model_copy(update={"engines": tuple(engine.public() for engine in self.engines)})
        text: str = yaml.safe_dump(public.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        return text


class Cell(BaseModel):
    """One (engine, workload, load, block) and the run-wide parameters that shape what is sent."""

    model_config = _STRICT
    engine: EngineSpec
    model: str
    tokenizer: str | None
    workload: Workload
    load: Load
    block: int
    seed: int
    temperature: float

    @property
    def id(self) -> str:
        """A hash of what was asked; stable across machines and versions within a schema number."""
        asked = self.model_copy(update={"engine": self.engine.public()}).model_dump(mode="json")
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
    """Validate a mapping as an experiment; `origin` names it in the message."""
    try:
        return Experiment.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"{origin} is not a valid experiment: {describe_validation(error.errors())}.") from error


def describe_validation(errors: Sequence[Any]) -> str:
    """Pydantic's findings as one line: field, what is wrong, what was given."""
    parts = []
    # A list whose items are wrong also counts as too short: only the items tell the user something.
    roots = {item["loc"][0] for item in errors if len(item["loc"]) > 1}
    for item in errors:
        if item.get("type") == "too_short" and item["loc"][:1] and item["loc"][0] in roots and len(item["loc"]) == 1:
            continue
        where = ".".join(str(step) for step in item["loc"]) or "experiment"
        given = item.get("input")
        shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) else ""
        parts.append(f"{where}: {str(item['msg']).removeprefix('Value error, ')}{shown}")
    return "; ".join(parts)
