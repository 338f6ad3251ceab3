"""The adapter contract: what the harness needs to know to launch, read back and stop any engine.

An adapter is data plus a page of code. What is common to all (supervision, readiness polling, failure classes) lives in
`backends.process`; what differs is stated here. Third parties register an instance through the entry-point group
`dyno.backends`.
"""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from results.errors import EngineError, UnknownNameError, UsageError
from results.logged_steps import LoggedSteps

ENTRY_POINT_GROUP = "dyno.backends"
# Beyond it no setting that counts something is meant (and no file holds it).
_MOST = 1 << 30


class EngineSettings(BaseModel):
    """The neutral settings of an engine. None means: the engine's own default, whatever that is (it is read back)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: str | None = None
    kv_dtype: str | None = None
    max_model_len: int | None = Field(None, gt=0, le=_MOST)
    max_num_seqs: int | None = Field(None, gt=0, le=_MOST)
    max_num_batched_tokens: int | None = Field(None, gt=0, le=_MOST)
    kv_cache_tokens: int | None = Field(None, gt=0, le=1 << 40)
    kv_cache_bytes: int | None = Field(None, gt=0, le=1 << 50)
    memory_fraction: float | None = Field(None, gt=0, le=1)
    block_size: int | None = Field(None, gt=0, le=_MOST)
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    cuda_graphs: bool | None = None
    scheduler_policy: str | None = None
    tensor_parallel: int | None = Field(None, gt=0, le=_MOST)
    quantisation: str | None = None
    threads: int | None = Field(None, gt=0, le=_MOST)
    seed: int | None = Field(None, ge=-(1 << 63), le=(1 << 63) - 1)
    load_format: str | None = None
    # Whether the engine logs a line a step, of what it held: some cost of its own, and read where it is there.
    step_log: bool | None = None
    # Mechanisms that some engine can turn off, to show what they buy; most engines know one value of each.
    admission: str | None = None
    batching: str | None = None
    kv_layout: str | None = None
    kv_cache: bool | None = None
    # Guessing tokens ahead: the method (`backends.speculation` lists them), how many at once, and the drafting model's folder.
    speculative: str | None = None
    speculative_tokens: int | None = Field(None, gt=0, le=_MOST)
    speculative_model: str | None = None

    @field_validator("admission", "batching", "kv_layout")
    @classmethod
    def _with_dashes(cls, value: str | None) -> str | None:
        """Names accept `-` or `_`."""
        return None if value is None else value.replace("_", "-")

    def asked(self) -> dict[str, Any]:
        """Only what was asked for, by name."""
        return self.model_dump(exclude_none=True)


class SettingNotSupportedError(UsageError):
    """A setting that this backend cannot honour."""

    def __init__(self, backend: str, setting: str, supported: Sequence[str], only: Any = None) -> None:
        fixed = "" if only is None else f" (it is always {only!r} there)"
        super().__init__(
            f"Backend {backend!r} has no way to set {setting!r}{fixed}. It understands: {', '.join(sorted(supported)) or 'none'}. "
            "Leave the setting out, or pass the engine's own flag through `options`."
        )


class Source(StrEnum):
    """Where a resolved setting was read, best first."""

    ENDPOINT = "endpoint"
    LOG = "log"
    # The engine knows no other value.
    FIXED = "fixed"
    ASKED = "asked"


@dataclass(frozen=True, slots=True)
class Resolved:
    """One setting as the engine runs with it, and who said so."""

    value: Any
    source: Source


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine (as this adapter drives it) can do. The harness asks, it never guesses from the name."""

    launches: bool = True
    token_id_prompts: bool = True
    ignore_eos: bool = True
    continuous_usage: bool = False
    return_token_ids: bool = False
    truth_log: bool = False
    # Its own log can tell what each step held.
    step_log: bool = False
    server_metrics: bool = True
    # Its API server is a process of its own: the engine is below it.
    own_api_process: bool = False
    # The process that listens answers all requests in its main thread: more than one core it cannot use for that.
    api_in_main_thread: bool = False


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """All an adapter may use to say how its server is started.

    `model` is what the server is to load (a folder), `served_name` the name it answers to; `options` are the user's own
    words for the engine's command line, appended last so that they win. `image` is the container image that the command
    runs in, where it does: then nothing on this machine tells of the engine, its version least of all. `cpus` are those that
    the engine will run on; () for all that this process may use.
    """

    model: Path
    served_name: str
    settings: EngineSettings
    session_dir: Path
    host: str
    port: int
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How the server is started: argv, the environment added to ours, and files to write beforehand (path -> text).

    `notes` say in words where this differs from what was asked, or what the adapter chose by itself. `after` is a command
    that is run once the server's own process has ended, however it ended and whoever is left to run it (the keeper): it
    removes what is no child of it, a container. Its output goes to the server's log, before the end is told. `cpus` are
    those that its processes may use; () for all. `measuring` names what only serves the measuring: words of argv, variables
    of `env`, and keys at the top of YAML `files`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    measuring: frozenset[str] = frozenset()

    def to_serve(self, own: Collection[str] = ()) -> LaunchPlan:
        """The same for who wants the engine and not its measurement: without what `measuring` names, unless the user named it
        by himself (`own`)."""
        drop = self.measuring - set(own)

        def kept(text: str) -> str:
            return "".join(line for line in text.splitlines(keepends=True) if line.partition(":")[0] not in drop)

        return replace(
            self,
            argv=tuple(word for word in self.argv if word not in drop),
            env={name: value for name, value in self.env.items() if name not in drop},
            files={path: kept(text) for path, text in self.files.items()},
        )


