"""The confirmation: in fresh sessions, block by block, the best that was found beside the defaults it is to beat.

With several engines each is there three times: with its own defaults, with its best settings, and with settings that are the
same for all. They take turns at going first, so that what drifts meets all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backends.base import get_backend
from harness.experiment import Cell, EngineSpec
from harness.tune.measure import Measurement, Results
from results.audit import EQUALISED, OWN_DEFAULTS, TUNED
from results.clock import NS_PER_S, now_ns

# What is made the same, where every engine can be told it.
_EQUAL = (
    "dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "prefix_caching",
    "chunked_prefill",
    "step_log",
)

# The KV cache: the same memory where all can be told it, else the same tokens. An engine is told its size in one way.
_KV_SIZES = ("kv_cache_bytes", "kv_cache_tokens")
Refuse = Callable[[EngineSpec], str | None]


def _never(engine: EngineSpec) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Equal:
    """Settings that are the same for all engines, and what of the KV cache is not (empty: its size is among them)."""

    settings: Mapping[str, Any]
    unequal: str = ""

    def engine(self, base: EngineSpec) -> EngineSpec:
        """An engine with these settings, as far as it is to be told them."""
        can = get_backend(base.backend).settings
        told: dict[str, Any] = {name: value for name, value in self.settings.items() if name in can}
        if any(name in told for name in _KV_SIZES):
            told = {**dict.fromkeys((*_KV_SIZES, "memory_fraction")), **told}
        return base.model_copy(
            update={"label": f"{base.label}-equal", "settings": base.settings.model_copy(update=told)}
        )


@dataclass(frozen=True, slots=True)
class Entrant:
    """An engine of the confirmation: of which arm, and as what (own_defaults, tuned, equalised)."""

    arm: str
    kind: str
    engine: EngineSpec


def entrants(
    bases: Mapping[str, EngineSpec], best: Mapping[str, EngineSpec | None], equal: Equal | None
) -> list[Entrant]:
    """Who takes part. `best` holds what the search found, None where it found nothing; `equal` what is made the same."""
    found = []
    for label, base in bases.items():
        found.append(Entrant(label, OWN_DEFAULTS, base))
        if (engine := best.get(label)) is not None:
            found.append(Entrant(label, TUNED, engine))
        if equal is not None:
            found.append(Entrant(label, EQUALISED, equal.engine(base)))
    return found


def equalised(
    bases: Mapping[str, EngineSpec], told: Mapping[str, Mapping[str, Any]], refuse: Refuse = _never
) -> Equal | None:
    """What every engine can run with, by what its defaults came to (`told`, by its label); None for one engine, or where nothing
    can be made the same. The KV cache gets the smallest size in bytes, else in tokens, that no engine refuses."""
    common = equal_settings(bases, told) if len(bases) > 1 else {}
    if not common:
        return None
    refused = ""
    for name in _KV_SIZES:
        sizes = [_kv_size(name, told.get(label, {})) for label in bases]
        known = [size for size in sizes if size is not None]
        if len(known) == len(bases) and all(name in get_backend(base.backend).settings for base in bases.values()):
            equal = Equal({**common, name: min(known)})
            refused = refusal_of(equal, bases, refuse)
            if not refused:
                return equal
    return Equal(common, f"but for the KV cache ({refused})" if refused else _unequal(bases, told))


def refusal_of(equal: Equal, bases: Mapping[str, EngineSpec], refuse: Refuse) -> str:
    """Which engine cannot be started with these settings, and why; empty where all can."""
    whys = ((label, refuse(equal.engine(base))) for label, base in bases.items())
    return next((f"{label}: {why}" for label, why in whys if why), "")


def _kv_size(name: str, told: Mapping[str, Any]) -> int | None:
    tokens: int | None = told.get("kv_cache_tokens")
    each: int | None = told.get("kv_bytes_per_token")
    size: int | None = told.get("kv_cache_bytes")
    if name == "kv_cache_tokens":
        return tokens
    return size if size is not None else tokens * each if tokens and each else None


def _unequal(bases: Mapping[str, EngineSpec], told: Mapping[str, Mapping[str, Any]]) -> str:
    tokens = {label: _kv_size("kv_cache_tokens", told.get(label, {})) for label in bases}
    words = ", ".join(f"{label} {'not told' if n is None else f'{n:,} tokens'}" for label, n in tokens.items())
    return f"but for the KV cache, whose size not every engine can be told ({words})"


def equal_settings(bases: Mapping[str, EngineSpec], told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Settings that every engine can run with: of numbers the smallest of their defaults, of switches off where one has it off.
    A setting that an engine neither tells nor can be told is left out, and so is a word in which they differ."""
    found = {}
    for name in _EQUAL:
        values = [value for label in bases if (value := told.get(label, {}).get(name)) is not None]
        if len(values) < len(bases) or not all(_can(base, name) for base in bases.values()):
            continue
        fixed = {fixed[name] for base in bases.values() if name in (fixed := get_backend(base.backend).fixed)}
        if len(fixed or set(values)) == 1:
            found[name] = next(iter(fixed or values))
        elif not fixed and not any(isinstance(value, str) for value in values):
            found[name] = min(values)
    longest, budget = found.get("max_model_len"), found.get("max_num_batched_tokens")
    if found.get("chunked_prefill") is False and longest is not None and budget is not None:
        found["max_num_batched_tokens"] = max(longest, budget)  # without chunks a step takes a whole prompt
    return found


