"""What the load worker is to send, as data: a plan (JSON) and the request bodies in a file beside it.

The parent knows engines and workloads; the worker knows only bytes, lengths and times. The bearer key never appears
here, only the name of the environment variable that holds it.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import orjson

from backends.http_probe import ServerURL
from results.errors import UsageError
from results.files import read_json, write_atomic

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
    """One request. `slot` None: whichever slot is free takes it. The body is `length` bytes at `offset`.

    `at` (ns after the start) is when an open loop sends it. With `cancel_after_tokens` the client ends the answer when so many
    tokens have come: a natural length that no engine has to be trusted for.
    """

    id: str
    input_tokens: int | None
    output_tokens: int
    offset: int
    length: int
    slot: int | None = None
    at: int | None = None
    cancel_after_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BatchMode:
    """All `batch` requests of a wave at once, `waves` times."""

    batch: int
    waves: int
    mode: Literal["batch"] = "batch"


@dataclass(frozen=True, slots=True)
class ConcurrencyMode:
    """A closed loop of `slots`, each sending its next request `think_ns` after its last has ended."""

    slots: int
    think_ns: int = 0
    mode: Literal["concurrency"] = "concurrency"


@dataclass(frozen=True, slots=True)
class OpenMode:
    """Each request at its time (`RequestPlan.at`), with at most `max_in_flight` out at once where that is given."""

    max_in_flight: int | None = None
    mode: Literal["open"] = "open"


Mode = BatchMode | ConcurrencyMode | OpenMode
_MODES: dict[str, type[BatchMode] | type[ConcurrencyMode] | type[OpenMode]] = {
    "batch": BatchMode,
    "concurrency": ConcurrencyMode,
    "open": OpenMode,
}
# An open loop without a cap may have any number in flight: so many connections are held ready for it.
_READY_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Everything the worker needs. `folder` holds the bodies, `out_dir` gets the event files.

    With `ignore_eos` an answer of fewer tokens than asked has outcome `short`; without it lengths are natural. A closed loop
    sends nothing more once `duration_ns` have passed; what is in flight then still ends. Of several workers each has its part
    of the slots (`first_slot`, then every `slot_step`th), and with `wait_for_start` it begins when it is told to.
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
    duration_ns: int | None = None
    worker: int = 0
    first_slot: int = 0
    slot_step: int = 1
    wait_for_start: bool = False

    @property
    def connections(self) -> int:
        """How many connections to hold ready. An answer that the client ends costs its connection: then there is another for
        each request in flight, so that the next one need not wait for it to be opened."""
        ends = any(request.cancel_after_tokens is not None for request in self.requests)
        return min((1 + ends) * (self.most_in_flight or _READY_CONNECTIONS), len(self.requests))

    @property
    def most_in_flight(self) -> int | None:
        """How many requests can be in flight at once; None where nothing caps them."""
        if isinstance(self.mode, BatchMode):
            return self.mode.batch
        return self.mode.slots if isinstance(self.mode, ConcurrencyMode) else self.mode.max_in_flight

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
