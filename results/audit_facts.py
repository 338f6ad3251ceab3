"""What a fairness audit looks at: what each engine of a run tells of its settings, and what the measured cells asked of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ENDPOINT, LOG, FIXED, ASKED, COMPUTED, UNKNOWN = "endpoint", "log", "fixed", "asked", "computed", "unknown"


@dataclass(frozen=True, slots=True)
class Told:
    """A value and who said so: `endpoint`, `log`, `fixed` (the engine knows no other), `asked` (never read back),
    `computed` (from others that were told) or `unknown`. `also` holds what other sessions of the engine told instead."""

    value: Any = None
    source: str = UNKNOWN
    also: tuple[Any, ...] = ()

    @property
    def known(self) -> bool:
        """One value, the same in every session."""
        return self.source != UNKNOWN and not self.also


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine: settings by name as its last session ran with them, what was asked of it, and raw words given to it
    (flags, environment), which are settings too. An `attached` server was set by somebody else, a `tuned` engine by a search."""

    label: str
    backend: str
    settings: Mapping[str, Told]
    versions: Mapping[str, str]
    asked: Mapping[str, Any] = field(default_factory=dict)
    raw: tuple[str, ...] = ()
    attached: bool = False
    tuned: bool = False

    def told(self, *names: str) -> Told:
        """The first of these names that the engine tells; one that was read back before one that was only asked."""
        found = [self.settings[name] for name in names if name in self.settings]
        return next((t for t in found if t.source != ASKED), found[0] if found else Told())


def engine_facts(
    experiment: Mapping[str, Any],
    sessions: Iterable[Mapping[str, Any]],
    cells: Iterable[Mapping[str, Any]],
    tuned: Collection[str] = (),
) -> list[EngineFacts]:
    """Every engine that was asked for, in the experiment's order, then any other that has a session. `tuned` are the labels of
    those that a search has set; one that the experiment does not name is a trial of a search.

    Sessions come oldest first. One that told no settings (it never became ready) is passed over. What only the cells'
    server samples tell (the KV pool) is added from there.
    """
    specs = {str(e.get("label")): e for e in experiment.get("engines") or [] if isinstance(e, Mapping)}
    by_engine: dict[str, list[Mapping[str, Any]]] = {label: [] for label in specs}
    for session in sessions:
        if session.get("engine"):
            by_engine.setdefault(str(session["engine"]), []).append(session)
    sampled: dict[str, dict[str, Told]] = {}
    for cell in cells:
        sampled.setdefault(str(cell.get("engine")), {}).update(_sampled(cell))
    found = []
    for label, own in by_engine.items():
        spec, last = specs.get(label, {}), own[-1] if own else {}
        told = _settings([s["settings"] for s in own if isinstance(s.get("settings"), Mapping) and s["settings"]])
        env = spec.get("env")
        found.append(
            EngineFacts(
                label=label,
                backend=str(last.get("backend") or spec.get("backend") or "unknown"),
                settings=_best(sampled.get(label, {}), told),
                versions={str(k): str(v) for k, v in (last.get("versions") or {}).items()},
                asked=dict(last.get("asked") or {}),
                raw=(
                    *(str(word) for word in spec.get("options") or []),
                    *(f"{k}={v}" for k, v in (env.items() if isinstance(env, Mapping) else ())),
                ),
                attached=bool(spec.get("url")),
                tuned=label in tuned or bool(specs and label not in specs),
            )
        )
    return found


def _settings(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Told]:
    """Settings of the last session; where an earlier one told another value, that one too."""
    found: dict[str, Told] = {}
    for settings in sessions:
        for name, entry in settings.items():
            if not isinstance(entry, Mapping) or entry.get("value") is None:
                continue
            value, before = entry["value"], found.get(name)
            earlier = () if before is None else tuple(v for v in (*before.also, before.value) if v != value)
            found[str(name)] = Told(value, str(entry.get("source") or UNKNOWN), earlier)
    return found


def _best(sampled: Mapping[str, Told], told: Mapping[str, Told]) -> dict[str, Told]:
    """What the server's metrics say is read back, and so better than what was only asked."""
    return {**sampled, **{name: t for name, t in told.items() if t.source != ASKED or name not in sampled}}


