"""What the load worker is to send, as data: a plan (JSON) and the request bodies in a file beside it.

The parent knows engines and workloads; the worker knows only bytes, lengths and times. The bearer key never appears
here, only the name of the environment variable that holds it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import orjson

from backends.http_probe import ServerURL
from results.errors import UsageError
from results.files import read_json, store_error, write_atomic

PLAN_FILE = "plan.json"
BODIES_FILE = "bodies.jsonl"
# What the worker says of its run, beside the event files.
RESULT_FILE = "load.json"


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
    """Seconds, or None for no limit. `total` counts from when the client took the request up, `first_token` from when
    it was sent, `between_tokens` from the last body byte (any byte: nothing is parsed to keep this clock)."""

    connect_s: float | None = 10.0
    first_token_s: float | None = 300.0
    between_tokens_s: float | None = 120.0
    total_s: float | None = 1800.0


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """One request. `slot` None: whichever slot is free takes it. The body is `length` bytes at `offset`."""

    id: str
    input_tokens: int | None
    output_tokens: int
    offset: int
    length: int
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class BatchMode:
    """All `batch` requests of a wave at once, `waves` times."""

    batch: int
    waves: int
    mode: Literal["batch"] = "batch"


@dataclass(frozen=True, slots=True)
class ConcurrencyMode:
    """A closed loop of `slots`, each sending its next request when its last has ended."""

    slots: int
    mode: Literal["concurrency"] = "concurrency"


Mode = BatchMode | ConcurrencyMode
_MODES: dict[str, type[BatchMode] | type[ConcurrencyMode]] = {"batch": BatchMode, "concurrency": ConcurrencyMode}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Everything the worker needs. `folder` holds the bodies, `out_dir` gets the event files.

    With `ignore_eos` an answer of fewer tokens than asked has outcome `short`; without it lengths are natural.
    """

    target: ServerURL
    mode: Mode
    requests: tuple[RequestPlan, ...]
    folder: str
    out_dir: str = ""
    path: str = "/v1/completions"
    timeouts: RequestTimeouts = field(default_factory=RequestTimeouts)
    api_key_env: str | None = None
    ignore_eos: bool = True
    stream: bool = True
    worker: int = 0

    @property
    def connections(self) -> int:
        """How many requests can be in flight at once."""
        most = self.mode.batch if isinstance(self.mode, BatchMode) else self.mode.slots
        return min(most, len(self.requests))

    @property
    def bodies_path(self) -> Path:
        return Path(self.folder) / BODIES_FILE

    def api_key(self) -> str | None:
        """The bearer key from the environment. Raises UsageError when the named variable is not set."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise UsageError(
                f"The environment variable {self.api_key_env} is to hold the bearer key of the server, but it is not set. "
                f"Export it, or leave the key out."
            )
        if not key.isascii() or not key.isprintable():
            raise UsageError(f"The key in {self.api_key_env} holds characters that cannot be sent in an HTTP header.")
        return key

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes | dict[str, Any]) -> Self:
        raw = orjson.loads(data) if isinstance(data, bytes) else dict(data)
        mode = dict(raw.pop("mode"))
        return cls(
            target=ServerURL(**raw.pop("target")),
            mode=_MODES[mode["mode"]](**mode),
            requests=tuple(RequestPlan(**request) for request in raw.pop("requests")),
            timeouts=RequestTimeouts(**raw.pop("timeouts")),
            **raw,
        )

    def save(self, out_dir: Path) -> Path:
        """Write the plan beside its bodies, to be carried out into `out_dir`; the path of the plan."""
        path = Path(self.folder) / PLAN_FILE
        write_atomic(path, replace(self, out_dir=str(out_dir)).to_json())
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan. Raises StoreError (unreadable) or UsageError (not a plan)."""
        data = read_json(path)
        try:
            return cls.from_json(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is not a load plan: {type(error).__name__} {error}.") from error


@dataclass(frozen=True, slots=True)
class PlannedBody:
    """A request as the parent hands it over: its id, encoded body and lengths (`input_tokens` None: a text nobody counted)."""

    id: str
    body: bytes
    input_tokens: int | None
    output_tokens: int
    slot: int | None = None


class LoadLike(Protocol):
    """What `build_plan` reads of an experiment's load (BatchLoad, ConcurrencyLoad)."""

    @property
    def mode(self) -> str: ...

    @property
    def value(self) -> int: ...

    @property
    def requests(self) -> int: ...


class TimeoutsLike(Protocol):
    """What `build_plan` reads of an experiment's timeouts."""

    @property
    def connect_s(self) -> float: ...

    @property
    def first_token_s(self) -> float: ...

    @property
    def between_tokens_s(self) -> float: ...

    @property
    def total_s(self) -> float: ...


def mode_of(load: LoadLike) -> Mode:
    """The worker's form of an experiment's load."""
    if load.mode == "batch":
        return BatchMode(load.value, load.requests // load.value)
    if load.mode == "concurrency":
        return ConcurrencyMode(load.value)
    raise UsageError(f"The load worker does not know the mode {load.mode!r}; it knows {', '.join(sorted(_MODES))}.")


def build_plan(
    load: LoadLike,
    bodies: Iterable[PlannedBody],
    *,
    url: str,
    folder: Path,
    timeouts: TimeoutsLike | None = None,
    api_key_env: str | None = None,
    ignore_eos: bool = True,
    stream: bool = True,
    path: str = "/v1/completions",
) -> LoadPlan:
    """Write the bodies into `folder` and return the plan that sends them.

    As many bodies as `load.requests` are needed, each on one line of JSON, each id fit for a header and used once.
    Raises UsageError otherwise, StoreError when the file cannot be written.
    """
    requests: list[RequestPlan] = []
    seen: set[str] = set()
    offset = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / BODIES_FILE).open("wb") as file:
            for item in bodies:
                if b"\n" in item.body:
                    raise UsageError(f"The body of request {item.id!r} is not on one line.")
                if not item.id or not item.id.isascii() or not item.id.isprintable() or item.id in seen:
                    raise UsageError(f"{item.id!r} cannot name a request: ids are printable ASCII and used once.")
                seen.add(item.id)
                file.write(item.body + b"\n")
                requests.append(
                    RequestPlan(item.id, item.input_tokens, item.output_tokens, offset, len(item.body), item.slot)
                )
                offset += len(item.body) + 1
    except OSError as error:
        raise store_error(folder / BODIES_FILE, error) from error
    if len(requests) != load.requests:
        raise UsageError(f"The load sends {load.requests} requests, but {len(requests)} bodies were given.")
    limits = RequestTimeouts()
    if timeouts is not None:
        limits = RequestTimeouts(
            timeouts.connect_s, timeouts.first_token_s, timeouts.between_tokens_s, timeouts.total_s
        )
    return LoadPlan(
        target=ServerURL.parse(url),
        mode=mode_of(load),
        requests=tuple(requests),
        folder=str(folder),
        path=path,
        timeouts=limits,
        api_key_env=api_key_env,
        ignore_eos=ignore_eos,
        stream=stream,
    )


def anti_lock_lengths(output_lens: Sequence[int], slots: int, seed: int) -> list[int]:
    """Output lengths with the first request of each slot shortened to a length uniform in [1, asked].

    A closed loop of equal lengths locks in phase: all requests start and end together for ever. The first `slots`
    requests are the first ones of the slots, since slots take requests in order.
    """
    draw = random.Random(seed)
    return [draw.randint(1, asked) if i < slots else asked for i, asked in enumerate(output_lens)]
