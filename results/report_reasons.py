"""The reasons of a run, gathered by code and severity: a sentence once, with the cells it was said of and what is their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.report_format import listed
from results.report_shapes import SEVERITIES, ReasonRow

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class EvidenceGroup:
    """Cells of which the same was seen. `text` is the sentence of the first; where their numbers differ `cells` hold the sentence
    of each, else nothing beside the name."""

    text: str
    cells: list[tuple[str, str]]

    @property
    def alike(self) -> bool:
        return not any(own for _, own in self.cells)

    def named(self, most: int = 3) -> str:
        """The cells of which `text` is said: the first ones by name; the first alone where each has numbers of its own."""
        if self.alike:
            return listed([label for label, _ in self.cells], most)
        rest = len(self.cells) - 1
        return (
            f"{self.cells[0][0]} ({rest} more {'has numbers of its own' if rest == 1 else 'have numbers of their own'})"
        )


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
    """The evidence of a row, each sentence once; sentences that differ in nothing but numbers are one group."""
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for label, text in row.evidence:
        groups.setdefault(tuple(_NUMBER.split(text)), []).append((label, text))
    return [_group(members) for members in groups.values()]


def _group(members: Sequence[tuple[str, str]]) -> EvidenceGroup:
    alike = len({text for _, text in members}) == 1
    return EvidenceGroup(members[0][1], [(label, "" if alike else text) for label, text in members])
