"""The background of a run: engines with their settings and start-up, the machine, and how to do it again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.metrics import METRICS
from results.records import last_told
from results.report_format import size

SOURCE_WORDS = {
    "endpoint": "read from the server",
    "log": "read from its log",
    "fixed": "fixed: the engine knows no other",
    "asked": "only asked for, not read back",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as the engine ran with it, what was asked (None: its own default), and where the value was read.

    `differs`: the engine runs with something other than what was asked.
    """

    name: str
    asked: str | None
    value: str
    source: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One server's life: `timeline` holds (event, seconds since the first event)."""

    id: str
    block: int
    timeline: list[tuple[str, float]]
    exit_code: int | None
    ended: bool
    failure: str | None


@dataclass(slots=True)
class EngineInfo:
    """An engine of the experiment; settings are those of its last session that told any."""

    label: str
    backend: str
    settings: list[Setting] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    sessions: list[SessionInfo] = field(default_factory=list)
    # What its sessions were started with that nobody asked for, in words.
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fact:
    """A line about the environment, in one of its groups."""

    group: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric as it is defined here."""

    id: str
    words: str
    unit: str
    better: str
    needs: str = ""


def definitions() -> list[Definition]:
    """The metric table, in words."""
    return [Definition(m.id, m.words, m.unit, str(m.direction), _needs(m.needs)) for m in METRICS]


# What the tables show beside the metrics: where they come from is told with them.
_OTHERS: dict[str, str] = {
    "batch_realised": "Requests that were really in the engine together, a mean over time; the load that was offered is another "
    "number",
    "kv_bytes_engine": "Bytes of the KV cache that hold tokens at their most, as the engine says",
    "device_bandwidth_gb_per_s": "Bytes a second of the device's memory, from its own counter and the clock of the moment",
    "device_bandwidth_fraction": "The share of time the device's memory moved data, of its peak",
    "device_power_w": "Power of the whole board, a mean over time",
    "device_energy_j_per_token": "Energy of the device's counter over the output tokens of the same span",
    "device_sm_clock_mhz": "Clock of the arithmetic units, a mean over time",
    "device_memory_bytes": "Memory in use on the device at its most",
}


def definition(measure: str) -> str:
    """What a measure of the tables is, for one who points at its name; empty where there is nothing to add."""
    if measure in _OTHERS:
        return f"{_OTHERS[measure]}."
    name, _, point = measure.rpartition("_")
    known = {m.id: m for m in METRICS}
    if measure in known:
        return f"{known[measure].words}."
    if name in known and point[:1] == "p" and point[1:].isdigit():
        return f"{known[name].words}. {point}: {point[1:]} % of the requests had at most this."
    return ""


def _needs(names: Sequence[str]) -> str:
    """`requests, chunks, steps where told`."""
    return ", ".join(f"{name[:-1]} where told" if name.endswith("?") else name for name in names)


def engine_infos(
    order: Sequence[str], summaries: Sequence[Mapping[str, Any]], sessions: Sequence[Mapping[str, Any]]
) -> list[EngineInfo]:
    """One entry an engine, in the experiment's order; engines that never got a session have no settings."""
    by_label = {str(s.get("label")): s for s in summaries}
    infos = []
    for label in order:
        own = [s for s in sessions if s.get("engine") == label]
        last = last_told(own)
        known = by_label.get(label, {})
        infos.append(
            EngineInfo(
                label=label,
                backend=str(last.get("backend") or known.get("backend") or "unknown"),
                settings=_settings(last.get("settings") or known.get("settings") or {}, last.get("asked") or {}),
                versions={str(k): str(v) for k, v in (last.get("versions") or known.get("versions") or {}).items()},
                sessions=[_session(s) for s in own],
                notes=list(dict.fromkeys(str(note) for s in own for note in s.get("notes") or [])),
            )
        )
    return infos


def _settings(resolved: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Setting]:
    rows = []
    for name in sorted({*resolved, *asked}):
        found = resolved.get(name)
        value, source = (found.get("value"), found.get("source")) if isinstance(found, Mapping) else (found, None)
        wanted = _text(asked[name]) if name in asked else None
        if found is None:
            value, source = asked[name], "asked"
        differs = wanted not in (None, "auto", _text(value))
        words = SOURCE_WORDS.get(str(source), str(source))
        rows.append(Setting(str(name), wanted, _setting_text(str(name), value), words, differs))
    return rows


def told_apart(settings: Sequence[Setting]) -> tuple[list[Setting], list[Setting]]:
    """(asked for or differing, differing first; what nobody asked for)."""
    asked = [s for s in settings if s.asked is not None or s.differs]
    return sorted(asked, key=lambda s: not s.differs), [s for s in settings if s not in asked]


def _setting_text(name: str, value: Any) -> str:
    text = _text(value)
    return f"{text} ({size(value)})" if name.endswith("_bytes") and isinstance(value, int) else text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _session(session: Mapping[str, Any]) -> SessionInfo:
    stamps = sorted((int(v), str(k)) for k, v in (session.get("timeline") or {}).items() if isinstance(v, int))
    failure = session.get("failure")
    return SessionInfo(
        id=str(session.get("id")),
        block=int(session.get("block") or 0),
        timeline=[(name, (stamp - stamps[0][0]) / 1e9) for stamp, name in stamps],
        exit_code=session.get("exit_code"),
        ended=session.get("ended") is not None,
        failure=": ".join(str(v) for v in failure.values() if v) if isinstance(failure, Mapping) else None,
    )


def environment(manifest: Mapping[str, Any]) -> list[Fact]:
    """Host, device, model, packages and git of the manifest, flattened; what is unknown is left out unless it says why."""
    facts = []
    for group in ("host", "device", "packages", "git"):
        content = manifest.get(group)
        if not isinstance(content, Mapping):
            continue
        for name, value in content.items():
            if value is None or value == []:
                continue
            if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
                facts += [Fact(group, str(item.get("uuid")), _device_text(item)) for item in value]
                continue
            facts.append(Fact(group, str(name).removesuffix("_bytes").replace("_", " "), _fact_text(str(name), value)))
    model = manifest.get("model")
    if isinstance(model, Mapping):
        names = {"name": "name", "folder": "folder", "source": "weights from"}
        facts += [Fact("model", words, str(model[k])) for k, words in names.items() if model.get(k)]
        config = model.get("config")
        if isinstance(config, Mapping):
            facts += [Fact("model", str(k).replace("_", " "), _text(v)) for k, v in config.items() if _is_plain(v)]
    return facts


def _device_text(item: Mapping[str, Any]) -> str:
    """A board's line: what it is, and what its figures depend on."""
    memory, limit = item.get("memory_total_bytes"), item.get("power_limit_w")
    bits, clock = item.get("memory_bus_bits"), item.get("memory_clock_max_mhz")
    parts = [str(item.get("name"))]
    parts += [size(memory)] if isinstance(memory, int) else []
    parts += [f"{bits} bit at {clock} MHz"] if bits and clock else []
    parts += [f"limit {limit:g} W"] if isinstance(limit, int | float) else []
    parts += ["MIG"] if item.get("mig") or item.get("parent") else []
    return ", ".join(parts)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool) or (isinstance(value, list) and len(value) <= 3)


def _fact_text(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_text(v) for v in value)
    return _text(value)
