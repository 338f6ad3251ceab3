"""One reading for one figure: where numbers that cells may have from different places are read, the same for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What a realised batch can be read from, best first, in words short enough for the axis on a phone.
BATCH_WORDS = {
    "steps": "requests running, by the engine's steps",
    "log": "requests in the engine's steps, by its log",
    "gauge": "requests running, by the engine's gauge",
    "in_flight": "requests in flight at the client",
}
PHASES = {"prefill_tokens_per_s": "prefill", "decode_tokens_per_s": "decode"}


@dataclass(frozen=True, slots=True)
class Readings:
    """`batch` is the best source of the realised batch that all cells have; `estimates` holds (measure, load mode) of the
    phase rates for which every cell has nothing in common but the client's estimate."""

    batch: str | None = None
    estimates: frozenset[tuple[str, str]] = frozenset()

    @property
    def batch_words(self) -> str:
        """For an axis or a tip."""
        return BATCH_WORDS.get(self.batch or "", (self.batch or "").replace("_", " "))

    def estimated(self, measure: str) -> bool:
        """Whether this measure is an estimate under any load of the run."""
        return any(measure == name for name, _ in self.estimates)


def readings_of(cells: Iterable[Mapping[str, Any]]) -> Readings:
    """The readings that all cells that count share."""
    usable = [c for c in cells if c.get("verdict") != "INVALID"]
    estimates = {
        (measure, mode)
        for measure, phase in PHASES.items()
        for mode in {load_mode(c) for c in usable}
        if _estimated([c for c in usable if load_mode(c) == mode], phase)
    }
    return Readings(_common([found for c in usable if (found := batch_readings(c))]), frozenset(estimates))


def shown_scope(cells: Iterable[Mapping[str, Any]]) -> str:
    """`window` when every cell that counts has one, else `whole`: two scopes are never mixed in one figure."""
    usable = [c for c in cells if c.get("verdict") != "INVALID"]
    return "window" if usable and all(isinstance(c.get("window"), Mapping) for c in usable) else "whole"


def batch_readings(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """All readings of a cell's realised batch by their source; of an older summary, the one it chose."""
    batch = cell.get("batch") or {}
    if isinstance(found := batch.get("readings"), Mapping):
        return found
    source = batch.get("realised_source")
    return {str(source): batch["realised"]} if source and batch.get("realised") is not None else {}


def load_mode(cell: Mapping[str, Any]) -> str:
    return str((cell.get("load") or {}).get("mode") or "unknown")


def phase(cell: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Where a cell read one of its phase rates; empty where it does not say."""
    found = (cell.get("phases") or {}).get(name)
    return found if isinstance(found, Mapping) else {}


def _common(readings: Sequence[Mapping[str, Any]]) -> str | None:
    shared = set(readings[0]).intersection(*readings[1:]) if readings else set()
    return next((name for name in (*BATCH_WORDS, *sorted(shared)) if name in shared), None)


def _estimated(cells: Sequence[Mapping[str, Any]], name: str) -> bool:
    sources = {source for c in cells if (source := phase(c, name).get("source"))}
    return "client" in sources or len(sources) > 1
