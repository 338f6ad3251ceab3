"""The reasons of a run, gathered by code and severity: a sentence once, with the cells it was said of and what is their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.report_format import listed
from results.report_shapes import SEVERITIES, ReasonRow

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_UNIT = re.compile(r" ?(?:ms|s|%|[KMG]iB|tokens|requests|times)\b")


@dataclass(frozen=True, slots=True)
class EvidenceGroup:
    """Cells of which the same was seen. Where their numbers differ `text` holds `low to high`, and `cells` the numbers of
    each, in the order of the text; else they have none."""

    text: str
    cells: list[tuple[str, str]]

    def named(self, most: int = 3) -> str:
        """The first cells by name."""
        return listed([label for label, _ in self.cells], most)


def reason_rows(cells: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> list[ReasonRow]:
    """Worst first, then by how many cells have it. `labels` holds the cells' names by id, in the order of the table."""
    by_id = {str(cell.get("id")): cell for cell in cells}
    rows: dict[tuple[str, str], ReasonRow] = {}
    for id_, label in labels.items():
        for reason in by_id[id_].get("reasons") or []:
            code = str(reason.get("code"))
            words, severity, advice = (str(reason.get(k) or "") for k in ("words", "severity", "advice"))
            severity = severity or "suspect"
            row = rows.setdefault((code, severity), ReasonRow(code, words or code, severity, advice, []))
            row.evidence.append((label, str(reason.get("evidence") or "")))
    rank = {severity: index for index, severity in enumerate(SEVERITIES)}
    return sorted(rows.values(), key=lambda r: (-rank.get(r.severity, 1), -len(r.evidence), r.code))


def evidence_groups(row: ReasonRow) -> list[EvidenceGroup]:
    """The evidence of a row, each sentence once; sentences that differ in nothing but numbers are one."""
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for label, text in row.evidence:
        groups.setdefault(tuple(_NUMBER.split(text)), []).append((label, text))
    return [_group(words, members) for words, members in groups.items()]


def _group(words: tuple[str, ...], members: Sequence[tuple[str, str]]) -> EvidenceGroup:
    numbers = [_NUMBER.findall(text) for _, text in members]
    columns = list(zip(*numbers, strict=True))
    differ = [len(set(column)) > 1 for column in columns]
    text = words[0] + "".join(_range(c) + after for c, after in zip(columns, words[1:], strict=True))
    cells = []
    for (label, _), own in zip(members, numbers, strict=True):
        shown = [n + _unit(after) for n, after, d in zip(own, words[1:], differ, strict=True) if d]
        cells.append((label, ", ".join(shown)))
    return EvidenceGroup(text, cells)


def _range(column: Sequence[str]) -> str:
    low, high = (pick(column, key=lambda n: float(n.replace(",", ""))) for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _unit(after: str) -> str:
    found = _UNIT.match(after)
    return found[0] if found else ""
