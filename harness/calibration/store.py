"""Calibrations by host and reader, in the user's cache: `~/.cache/dyno/calibration/HOST-xxxxxxxx.json`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from harness.load.reader import PythonReader, reader_name
from harness.models.cache import cache_root
from results.errors import StoreError
from results.files import read_json, store_error, write_atomic

_SCHEMA = 1
# The bar whose ceiling cells are held against.
_CELL_BAR = "5_ms"


def machine() -> dict[str, Any]:
    """What a calibration belongs to: this host, its CPU model, the cores this process may use, and its client's reader."""
    from harness.manifest import host_facts

    facts = host_facts()
    return {"host": os.uname().nodename, "cpu": facts["cpu"], "cpus": facts["cores_usable"], "reader": reader_name()}


def calibration_path(which: Mapping[str, Any]) -> Path:
    """The file of one machine. Another CPU model, count or reader under the same host name is another machine.

    Files of before there was a compiled reader are the Python client's, under the names that they had.
    """
    parts = [which["host"], which["cpu"], which["cpus"]]
    if (reader := which.get("reader", PythonReader.name)) != PythonReader.name:
        parts.append(reader)
    digest = hashlib.sha256(orjson.dumps(parts)).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", str(which["host"])).strip("-.") or "host"
    return cache_root().parent / "calibration" / f"{name}-{digest}.json"


def save_calibration(stored: Mapping[str, Any]) -> Path:
    """Keep a calibration (as `Calibration.to_dict` gives it); its path. Raises StoreError."""
    path = calibration_path(stored["machine"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error(path.parent, error) from error
    write_atomic(path, orjson.dumps(stored, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def load_calibration() -> dict[str, Any] | None:
    """This machine's, or None where it has none that can be read."""
    path = calibration_path(machine())
    if not path.exists():
        return None
    try:
        stored = read_json(path)
    except StoreError:
        return None
    return stored if isinstance(stored, dict) and stored.get("schema") == _SCHEMA else None


def cell_ceiling() -> dict[str, Any] | None:
    """What a cell's client record carries of this machine's calibration: ceilings, floor, date. None without one."""
    stored = load_calibration()
    if stored is None:
        return None
    found = {what: by[_CELL_BAR] for what, by in stored["ceilings"].items()}
    return {
        **found,
        "error_ms": 5.0,
        "floor_ttft_ms_p50": stored["floor_ttft_ms"]["p50"],
        "date": stored["date"],
        "version": stored["version"],
    }
