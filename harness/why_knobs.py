"""The resources that `dyno why` turns: which a cell has, by how much each is changed, and what it would speak for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backends.base import get_backend
from harness.experiment import Cell
from harness.loads import BatchLoad, ConcurrencyLoad

# By about so much.
STEP = 0.2


@dataclass(frozen=True, slots=True)
class Change:
    """One resource changed: the cell to run, and what the resource was and becomes."""

    resource: str
    factors: tuple[str, ...]
    before: float
    after: float
    cell: Cell


@dataclass(frozen=True, slots=True)
class NoChange:
    """A resource that is not turned, and why."""

    resource: str
    why: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What the cell was measured with: its engine's resolved settings, its summary entry, and cores of the machine."""

    cell: Cell
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    cores: int


Knob = Callable[[Measured], Change | NoChange]


def offered_load(m: Measured) -> Change | NoChange:
    """Clients that wait: a closed loop's slots rest for a fifth of the usual time of a request after each answer."""
    name, factors = "offered load", ("offered_load", "client")
    load = m.cell.load
    if isinstance(load, BatchLoad):
        more = max(load.batch + 1, round(load.batch * (1 + STEP)))
        changed = load.model_copy(update={"batch": more})
        return Change(name, factors, load.batch, more, m.cell.model_copy(update={"load": changed}))
    if not isinstance(load, ConcurrencyLoad):
        return NoChange(name, f"a load of mode {load.mode} sends at its own times: lower its rate to see")
    whole = m.summary.get("whole")
    e2e = whole.get("e2e_ms") if isinstance(whole, Mapping) else None
    usual = e2e.get("mean") if isinstance(e2e, Mapping) else None
    if not isinstance(usual, int | float) or usual <= 0:
        return NoChange(name, "how long a request takes is not known")
    already = load.think_s or 0.0
    cycle = usual / 1000 + already
    slower = load.model_copy(update={"think_s": round(already + STEP * cycle, 6)})
    return Change(name, factors, 1.0, 1.0 / (1 + STEP), m.cell.model_copy(update={"load": slower}))


def max_num_seqs(m: Measured) -> Change | NoChange:
    return _setting(m, "max_num_seqs", ("max_num_seqs",), least=1)


def token_budget(m: Measured) -> Change | NoChange:
    if m.settings.get("chunked_prefill") is False:
        return NoChange("max_num_batched_tokens", "without chunked prefill it must hold the longest prompt")
    return _setting(m, "max_num_batched_tokens", ("token_budget",), least=1)


def kv_tokens(m: Measured) -> Change | NoChange:
    """A fifth less where a request still fits, else a quarter more."""
    block, longest = m.settings.get("block_size"), m.settings.get("max_model_len")
    floor = longest if isinstance(longest, int) else m.cell.workload.longest
    return _setting(
        m,
        "kv_cache_tokens",
        ("kv_capacity", "kv_reservation"),
        least=floor,
        step=block if isinstance(block, int) else 1,
    )


def threads(m: Measured) -> Change | NoChange:
    """One more where the machine has a core for it, else one less."""
    now = m.settings.get("threads")
    if "threads" not in get_backend(m.cell.engine.backend).settings or not isinstance(now, int):
        return NoChange("threads", f"backend {m.cell.engine.backend} has no way to set them")
    other = now + 1 if now < m.cores else now - 1
    if other < 1:
        return NoChange("threads", "there is one core")
    return Change("threads", ("compute", "power"), now, other, _with(m.cell, threads=other))


KNOBS: Mapping[str, Knob] = {
    "offered load": offered_load,
    "max_num_seqs": max_num_seqs,
    "max_num_batched_tokens": token_budget,
    "kv_cache_tokens": kv_tokens,
    "threads": threads,
}


def changes_of(measured: Measured, only: list[str] | None = None) -> tuple[list[Change], list[NoChange]]:
    """Every resource that can be turned, and those that cannot with the reason."""
    found = [knob(measured) for name, knob in KNOBS.items() if not only or name in only]
    return [f for f in found if isinstance(f, Change)], [f for f in found if isinstance(f, NoChange)]


def _setting(m: Measured, name: str, factors: tuple[str, ...], least: int, step: int = 1) -> Change | NoChange:
    backend, now = get_backend(m.cell.engine.backend), m.settings.get(name)
    if not backend.capabilities.launches:
        return NoChange(name, "the server is not started by this run")
    if name not in backend.settings:
        return NoChange(name, f"backend {backend.name} has no way to set it")
    if not isinstance(now, int) or now < 1:
        return NoChange(name, "what it is was not told by the engine")
    less = int(now * (1 - STEP)) // step * step
    if now - less < step or less < least:
        less = -(-int(now / (1 - STEP)) // step) * step
        less = max(less, now + step)
    return Change(name, factors, now, less, _with(m.cell, **{name: less}))


def _with(cell: Cell, **settings: Any) -> Cell:
    """The cell with other settings of its engine, which then is another engine."""
    engine = cell.engine
    asked = engine.settings.model_copy(update=settings)
    if "kv_cache_tokens" in settings:
        asked = asked.model_copy(update={"kv_cache_bytes": None, "memory_fraction": None})
    words = ", ".join(f"{name}={value}" for name, value in settings.items())
    return cell.model_copy(
        update={"engine": engine.model_copy(update={"label": f"{engine.label[:40]}, {words}", "settings": asked})}
    )
