"""The cells of a run as the twin learns from them: requests, steps and token stamps of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.cell_steps import logged_steps
from results.errors import StoreError
from results.events import Requests, read_requests
from results.records import CellRecord
from results.store import RunStore
from results.truth import Steps, Tokens, read_steps, read_tokens

# Settings that change what a step costs. Two engines that differ in none of them run on the same step times.
STEP_SETTINGS = (
    *("dtype", "kv_dtype", "quantisation", "tensor_parallel", "threads", "kernels", "device"),
    *("kv_cache", "cuda_graphs", "speculative"),
)


@dataclass(frozen=True, slots=True)
class Observed:
    """One cell. `asked` is what its session was asked to set and `settings` what all of it came to; `steps` and `tokens` are those
    inside the cell."""

    record: CellRecord
    asked: Mapping[str, Any]
    settings: Mapping[str, Any]
    requests: Requests
    steps: Steps
    tokens: Tokens

    @property
    def machine(self) -> tuple[Any, ...]:
        """What the cell's step times stand for: cells with another value must not be fitted together with it."""
        return machine_of(self.record.backend, self.settings)


def machine_of(backend: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """The backend and the values of STEP_SETTINGS; None where the engine does not tell."""
    return (backend, *(settings.get(name) for name in STEP_SETTINGS))


def settings_of(session: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a session's resolved settings."""
    return {name: found.get("value") for name, found in (session.get("settings") or {}).items()}


def observe(store: RunStore, record: CellRecord, session: Mapping[str, Any]) -> Observed | str:
    """A committed cell, or why nothing can be learnt from it."""
    if record.faults:
        return f"it has a fault: {record.faults[0].evidence}"
    try:
        steps = read_steps(store.session_dir(record.session), record.started, record.ended)
        tokens = read_tokens(store.session_dir(record.session), record.started, record.ended)
        requests = read_requests(store.cell_dir(record.id))
    except StoreError as error:
        return str(error)
    if settings_of(session).get("batching") == "static-pad":
        return "its step log does not tell what was computed for finished rows"
    if steps is None:
        steps, faults = logged_steps(store.cell_dir(record.id), requests, (record.started, record.ended))
        if faults:
            return faults[0].evidence
    if steps is None or not len(steps):
        return f"engine {record.engine} keeps no log of its steps"
    none = np.zeros(0, dtype=np.int64)
    tokens = tokens if tokens is not None else Tokens(none.astype(object), none, none, none, none)
    return Observed(record, session.get("asked") or {}, settings_of(session), requests, steps, tokens)
