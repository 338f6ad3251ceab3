"""`verify.json`, the answer of `dyno verify`, as a run keeps it: beside summary.json, for the engines of its cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from results.errors import StoreError
from results.files import read_json, to_json, write_atomic

FILE = "verify.json"
SCHEMA = 1


def write_verification(folder: Path, document: Mapping[str, Any]) -> Path:
    """Keep the answer in `folder`, whole or not at all. Raises StoreError."""
    write_atomic(folder / FILE, to_json(document))
    return folder / FILE


def read_verification(folder: Path) -> dict[str, Any] | None:
    """The answer kept in `folder`; None where there is none. Raises StoreError where it cannot be read."""
    path = folder / FILE
    if not path.is_file():
        return None
    document = read_json(path)
    if not isinstance(document, dict) or not isinstance(schema := document.get("schema"), int):
        raise StoreError(f"{path} is damaged: it is no answer of `dyno verify`.")
    if schema > SCHEMA:
        raise StoreError(f"{path} has schema {schema}, this program knows {SCHEMA}: update llm-dyno.")
    return document


def measured_fingerprints(sessions: Iterable[Mapping[str, Any]], measured: Iterable[str]) -> dict[str, Any]:
    """What each engine's cells were measured on: the fingerprint of its last session that owns one (`measured`: ids)."""
    ids = set(measured)
    return {str(s["engine"]): s["fingerprint"] for s in sessions if s.get("id") in ids and s.get("fingerprint")}


def verified_fingerprints(document: Mapping[str, Any]) -> dict[str, Any]:
    """What each engine was when it was verified; engines that could not be are missing."""
    rows = document.get("engines")
    found = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return {str(row.get("label")): row.get("fingerprint") for row in found}


def covers(document: Mapping[str, Any] | None, measured: Mapping[str, Any]) -> bool:
    """Whether the answer is about all of these engines, as they were measured."""
    if document is None:
        return False
    verified = verified_fingerprints(document)
    return all(label in verified and verified[label] == found for label, found in measured.items())


def unlike(before: Any, now: Any) -> list[str]:
    """In what two fingerprints differ: `block_size 16, then 32`."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return []
    parts: list[str] = []
    for key in sorted({*before, *now}):
        a, b = before.get(key), now.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            parts += [f"{k} {a.get(k)}, then {b.get(k)}" for k in sorted({*a, *b}) if a.get(k) != b.get(k)]
        elif a != b:
            parts.append(f"{key} {a}, then {b}")
    return parts
