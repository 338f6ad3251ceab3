"""How long each server took to start, and with what: the phases between the moments that its session kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from results.report_background import EngineInfo, SessionInfo
from results.report_format import percent, plural, seconds

# The moment that ends a phase, what was done until then, and the style it is drawn in: pale where it is the way to the first
# answer, no work of the engine. The order is that of the legend; phases stand in that of their moments.
_PHASES: tuple[tuple[str, str, str], ...] = (
    ("log_first_line", "process and imports, until its log begins", "c7"),
    ("engine_config", "configuration", "c5"),
    ("weights_loaded", "weights", "c0"),
    ("profiled", "memory profile", "c3"),
    ("compiled", "compilation", "c1"),
    ("warmed_up", "warm-up", "c6"),
    ("kv_allocated", "memory profile, KV cache", "c2"),
    ("graphs_captured", "CUDA graphs", "c4"),
    ("engine_ready", "rest of the engine", "c7 pale"),
    ("http_ready", "HTTP server", "c3 pale"),
    ("listening", "until its port is open", "c5 pale"),
    ("ready", "until its health page is green", "c2 pale"),
    ("first_token", "until it gives a token", "c1 pale"),
    ("stop", "then nothing, until it was given up", "lost"),
)
_AT = {row[0]: at for at, row in enumerate(_PHASES)}
# A server that somebody else started is known to be ready, and by none of these.
_OF_ITS_START = _AT.keys() - {"ready", "first_token", "stop"}
# Of more sessions of an engine only so many are drawn.
_MOST = 6


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds after the launch between which a phase was; `kind` is its place in the table."""

    kind: int
    low: float
    high: float

    @property
    def words(self) -> str:
        return _PHASES[self.kind][1]

    @property
    def style(self) -> str:
        return _PHASES[self.kind][2]


@dataclass(frozen=True, slots=True)
class Start:
    """The start of one session: its phases in order, at least one."""

    name: str
    session: str
    phases: list[Phase]

    @property
    def seconds(self) -> float:
        return self.phases[-1].high

    def told(self, phase: Phase) -> str:
        """One phase in words, a line each."""
        long = phase.high - phase.low
        span = f"from {seconds(phase.low)} to {seconds(phase.high)} after the launch"
        return f"{phase.words}: {seconds(long)}\n{percent(long / self.seconds)} of the start, {span}\nsession {self.session}"


@dataclass(frozen=True, slots=True)
class Starts:
    """The starts that are drawn, engine by engine; `missing` says which are not, and why."""

    engines: list[tuple[str, list[Start]]]
    missing: list[str]

    @property
    def kinds(self) -> list[Phase]:
        """A phase of each kind that is drawn, in the order of the table."""
        found = {p.kind: p for _, starts in self.engines for s in starts for p in s.phases}
        return [found[kind] for kind in sorted(found)]

    @property
    def longest(self) -> float:
        return max((s.seconds for _, starts in self.engines for s in starts), default=0.0)

    @property
    def letters(self) -> dict[int, str]:
        """The letter of each kind that is drawn, so that phases are told apart without colour."""
        return {phase.kind: letter for phase, letter in zip(self.kinds, ascii_lowercase, strict=False)}


def starts_of(engines: Sequence[EngineInfo]) -> Starts:
    """Every start of which phases are known; of many sessions of an engine the shortest, the longest and some between."""
    shown, missing = [], []
    for engine in engines:
        found = [start for session in engine.sessions if (start := _start(session)) is not None]
        if without := len(engine.sessions) - len(found):
            missing.append(f"{engine.label}: {plural(without, 'session')} of which no phase of the start is known")
        if len(found) > _MOST:
            missing.append(
                f"{engine.label}: drawn are {_MOST} of {len(found)} starts, from the shortest to the longest evenly"
            )
            found = _spread(found)
        if found:
            shown.append((engine.label, found))
    return Starts(shown, missing)


def _spread(starts: Sequence[Start]) -> list[Start]:
    """`_MOST` of them by even ranks of their length, in the order they came."""
    order = sorted(range(len(starts)), key=lambda at: starts[at].seconds)
    kept = {order[round(rank * (len(order) - 1) / (_MOST - 1))] for rank in range(_MOST)}
    return [start for at, start in enumerate(starts) if at in kept]


def _start(session: SessionInfo) -> Start | None:
    """None where no phase is told. A log's own stamps may be to the second: one that seems to lie before the launch or after the
    first token ends no phase."""
    at = dict(session.timeline)
    if "spawn" not in at or not _OF_ITS_START & at.keys():
        return None
    if "first_token" in at:
        at.pop("stop", None)
    known = {event: t for event, t in at.items() if event in _AT}
    end = at.get("first_token", max(known.values()))
    phases: list[Phase] = []
    before = 0.0
    for moment, kind in sorted((t - at["spawn"], _AT[event]) for event, t in known.items() if t <= end):
        if moment > before:
            phases.append(Phase(kind, before, moment))
            before = moment
    return Start(f"block {session.block}", session.id, phases) if phases else None
