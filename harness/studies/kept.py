"""Studies that an earlier call measured: they stay in studies.json and on the page until the same study is run anew on the same
device."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from harness.studies.study import Clock, Curve, Finding, Outcome
from results.errors import StoreError
from results.files import read_json

NUMBERS = "studies.json"


def kept(folder: Path, new: Collection[tuple[str, str]]) -> list[dict[str, Any]]:
    """The entries of the folder's studies.json but those of `new`: (study, device). Raises StoreError where the file cannot be
    read: what was measured is not written over."""
    path = folder / NUMBERS
    if not path.exists():
        return []
    data = read_json(path)
    entries = data.get("studies") if isinstance(data, Mapping) else None
    if not isinstance(entries, list) or not all(
        isinstance(e, Mapping) and isinstance(e.get("name"), str) and isinstance(e.get("how", {}), Mapping)
        for e in entries
    ):
        raise StoreError(f"{path} is no file of studies: move it away, or name another folder with --out.")
    # A file of an earlier version says once for all of them how they were measured.
    how = {name: data.get(name) for name in ("model", "seed", "threads", "quick", "timed")}
    found: list[dict[str, Any]] = [{"how": how, **entry} for entry in entries]
    return [entry for entry in found if (entry["name"], device_of(entry)) not in new]


def device_of(entry: Mapping[str, Any]) -> str:
    """What a study was run on. Files that do not tell are of a version that knew only the CPU."""
    return str(entry["how"].get("device") or "cpu")


def outcome_of(entry: Mapping[str, Any]) -> Outcome:
    """What was found, as the page shows it; `clock` says of it that it is an earlier call's. Raises StoreError."""
    try:
        findings = [_finding(f) for f in entry["findings"]]
        curves = [Curve(c["name"], [(x, y) for x, y in c["points"]]) for c in entry["curves"]]
        return Outcome(findings, curves, [f"Of an earlier call: {how_words(entry['how'])}.", *entry["clock"]])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"Study {entry['name']} of an earlier call cannot be read ({error!r}): move its {NUMBERS} away, or name another folder "
            "with --out."
        ) from error


def how_words(how: Mapping[str, Any]) -> str:
    """`model random-tiny, seed 0, threads 1, quick no, timed smollm2-135m (bfloat16, threads 2)`."""
    shown, timed = {True: "yes", False: "no", None: "not told"}, how.get("timed")
    words = None if timed is None else f"{timed['model']} ({timed['dtype']}, threads {timed['threads']})"
    told = {**how, "timed": words}
    return ", ".join(f"{name} {shown[v] if v is None or isinstance(v, bool) else v}" for name, v in told.items())


def _finding(found: Mapping[str, Any]) -> Finding:
    clock = None
    if found["interval"] is not None:
        low, high = found["interval"]
        clock = Clock(low, high, found["rounds"], found["why_open"] or "")
    return Finding(found["words"], found["value"], found["low"], found["high"], clock)