def _can(base: EngineSpec, name: str) -> bool:
    backend = get_backend(base.backend)
    return name in backend.settings or name in backend.fixed


class ConfirmPlanner:
    """`blocks` blocks of every engine. A block is begun only where the budget has room for one as long as the longest so far
    (`expected_s` before the first), and no cell once it is spent. `cut_off` tells whether that ended it, `longest_s` is that of a
    block."""

    def __init__(
        self,
        engines: Sequence[EngineSpec],
        measurement: Measurement,
        blocks: int,
        budget_s: float | None = None,
        expected_s: float = 0.0,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self._engines, self._measurement, self._blocks = engines, measurement, blocks
        self._budget_s, self._clock, self._begun, self.longest_s = budget_s, clock, clock(), expected_s
        self._block_begun: int | None = None
        self._seen = False
        self.cut_off = False

    def next_cell(self, results: Results) -> Cell | None:
        for block in range(self._blocks):
            looks = [self._measurement.look(engine, block, results) for engine in self._turns(block)]
            missing = next((look.missing for look in looks if look.missing is not None), None)
            if missing is None:
                continue
            begun = any(look.found for look in looks)
            self.cut_off = not self._fits(begun)
            return None if self.cut_off else missing
        return None

    @property
    def has_room(self) -> bool:
        """Whether the budget has room for a block, as far as is known before the first."""
        return self._budget_s is None or self.longest_s < self._budget_s

    def planned(self) -> list[Cell]:
        """The cells of every block; of a search for a load, its first question."""
        found = []
        for block in range(self._blocks):
            for engine in self._turns(block):
                results: dict[str, Mapping[str, Any]] = {}
                while (cell := self._measurement.look(engine, block, results).missing) is not None:
                    found.append(cell)
                    if self._measurement.experiment.slo is not None:
                        break
                    results[cell.id] = {}
        return found

    def _turns(self, block: int) -> list[EngineSpec]:
        shift = block % len(self._engines)
        return [*self._engines[shift:], *self._engines[:shift]]

    def _fits(self, begun: bool) -> bool:
        now = self._clock()
        spent = (now - self._begun) / NS_PER_S
        if not begun:
            if self._block_begun is not None:  # what was expected is no longer asked once a block was seen
                took = (now - self._block_begun) / NS_PER_S
                self.longest_s = max(self.longest_s, took) if self._seen else took
                self._seen = True
            self._block_begun = now
            spent += self.longest_s
        return self._budget_s is None or spent < self._budget_s
