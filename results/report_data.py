"""ReportData: everything a report shows of a run, as plain data. It feeds HTML, Markdown and terminal alike.

A *cell row* is one cell as measured. A *point* is one (engine, workload, load) over all its blocks; INVALID cells are kept
out of its numbers. A *line* is the points of one engine and workload in the order of their load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results.audit import Audit, audit_run
from results.exports import gpus_of
from results.files import read_json
from results.planned import SEARCH, planned_blocks, planned_cells
from results.report_again import Reproduction, reproduction
from results.report_answer import answer
from results.report_audit import audit_sentence
from results.report_background import (
    Definition,
    EngineInfo,
    Fact,
    definitions,
    engine_infos,
    environment,
)
from results.report_device import DeviceReport, device_report
from results.report_headlines import Headline, headlines
from results.report_limits import LimitReport, limit_report, limits_sentence
from results.report_matrix import Matrix, matrix_of
from results.report_measures import MEASURE, Value, over_blocks, read_cell
from results.report_readings import Readings, readings_of, shown_scope
from results.report_reasons import reason_rows
from results.report_sentences import AnswerFacts, Sentence, no_kind
from results.report_shapes import (
    VERDICTS,
    CellRow,
    Line,
    MemoryRow,
    Point,
    ReasonRow,
    WorkloadInfo,
    workload_info,
    workload_key,
)
from results.report_skipped import skipped_sentences
from results.report_sure import Sure, comparison_sentences, sure_of
from results.report_times import TimeReport, time_report
from results.report_verify import SameTokens, same_tokens, tokens_sentence
from results.report_why import decisions
from results.store import RunStore
from results.summary import build_summary, session_records


@dataclass(slots=True)
class ReportData:
    """One run, ready to be shown. `scope` says which part of each cell the numbers cover: `whole` or `window`; `path` is how a
    command names the run from here; where it lies elsewhere, that is left to the reader (a report is nobody's map of a machine)."""

    run: str
    path: str
    title: str
    model: str
    weights: str | None
    started: str | None
    scope: str
    blocks: int
    planned: int
    verdicts: dict[str, int]
    answer: list[Sentence]
    engines: list[EngineInfo]
    workloads: list[WorkloadInfo]
    lines: list[Line]
    cells: list[CellRow]
    reasons: list[ReasonRow]
    headlines: list[Headline]
    memory: list[MemoryRow]
    environment: list[Fact]
    reproduction: Reproduction
    definitions: list[Definition] = field(default_factory=list)
    audit: Audit | None = None
    readings: Readings = field(default_factory=Readings)
    tokens: SameTokens | None = None
    sure: Sure = field(default_factory=Sure)
    device: DeviceReport = field(default_factory=DeviceReport)
    limits: LimitReport = field(default_factory=LimitReport)
    times: TimeReport = field(default_factory=TimeReport)
    matrix: Matrix = field(default_factory=Matrix)

    @property
    def points(self) -> list[Point]:
        return [point for line in self.lines for point in line.points]

    @property
    def usable(self) -> int:
        """Cells that are not INVALID."""
        return len(self.cells) - self.verdicts.get("INVALID", 0)


def load_report_data(store: RunStore, summary: Mapping[str, Any] | None = None) -> ReportData:
    """Everything a report needs of the run in `store`; its summary.json is used where it covers every committed cell."""
    found = summary if summary is not None else _summary(store)
    manifest, experiment, sessions = store.manifest, store.experiment, list(session_records(store).values())
    cells: list[Mapping[str, Any]] = list(found.get("cells", []))
    scope, readings = shown_scope(cells), readings_of(cells)
    workloads = _workloads(cells)
    gpus = {str(e.get("label")): gpus_of(e.get("settings") or {}) for e in found.get("engines", [])}
    order = [str(e.get("label")) for e in experiment.get("engines", []) if isinstance(e, Mapping)]
    order += [e for e in dict.fromkeys(str(c.get("engine")) for c in cells) if e not in order]
    rows = sorted(
        (_cell_row(cell, workloads, scope, readings, gpus.get(str(cell.get("engine")))) for cell in cells),
        key=lambda r: (order.index(r.engine), r.workload.index, r.load_mode, r.load_value, r.block),
    )
    blocks = len({row.block for row in rows})
    for row in rows:
        row.among_blocks = blocks > 1
    records = {record.id: record for record in store.cells()}
    lines = _lines(rows)
    reasons = reason_rows(cells, {row.id: row.label for row in rows})
    model = str(_model_name(manifest, experiment))
    verdicts = Counter(row.verdict for row in rows)
    planned = planned_cells(manifest, experiment) or 0
    engines = engine_infos(order, list(found.get("engines", [])), sessions)
    facts = environment(manifest)
    memory = _memory(lines)
    audit = audit_run(experiment, sessions, cells, manifest)
    tokens = same_tokens(store.path, order, sessions, cells)
    limits = limit_report(cells, lines)
    limits.decisions = decisions(store.path, {row.id: row.label for row in rows})
    sure = sure_of(store.name, found, experiment, rows, blocks)
    words = answer(
        AnswerFacts(
            model=model,
            machine=next((f.value for f in facts if f.group == "host" and f.name == "cpu"), None),
            engines=engines,
            cells=rows,
            lines=lines,
            reasons=reasons,
            memory=memory,
            planned=planned,
            blocks=blocks,
            blocks_asked=planned_blocks(manifest, experiment) or 1,
            search=manifest.get(SEARCH) is True,
            alike=audit_sentence(audit) if audit else None,
            readings=readings,
            tokens=tokens_sentence(tokens) if tokens or len(engines) > 1 else None,
            limits=limits_sentence(limits),
            kind_of=tokens.kind_of if tokens else no_kind,
            verdicts=comparison_sentences(sure, blocks),
            sure=sure.sentences,
        )
    )
    return ReportData(
        run=str(found.get("run") or store.name),
        path=_path(store.path),
        title=_title(model, order),
        model=model,
        weights=_weights(manifest),
        started=_started(manifest),
        scope=scope,
        blocks=blocks,
        planned=planned,
        verdicts={v: verdicts[v] for v in VERDICTS if verdicts[v]},
        answer=[*words, *skipped_sentences(found.get("skipped") or [])],
        engines=engines,
        workloads=list(workloads.values()),
        lines=lines,
        cells=rows,
        reasons=reasons,
        headlines=headlines([p for line in lines for p in line.points], memory, reasons, sure.slo, sure.comparisons),
        memory=memory,
        environment=facts,
        reproduction=reproduction(store, sessions, order, rows, records),
        definitions=definitions(),
        audit=audit,
        readings=readings,
        tokens=tokens,
        sure=sure,
        limits=limits,
        device=device_report(cells, lines, {row.id: row.label for row in rows}),
        times=time_report(store, rows, cells, scope, records),
        matrix=matrix_of(
            [e for e in order if any(x.engine == e for x in lines)], lines, sure.comparisons, audit, tokens
        ),
    )


def _summary(store: RunStore) -> Mapping[str, Any]:
    path = store.path / "summary.json"
    if path.is_file():
        summary: dict[str, Any] = read_json(path)
        committed = {path.parent.name for path in (store.path / "cells").glob("*/cell.json")}
        if committed <= {c.get("id") for c in summary.get("cells", [])}:
            return summary
    return build_summary(store)


def _model_name(manifest: Mapping[str, Any], experiment: Mapping[str, Any]) -> Any:
    model = manifest.get("model")
    named = model.get("name") if isinstance(model, Mapping) else model
    return named or experiment.get("model") or "unknown model"


def _weights(manifest: Mapping[str, Any]) -> str | None:
    """Where weights that were made or converted here come from; None for others."""
    model = manifest.get("model")
    source = model.get("source") if isinstance(model, Mapping) else None
    return str(source) if source else None


def _title(model: str, engines: Sequence[str]) -> str:
    if len(engines) > 3:
        return f"{model} on {len(engines)} engines"
    return f"{model} on {' and '.join(engines)}" if engines else model


def _started(manifest: Mapping[str, Any]) -> str | None:
    start = manifest.get("start")
    wall = start.get("wall_ns") if isinstance(start, Mapping) else None
    if not isinstance(wall, int):
        return None
    return datetime.fromtimestamp(wall / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _workloads(cells: Iterable[Mapping[str, Any]]) -> dict[str, WorkloadInfo]:
    found = {workload_key(c.get("workload") or {}): c.get("workload") or {} for c in cells}
    infos = sorted(
        (workload_info(w) for w in found.values()), key=lambda i: (i.input_tokens or 0, i.output_tokens or 0, i.key)
    )
    return {info.key: info.numbered(index) for index, info in enumerate(infos)}


def _path(folder: Path) -> str:
    """From where the command is run, if the run lies below; else a name to be completed."""
    whole, here = folder.resolve(), Path.cwd()
    return whole.relative_to(here).as_posix() if whole.is_relative_to(here) else f"PATH/TO/{whole.name}"


def _cell_row(
    cell: Mapping[str, Any],
    workloads: Mapping[str, WorkloadInfo],
    scope: str,
    readings: Readings,
    gpus: int | None,
) -> CellRow:
    workload = workloads[workload_key(cell.get("workload") or {})]
    load = cell.get("load") or {}
    mode, value = str(load.get("mode") or "unknown"), load.get("value", load.get(str(load.get("mode")), 0))
    issued = (cell.get("requests") or {}).get("by_outcome") or {}
    return CellRow(
        id=str(cell.get("id")),
        engine=str(cell.get("engine")),
        workload=workload,
        load_mode=mode,
        load_value=float(value) if isinstance(value, int | float) else 0.0,
        block=int(cell.get("block") or 0),
        session=str(cell.get("session") or ""),
        verdict=str(cell.get("verdict") or "SUSPECT"),
        codes=[str(r.get("code")) for r in cell.get("reasons") or []],
        outcomes={str(k): int(v) for k, v in issued.items() if isinstance(v, int) and v},
        values=read_cell(cell, scope, readings, gpus),
        coalesced=bool((cell.get("client") or {}).get("coalesced_events")),
    )


def _lines(rows: Sequence[CellRow]) -> list[Line]:
    groups: dict[tuple[str, str, str], dict[float, list[CellRow]]] = {}
    for row in rows:
        groups.setdefault((row.engine, row.workload.key, row.load_mode), {}).setdefault(row.load_value, []).append(row)
    lines = []
    for (engine, _, mode), by_load in groups.items():
        workload = next(iter(by_load.values()))[0].workload
        points = [_point(by_load[value]) for value in sorted(by_load)]
        lines.append(Line(engine, workload, mode, points))
    return lines


def _point(rows: Sequence[CellRow]) -> Point:
    usable = [row for row in rows if row.verdict != "INVALID"]
    shown = usable or list(rows)
    first = rows[0]
    verdict = max((row.verdict for row in shown), key=VERDICTS.index)
    none = {k: Value(None, why="every block is INVALID" if len(rows) > 1 else "the cell is INVALID") for k in MEASURE}
    return Point(
        engine=first.engine,
        workload=first.workload,
        load_mode=first.load_mode,
        load_value=first.load_value,
        verdict=verdict,
        blocks=len(usable),
        blocks_invalid=len(rows) - len(usable),
        codes=sorted({code for row in rows for code in row.codes}),
        values={k: over_blocks([row.values[k] for row in usable]) for k in MEASURE} if usable else none,
        coalesced=any(row.coalesced for row in usable),
    )


def _memory(lines: Iterable[Line]) -> list[MemoryRow]:
    """Points for which the formula or the engine says how many bytes the KV cache held."""
    return [
        MemoryRow(point, point.values["kv_bytes_predicted"], point.values["kv_bytes_engine"])
        for line in lines
        for point in line.points
        if point.values["kv_bytes_predicted"].known or point.values["kv_bytes_engine"].known
    ]
