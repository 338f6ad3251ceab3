"""What a report says of cells that were planned and left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from results.report_format import listed, plural
from results.report_sentences import Sentence
from results.report_shapes import load_words, workload_info

TOPIC = "Left out"


def skipped_sentences(entries: Iterable[Mapping[str, Any]]) -> list[Sentence]:
    """One sentence for the cells of an engine that were left out for the same reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        why = str((entry.get("skipped") or {}).get("words") or "no reason is known")
        load = entry.get("load") or {}
        what = f"{load_words(str(load.get('mode')), float(load.get('value') or 0))}, {workload_info(entry.get('workload') or {}).label}"
        groups.setdefault((str(entry.get("engine")), why), []).append(what)
    return [
        Sentence(
            TOPIC,
            f"{engine}: {plural(len(cells), 'cell')} without numbers ({listed(list(dict.fromkeys(cells)), 6)}), since {why}. "
            "`--try-all` runs them all the same.",
            caution=True,
        )
        for (engine, why), cells in groups.items()
    ]
