"""What a report shows of the experiments of `dyno why`: one resource changed at a time, and how throughput followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.errors import StoreError
from results.files import read_json
from results.report_format import UNKNOWN


@dataclass(frozen=True, slots=True)
class Followed:
    """One resource of an experiment of `dyno why`: what was changed, and how throughput followed (d ln T / d ln R)."""

    resource: str
    change: str
    effect: str
    elasticity: str
    pairs: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What `dyno why` found for a cell."""

    cell: str
    words: str
    rows: list[Followed]
    left_out: list[str]


def decisions(folder: Path, names: Mapping[str, str]) -> list[Decision]:
    """What `dyno why` found in the run in `folder`, for cells whose label `names` holds by id; a file that cannot be read tells
    nothing."""
    found = []
    for path in sorted((folder / "why").glob("*/why.json")):
        try:
            document = read_json(path)
        except StoreError:
            continue
        if isinstance(document, Mapping) and str(document.get("cell")) in names:
            found.append(_decision(names[str(document["cell"])], document))
    return found


def _decision(label: str, document: Mapping[str, Any]) -> Decision:
    rows = [_followed(e) for e in document.get("elasticities") or [] if isinstance(e, Mapping)]
    left_out = [
        f"{n.get('resource')}: {n.get('why')}" for n in document.get("left_out") or [] if isinstance(n, Mapping)
    ]
    words = str(document.get("words") or "")
    return Decision(label, f"{words[:1].upper()}{words[1:]}", rows, left_out)


def _followed(e: Mapping[str, Any]) -> Followed:
    def plain(name: str, form: str, scale: float = 1.0) -> str:
        value = e.get(name)
        return format(scale * value, form) if isinstance(value, int | float) else UNKNOWN

    change = plain("throughput_change", "+.1f", 100.0)
    interval = f" [{plain('low', '+.2f')}, {plain('high', '+.2f')}]" if e.get("low") is not None else ""
    return Followed(
        resource=str(e.get("resource")),
        change=f"{plain('from', '.4g')} to {plain('to', '.4g')}",
        effect=change if change == UNKNOWN else f"{change} %",
        elasticity=f"{plain('elasticity', '+.2f')}{interval}",
        pairs=int(e.get("pairs") or 0),
        verdict=str(e.get("verdict")),
    )