def _sampled(cell: Mapping[str, Any]) -> dict[str, Told]:
    server, arithmetic = cell.get("server") or {}, cell.get("arithmetic") or {}
    told = {
        "kv_cache_bytes": Told(server.get("kv_pool_bytes"), ENDPOINT),
        "kv_cache_tokens": Told(server.get("kv_capacity_tokens"), ENDPOINT),
        "kv_bytes_per_token": Told(arithmetic.get("kv_bytes_per_token"), COMPUTED),
    }
    return {name: t for name, t in told.items() if t.value is not None}


@dataclass(frozen=True, slots=True)
class Ask:
    """What one cell asks at the most: this many requests together, of up to these many tokens in and out."""

    together: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What the measured cells asked of the engines. INVALID cells are no measurement and are left out.

    `asks` is None where a cell bounds neither its lengths nor how many requests are together (a rate, an open-ended data
    set): then nothing can be said not to matter. `peak_tokens` is the largest number of tokens seen in the KV cache at once,
    `realised` the largest mean of what ran together in a cell.
    """

    asks: tuple[Ask, ...] | None
    mixed: bool
    unique_prompts: bool
    prefix_hits: float | None
    preemptions: float | None
    peak_tokens: float | None
    realised: float | None = None

    @property
    def together(self) -> int | None:
        """Most requests in the engine at once."""
        return max(a.together for a in self.asks) if self.asks else None

    @property
    def loads(self) -> list[int]:
        return sorted({a.together for a in self.asks or ()})

    @property
    def longest(self) -> int | None:
        """Longest context, prompt and output together."""
        return max(a.input_tokens + a.output_tokens for a in self.asks) if self.asks else None

    @property
    def longest_prompt(self) -> int | None:
        return max(a.input_tokens for a in self.asks) if self.asks else None

    @property
    def prompt_tokens(self) -> int | None:
        """Most prompt tokens that can wait for one step."""
        return max(a.together * a.input_tokens for a in self.asks) if self.asks else None

    def kv_tokens(self, block: int) -> int | None:
        """Most tokens that can be in the KV cache, in whole blocks."""
        if not self.asks:
            return None
        return max(a.together * -(-(a.input_tokens + a.output_tokens) // block) * block for a in self.asks)


def demand(cells: Iterable[Mapping[str, Any]]) -> Demand:
    """What these cells of summary.json asked for."""
    used = [c for c in cells if c.get("verdict") != "INVALID"]
    asks = [_ask(c) for c in used]
    bounded = [a for a in asks if a is not None]
    server = [c.get("server") or {} for c in used]
    return Demand(
        asks=tuple(bounded) if used and len(bounded) == len(asks) else None,
        # A batch is prefilled and then decoded; under any other load new prompts arrive beside running decodes.
        mixed=any((c.get("load") or {}).get("mode") != "batch" for c in used),
        unique_prompts=bool(used) and all((c.get("workload") or {}).get("type") == "random" for c in used),
        prefix_hits=_most(s.get("prefix_hits") for s in server),
        preemptions=_most(s.get("preemptions") for s in server),
        peak_tokens=_most((c.get("arithmetic") or {}).get("kv_tokens_predicted") for c in used),
        realised=_most((c.get("batch") or {}).get("realised") for c in used),
    )


def _ask(cell: Mapping[str, Any]) -> Ask | None:
    load, workload = cell.get("load") or {}, cell.get("workload") or {}
    mode = load.get("mode")
    together = load.get("value", load.get(str(mode))) if mode in ("batch", "concurrency") else None
    lengths = [_longest(workload.get(name)) for name in ("input_len", "output_len")]
    given, wanted = lengths
    if workload.get("type", "random") != "random":  # its prompts are longer than the length that is named
        given = None
    if not isinstance(together, int) or given is None or wanted is None:
        return None
    return Ask(together, given, wanted)


def _longest(length: Any) -> int | None:
    if isinstance(length, Mapping):
        length = length.get("tokens", length.get("high"))
    return length if isinstance(length, int) else None


def _most(values: Iterable[Any]) -> float | None:
    return max((float(v) for v in values if isinstance(v, int | float)), default=None)
