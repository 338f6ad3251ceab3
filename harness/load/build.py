"""From an experiment's load and encoded bodies to the plan that a load worker carries out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from backends.http_probe import ServerURL
from harness.load.plan import (
    BODIES_FILE,
    BatchMode,
    ConcurrencyMode,
    LoadPlan,
    Mode,
    OpenMode,
    RequestPlan,
    RequestTimeouts,
)
from results.clock import NS_PER_S
from results.errors import UsageError
from results.files import store_error


@dataclass(frozen=True, slots=True)
class PlannedBody:
    """A request as the parent hands it over: its id, encoded body and lengths (`input_tokens` None: a text nobody counted)."""

    id: str
    body: bytes
    input_tokens: int | None
    output_tokens: int
    slot: int | None = None
    at: int | None = None
    cancel_after_tokens: int | None = None


class LoadLike(Protocol):
    """What `build_plan` reads of any experiment's load; of an open loop also `max_in_flight`."""

    @property
    def mode(self) -> str: ...

    @property
    def value(self) -> float | None: ...

    @property
    def duration_s(self) -> float | None: ...


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


def mode_of(load: LoadLike, requests: int) -> Mode:
    """The worker's form of an experiment's load of so many requests."""
    if load.mode == "batch":
        batch = int(load.value or 1)
        return BatchMode(batch, -(-requests // batch))
    if load.mode == "concurrency":
        return ConcurrencyMode(int(load.value or 1), round((getattr(load, "think_s", None) or 0) * NS_PER_S))
    return OpenMode(getattr(load, "max_in_flight", None))


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

    Each body is on one line of JSON, each id fit for a header and used once; of an open loop each has its time, in order.
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
                where = offset, len(item.body)
                requests.append(
                    RequestPlan(
                        item.id, item.input_tokens, item.output_tokens, *where, item.slot, item.at, item.cancel_after_tokens
                    )
                )  # fmt: skip
                offset += len(item.body) + 1
    except OSError as error:
        raise store_error(folder / BODIES_FILE, error) from error
    _check_requests(load, requests)
    mode = mode_of(load, len(requests))
    limits = RequestTimeouts()
    if timeouts is not None:
        limits = RequestTimeouts(
            timeouts.connect_s, timeouts.first_token_s, timeouts.between_tokens_s, timeouts.total_s
        )
    return LoadPlan(
        target=ServerURL.parse(url),
        mode=mode,
        requests=tuple(requests),
        folder=str(folder),
        path=path,
        timeouts=limits,
        api_key_env=api_key_env,
        ignore_eos=ignore_eos,
        stream=stream,
        # The times of an open loop say themselves where it ends.
        duration_ns=None
        if load.duration_s is None or isinstance(mode, OpenMode)
        else round(load.duration_s * NS_PER_S),
    )


def _check_requests(load: LoadLike, requests: Sequence[RequestPlan]) -> None:
    if not requests:
        raise UsageError(
            f"The load ({load.mode}) sends no request at all: its time is too short for its rate or schedule."
        )
    wanted = getattr(load, "requests", None) if load.mode in ("batch", "concurrency") else None
    if wanted is not None and len(requests) != wanted:
        raise UsageError(f"The load sends {wanted} requests, but {len(requests)} bodies were given.")
    if load.mode in ("batch", "concurrency"):
        return
    times = [request.at for request in requests]
    if any(t is None for t in times) or times != sorted(t for t in times if t is not None):
        raise UsageError(f"The load ({load.mode}) needs a time for each request, in order, and {load.mode} gave none.")


def anti_lock_lengths(output_lens: Sequence[int], slots: int, seed: int) -> list[int]:
    """Output lengths with the first request of each slot shortened to a length uniform in [1, asked].

    A closed loop of equal lengths locks in phase: all requests start and end together for ever. The first `slots`
    requests are the first ones of the slots, since slots take requests in order.
    """
    draw = random.Random(seed)
    return [draw.randint(1, asked) if i < slots else asked for i, asked in enumerate(output_lens)]
