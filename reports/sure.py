"""What stands in the section on how sure the report is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.comparison import closing_sentences, pareto_sentence, table_rows
from results.comparison import Comparison, Row
from results.comparison_pareto import pareto
from results.comparison_words import how_words, interval_words, place_words, row_notes, verdict_sentence
from results.precision import width_words
from results.report_data import ReportData
from results.report_format import UNKNOWN, count, listed, number
from results.report_shapes import load_words
from results.report_sure import Level


def sure_context(data: ReportData) -> dict[str, Any]:
    """All that the template needs, in words."""
    return {
        "comparisons": [_comparison(c) for c in data.sure.comparisons],
        "pareto": pareto_sentence(pareto(data.points)) if data.sure.comparisons else "",
        "levels": [_level(level) for level in data.sure.levels],
        "slo": _slo(data.sure.slo) if data.sure.slo else None,
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "sentence": verdict_sentence(comparison),
        "names": f"{comparison.other} against {comparison.base}",
        "how": how_words(comparison),
        "rows": [_row(row) for row in table_rows(comparison)],
        "lines": closing_sentences(comparison),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "place": place_words(row),
        "ratio": UNKNOWN if row.ratio is None else f"{row.ratio:.3f}",
        "interval": interval_words(row),
        "blocks": count(row.n_blocks),
        "finds": UNKNOWN if row.mde is None else f"{100 * row.mde:.1f} %",
        "verdict": row.verdict,
        "suspect": row.suspect,
        "notes": row_notes(row),
    }


def _level(level: Level) -> dict[str, Any]:
    found = level.interval
    notes = [found.refused] if found.refused else []
    notes += [f"{n} {words}" for n, words in ((level.suspect, "SUSPECT"), (level.invalid, "INVALID, left out")) if n]
    return {
        "engine": level.engine,
        "workload": level.workload,
        "load": level.load,
        "mean": number(found.estimate),
        "interval": f"{number(found.low)} to {number(found.high)}" if found.known else UNKNOWN,
        "width": width_words(level.width),
        "blocks": count(found.n),
        "suspect": level.suspect,
        "notes": "; ".join(notes),
    }


def _slo(slo: Mapping[str, Any]) -> dict[str, Any]:
    joint = f", and {100 * slo['share']:g} % of the requests all limits" if slo.get("share") else ""
    return {
        "asked": f"Objectives: {listed([str(t) for t in slo.get('objectives') or []], 6)}{joint}",
        "points": [
            {
                "engine": p["engine"],
                "workload": p["workload"],
                "verdict": p["verdict"],
                "load": UNKNOWN if p["highest"] is None else load_words(str(p["mode"]), float(p["highest"])),
                "output": number(p["output_tokens_per_s"]),
                "requests": number(p["requests_per_s"]),
                "suspect": p["suspect"],
                "why": p["why"],
            }
            for p in slo.get("points") or []
        ],
    }