@dataclass(frozen=True, slots=True)
class InContainer:
    """How an engine is started in its usual container images: the argv prefix, and whether it takes the place of the
    image's own entry point (else it is handed to that)."""

    command: tuple[str, ...]
    replaces_entrypoint: bool = False


@dataclass(frozen=True, slots=True)
class MetricRule:
    """A neutral server metric by the engine's Prometheus names: alternatives, newest first; summed over labels."""

    neutral: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FailurePattern:
    """A line in a server's log that names a kind of failure, and what to do about it."""

    failure: str
    pattern: str
    advice: str


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request in neutral words; `prompt` is token ids or text."""

    model: str
    prompt: Sequence[int] | str
    max_tokens: int
    ignore_eos: bool = True
    temperature: float = 0.0
    seed: int | None = None
    stream: bool = True


class Backend(ABC):
    """One kind of engine. Instances hold no state: everything about a running server is in its session."""

    name: ClassVar[str]
    words: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()
    # Neutral settings this adapter can turn into the engine's own.
    settings: ClassVar[frozenset[str]] = frozenset()
    # Settings with one possible value: asking for that value is honoured, for another refused.
    fixed: ClassVar[Mapping[str, Any]] = {}
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    metrics: ClassVar[tuple[MetricRule, ...]] = ()
    # Import path (`module:name`) of a class that reads the metrics page where that is not Prometheus text: an instance a
    # session, `read(text)` gives the values under neutral names. It may keep sums between pages, so only one may read.
    metrics_reader: ClassVar[str | None] = None
    in_container: ClassVar[InContainer | None] = None
    failures: ClassVar[tuple[FailurePattern, ...]] = ()

    @abstractmethod
    def default_command(self) -> tuple[str, ...]:
        """The argv prefix that starts the engine where neither the experiment nor the environment names one."""

    @abstractmethod
    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        """The whole command line for these settings. Raises SettingNotSupportedError."""

    @abstractmethod
    def resolved_settings(self, asked: EngineSettings, documents: Mapping[str, Any], log: str) -> dict[str, Resolved]:
        """Settings as the engine runs with them. `documents` maps each of `settings_paths` to its decoded JSON or text."""

    def settings_paths(self) -> tuple[str, ...]:
        """HTTP paths of the server that tell how it is set (missing ones are tolerated)."""
        return ()

    def versions(self, documents: Mapping[str, Any], log: str) -> dict[str, str]:
        """Versions of what runs, by name; part of the fingerprint."""
        return {}

    def startup_phases(self, log: str, now_wall_ns: int) -> dict[str, int]:
        """When the phases of a start were done, as far as the log tells: name -> wall-clock ns."""
        return {}

    def logged_steps(self, lines: Iterable[str], now_wall_ns: int) -> LoggedSteps | str:
        """The steps that these lines of the server's log tell of (empty where they tell of none), or why they cannot be told.
        Only asked where `step_log` is among the capabilities."""
        return LoggedSteps()

    def api_key_env(self) -> str | None:
        """The environment variable that holds the bearer key for this server, or None where none is to be sent."""
        return None

    def served_name(self, asked: str, documents: Mapping[str, Any]) -> str:
        """The model name requests must carry. Raises UsageError when the server does not serve what was asked."""
        return asked

    def check_attached(self, url: str, timeout_s: float) -> None:  # noqa: B027 - nothing to check where servers are launched
        """Raise EngineError when a server that was not launched by us does not answer, or not as it should."""

    def completion_body(self, request: CompletionRequest) -> dict[str, Any]:
        """The JSON body for POST /v1/completions, with only fields this engine accepts."""
        body: dict[str, Any] = {
            "model": request.model,
            "prompt": list(request.prompt) if not isinstance(request.prompt, str) else request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "stream": request.stream,
        }
        if request.seed is not None:
            body["seed"] = request.seed
        if request.stream:
            body["stream_options"] = {"include_usage": True}
            if self.capabilities.continuous_usage:
                body["stream_options"]["continuous_usage_stats"] = True
        if request.ignore_eos and self.capabilities.ignore_eos:
            body["ignore_eos"] = True
        return body

    def chat_body(self, request: CompletionRequest) -> dict[str, Any]:
        """The JSON body for POST /v1/chat/completions: the prompt (text) as one message of the user."""
        body = self.completion_body(request)
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        return body

    def command(self, asked: Sequence[str] | None) -> tuple[str, ...]:
        """The argv prefix: the experiment's, else DYNO_<BACKEND>_COMMAND, else the adapter's own."""
        if asked:
            return tuple(asked)
        variable = f"DYNO_{self.name.upper()}_COMMAND"
        if text := os.environ.get(variable, "").strip():
            return tuple(shlex.split(text))
        return self.default_command()

    def refuse_unsupported(self, asked: EngineSettings) -> None:
        """Raise SettingNotSupportedError for the first asked setting this adapter cannot pass on."""
        for setting, value in asked.asked().items():
            if setting not in self.settings and (setting not in self.fixed or self.fixed[setting] != value):
                raise SettingNotSupportedError(self.name, setting, list(self.settings), self.fixed.get(setting))


def normalise_backend_name(name: str) -> str:
    """Names accept `-` or `_`; stored with `_`."""
    return name.strip().lower().replace("-", "_")


@cache
def _registered() -> dict[str, Any]:
    return {normalise_backend_name(e.name): e for e in entry_points(group=ENTRY_POINT_GROUP)}


def backend_names() -> list[str]:
    """All registered backends, sorted."""
    return sorted(_registered())


def get_backend(name: str) -> Backend:
    """The adapter of that name. Raises UnknownNameError (with the nearest), or EngineError if it cannot be loaded."""
    wanted = normalise_backend_name(name)
    entry = _registered().get(wanted)
    if entry is None:
        raise UnknownNameError("backend", name, backend_names())
    try:
        backend = entry.load()
    except Exception as error:
        raise EngineError(f"Backend {name!r} ({entry.value}) cannot be loaded: {error}.") from error
    if not isinstance(backend, Backend):
        raise EngineError(f"Backend {name!r} ({entry.value}) is not an instance of backends.base.Backend.")
    return backend
