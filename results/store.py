"""The folder of a run: `runs/<name>/`.

    experiment.yaml                what was asked, resolved
    manifest.json                  host, packages, git, command line, clock pairs
    sessions/<id>/                 session.json, server.log, truth
    cells/<id>/                    requests, chunks, samples .parquet, then cell.json: its presence is the commit
    skipped.json                   planned cells that were left out, and why
    summary.json, report.html      computed from the above at any time

Killed at any instant, nothing committed is lost: a cell without cell.json is swept aside and run again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
import yaml

from results.errors import StoreError, UsageError
from results.files import read_json, store_error, sync_folder, to_json, write_atomic
from results.records import CellRecord, SessionRecord
from results.report_format import listed
from results.schema import SCHEMA_VERSION

_WHEN_ENOUGH = frozenset({"until_ci", "budget_s", "slo"})
_RESTORE = "Restore it from a copy, or measure again in another folder (--out): without it nobody knows what was measured where."
CELL_FILES = ("requests.parquet", "chunks.parquet", "samples.parquet")


class RunStore:
    """Read access to a run; use `RunWriter` to add to one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run. Raises UsageError when there is none at `path`."""
        if not (path / "manifest.json").is_file():
            whole, sign, label = str(path).rpartition(":")
            if sign and (Path(whole) / "manifest.json").is_file():
                raise UsageError(
                    f"{whole} is a run, and this takes all of it, not the engine {label!r} alone: name {whole}."
                )
            raise UsageError(_no_run(path))
        return cls(path)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def experiment_text(self) -> str:
        return self._read_text("experiment.yaml")

    def _read_text(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except OSError as error:
            raise StoreError(f"Cannot read {self.path / name}: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise StoreError(f"{self.path / name} is damaged: {error}.") from error

    @property
    def experiment(self) -> dict[str, Any]:
        try:
            data = yaml.safe_load(self.experiment_text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise StoreError(f"{self.path / 'experiment.yaml'} is damaged: {str(error).splitlines()[0]}.") from error
        return data if isinstance(data, dict) else {}

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest. Raises StoreError where it is damaged or of a newer schema than this program knows."""
        path = self.path / "manifest.json"
        try:
            data = read_json(path)
        except StoreError as error:
            raise StoreError(f"{error} {_RESTORE}") from error
        if not isinstance(data, dict):
            raise StoreError(f"{path} is damaged: it holds no object. {_RESTORE}")
        schema = data.get("schema", SCHEMA_VERSION)
        if not isinstance(schema, int) or isinstance(schema, bool):
            raise StoreError(f"{path} is damaged: its schema is {schema!r}, which is no number. {_RESTORE}")
        if schema > SCHEMA_VERSION:
            raise StoreError(f"{path} has schema {schema}, this program knows {SCHEMA_VERSION}: update llm-dyno.")
        return data

    def cell_dir(self, cell_id: str) -> Path:
        return self.path / "cells" / cell_id

    def session_dir(self, session_id: str) -> Path:
        return self.path / "sessions" / session_id

    def has_cell(self, cell_id: str) -> bool:
        return (self.cell_dir(cell_id) / "cell.json").is_file()

    def cells(self) -> list[CellRecord]:
        """Every committed cell whose record can be read, in the order they ran."""
        return self._read_cells()[0]

    def damaged_cells(self) -> dict[str, str]:
        """Why the record of a committed cell cannot be read, by cell id."""
        return self._read_cells()[1]

    def _read_cells(self) -> tuple[list[CellRecord], dict[str, str]]:
        records, damaged = [], {}
        for path in sorted((self.path / "cells").glob("*/cell.json")):
            try:
                record = CellRecord.from_dict(read_json(path))
                if record.schema > SCHEMA_VERSION:
                    raise StoreError(
                        f"{path} has schema {record.schema}, this program knows {SCHEMA_VERSION}: update llm-dyno."
                    )
            except StoreError as error:
                damaged[path.parent.name] = str(error)
            except (TypeError, AttributeError, ValueError) as error:
                damaged[path.parent.name] = f"{path} does not hold a cell's record: {error}."
            else:
                records.append(record)
        return sorted(records, key=lambda c: (c.started, c.id)), damaged

    def sessions(self) -> list[dict[str, Any]]:
        """Every session whose record can be read, oldest first; each has its "id"."""
        sessions = []
        for path in sorted((self.path / "sessions").glob("*/session.json")):
            try:
                found = read_json(path)
            except StoreError as error:
                found = {"failure": {"class": "unreadable", "words": str(error), "evidence": "", "advice": ""}}
            if isinstance(found, dict):
                sessions.append({"engine": None, **found, "id": path.parent.name})
        return sessions

    def skipped(self) -> list[dict[str, Any]]:
        """Planned cells that were left out, with the reason: entries of summary.json's `skipped`."""
        path = self.path / "skipped.json"
        found = read_json(path) if path.is_file() else []
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

    def write_summary(self, summary: dict[str, Any]) -> Path:
        path = self.path / "summary.json"
        write_atomic(path, to_json(summary))
        return path


