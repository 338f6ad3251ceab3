"""What the answer is made of: sentences, and the facts they are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from results.report_background import EngineInfo
from results.report_format import number
from results.report_readings import Readings
from results.report_shapes import CellRow, Line, MemoryRow, ReasonRow

SUSPECT_TOO = "from SUSPECT cells"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One statement, filed under a topic. `caution` marks what limits the others; `code` is the reason it tells of.

    `detail` holds what stands under it where there is no section of its own for it (terminal, Markdown).
    """

    topic: str
    text: str
    caution: bool = False
    code: str = ""
    detail: tuple[str, ...] = ()


def no_kind(a: str, b: str) -> str | None:
    """Nobody asked whether two engines give the same tokens."""
    return None


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What the sentences are made from. `kind_of` two labels: the class of their tokens (`near-tie`), None for unknown.
    `blocks` were measured of `blocks_asked`. `verdicts`: what the comparison says of each other engine, by its label, where there
    is more than one block; `search`: the cells are trials of a tuning; `sure`: how narrow intervals are, and what meets the objectives."""

    model: str
    machine: str | None
    engines: Sequence[EngineInfo]
    cells: Sequence[CellRow]
    lines: Sequence[Line]
    reasons: Sequence[ReasonRow]
    memory: Sequence[MemoryRow]
    planned: int
    blocks: int
    alike: Sentence | None = None
    readings: Readings = field(default_factory=Readings)
    tokens: Sentence | None = None
    limits: Sentence | None = None
    kind_of: Callable[[str, str], str | None] = no_kind
    verdicts: Sequence[tuple[str, str]] = ()
    blocks_asked: int = 1
    search: bool = False
    sure: Sequence[Sentence] = ()


def several(facts: AnswerFacts) -> bool:
    """Whether engines must be named."""
    return len(facts.engines) > 1


def span(values: Sequence[float]) -> str:
    """`4.05`, `4.05 to 10.3`."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def said(topic: str, clauses: Sequence[str]) -> list[Sentence]:
    """The clauses as one sentence."""
    text = "; ".join(clauses)
    caution = SUSPECT_TOO in text
    return [Sentence(topic, f"{text[:1].upper()}{text[1:]}.", caution)] if text else []