def _no_run(path: Path) -> str:
    """Why there is no run at `path`, and the nearest thing to do about it."""
    if not path.exists():
        return f"{path} is not a run: nothing is there. `dyno runs` lists the runs here, `dyno sweep --out {path}` makes one."
    if run := next((above for above in path.resolve().parents if (above / "manifest.json").is_file()), None):
        return f"{path} is not a run, it lies in one: name {run}."
    if runs := [str(run) for run in find_runs(path)]:
        return f"{path} is not a run, it holds some: name one of them, {listed(runs)} (`dyno runs {path}` lists them)."
    return f"{path} is not a run: it has no manifest.json. `dyno runs` lists the runs here."


class RunWriter(RunStore):
    """The one writer of a run, from `start` to `close` (a lock keeps a second one out)."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock = -1

    @classmethod
    def start(cls, path: Path, experiment_text: str, manifest: dict[str, Any]) -> Self:
        """A new run, or the same one again to complete it.

        Raises UsageError when `path` holds another experiment, something that is not a run, or is being written by another process;
        StoreError when it cannot be written.
        """
        writer = cls(path)
        try:
            if path.exists() and not path.is_dir():
                raise UsageError(f"{path} is a file; a run is a folder. Name another one with --out.")
            # The manifest is written last: a start that was cut off before it left only names of ours, and is made anew.
            existing = (path / "manifest.json").is_file()
            if not existing and path.is_dir() and not all(_is_ours(entry) for entry in os.scandir(path)):
                raise UsageError(f"{path} exists and is not a run. Name another folder with --out, or remove it.")
            path.mkdir(parents=True, exist_ok=True)
            writer._take_lock()
            before, asked = (writer.experiment if existing else {}), yaml.safe_load(experiment_text)
            if existing and _measured(before) != _measured(asked):
                raise UsageError(
                    f"{path} holds another experiment: {_difference(_measured(before), _measured(asked))}. Name "
                    "another folder with --out, or give the same command again to complete it."
                )
            (path / "sessions").mkdir(exist_ok=True)
            (path / "cells").mkdir(exist_ok=True)
            if not existing:
                write_atomic(path / "experiment.yaml", experiment_text.encode())
                write_atomic(path / "manifest.json", to_json({**manifest, "starts": [manifest["start"]]}))
            else:
                if before != asked:
                    write_atomic(path / "experiment.yaml", experiment_text.encode())
                earlier = writer.manifest
                merged = {**earlier, "starts": [*earlier.get("starts", []), manifest["start"]]}
                write_atomic(path / "manifest.json", to_json(merged))
        except OSError as error:
            writer.close()
            raise store_error(path, error) from error
        except BaseException:
            writer.close()
            raise
        return writer

    def _take_lock(self) -> None:
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{self.path} is being written by another dyno. Wait for it, or name another --out."
            ) from error

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update_manifest(self, **fields: Any) -> None:
        write_atomic(self.path / "manifest.json", to_json({**self.manifest, **fields}))

    def new_session(self, engine: str, block: int) -> tuple[str, Path]:
        """A fresh session id (ordered, readable) and its folder."""
        slug = "".join(c if c.isalnum() or c in "-_." else "_" for c in engine)[:40]
        for number in range(len(list((self.path / "sessions").iterdir())), 1_000_000):
            session_id = f"{number:04d}-b{block}-{slug}"
            folder = self.session_dir(session_id)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise store_error(folder, error) from error
            return session_id, folder
        raise StoreError(f"No free session number in {self.path / 'sessions'}.")

    def write_session(self, record: SessionRecord) -> None:
        write_atomic(self.session_dir(record.id) / "session.json", to_json(record.to_dict()))

    def write_skipped(self, entries: list[dict[str, Any]]) -> None:
        write_atomic(self.path / "skipped.json", to_json(entries))

    def begin_cell(self, cell_id: str) -> Path:
        """An empty folder for the cell's event files; what an earlier, uncommitted try left is swept aside."""
        folder = self.cell_dir(cell_id)
        if self.has_cell(cell_id):
            raise StoreError(
                f"Cell {cell_id} is already committed in {self.path}; a committed cell is never run twice."
            )
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise store_error(folder, error) from error
        return folder

    def set_aside(self, cell_id: str, why: str) -> Path:
        """Keep what an unfinished cell measured, out of the way of the next try: `aside/<id>-<why>-<n>/`."""
        for number in range(1, 1_000_000):
            kept = self.path / "aside" / f"{cell_id}-{why}-{number}"
            if not kept.exists():
                try:
                    kept.parent.mkdir(exist_ok=True)
                    self.cell_dir(cell_id).rename(kept)
                except OSError as error:
                    raise store_error(kept, error) from error
                return kept
        raise StoreError(f"No free name for cell {cell_id} in {self.path / 'aside'}.")

    def commit_cell(self, record: CellRecord) -> None:
        """Make the cell's files durable, then write cell.json: from here on the cell exists."""
        folder = self.cell_dir(record.id)
        missing = [name for name in CELL_FILES if not (folder / name).is_file()]
        if missing:
            raise StoreError(f"Cell {record.id} cannot be committed: {', '.join(missing)} missing in {folder}.")
        try:
            for name in CELL_FILES:
                with (folder / name).open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(folder)
        except OSError as error:
            raise store_error(folder, error) from error
        write_atomic(folder / "cell.json", to_json(record.to_dict()))
        sync_folder(folder.parent)


def _measured(experiment: Any) -> Any:
    """What of an experiment decides what is measured. When it is enough may be asked anew: cells that are there are used."""
    if not isinstance(experiment, dict):
        return experiment
    return {key: value for key, value in experiment.items() if key not in _WHEN_ENOUGH}


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Whether an unfinished start of ours can have left this: its files, or its folders while they are empty."""
    if entry.name in ("sessions", "cells"):
        return entry.is_dir() and not any(os.scandir(entry.path))
    return entry.name in (".lock", "experiment.yaml") or (entry.name.startswith(".") and entry.name.endswith(".tmp"))


def find_runs(root: Path) -> Iterator[Path]:
    """Folders under `root` that are runs."""
    if root.is_dir():
        yield from sorted(p.parent for p in root.glob("*/manifest.json"))


def _difference(old: Any, new: Any, where: str = "") -> str:
    """The first place where two experiments differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return _difference(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (a, b) in enumerate(zip(old, new, strict=True)):
            if a != b:
                return _difference(a, b, f"{where}[{index}]")
    return f"{where or 'experiment'} was {_short(old)}, is now {_short(new)}"


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."
