"""The user's model cache: folders that are built once, atomically, and checked against a manifest of hashes.

A folder is built under a temporary name beside its final one and renamed when its manifest is written, so whatever
ends a build in its middle leaves nothing under the final name. A lock file lets two processes share one build.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.models.errors import ModelFetchError, disk_problem

MANIFEST = "dyno-model.json"
MANIFEST_SCHEMA = 1

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a built folder came from. `source`: hub, package or generated; `version`: commit or release."""

    source: str
    location: str
    version: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a built folder holds: its origin, the version of the recipe that made it, and its files."""

    name: str
    origin: Origin
    recipe: int
    files: dict[str, dict[str, Any]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(int(entry["size"]) for entry in self.files.values())


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/dyno/models`, by default `~/.cache/dyno/models`; a relative XDG path is ignored, as XDG says."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "dyno" / "models"
    try:
        return Path.home() / ".cache" / "dyno" / "models"
    except RuntimeError as error:
        raise ModelFetchError("This user has no home folder to cache models in; set XDG_CACHE_HOME.") from error


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None where there is none that can be read."""
    try:
        raw = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if raw["schema"] != MANIFEST_SCHEMA:
            return None
        files = {str(name): {"size": int(e["size"]), "mtime_ns": int(e["mtime_ns"]), "sha256": str(e["sha256"])}
                 for name, e in raw["files"].items()}  # fmt: skip
        return Manifest(raw["name"], Origin(**raw["origin"]), int(raw["recipe"]), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def fault(folder: Path, *, full: bool = False) -> str | None:
    """Why a built folder cannot be trusted, in words, or None if it can.

    Size and time of change decide, and the hash where only the time differs (a copied cache); `full` hashes all.
    """
    if not folder.is_dir():
        return "it does not exist"
    manifest = read_manifest(folder)
    if manifest is None:
        return f"it has no readable {MANIFEST}"
    for name, entry in manifest.files.items():
        try:
            stat = (folder / name).stat()
            if stat.st_size != entry["size"]:
                return f"{name} has {stat.st_size} bytes, not {entry['size']}"
            if (full or stat.st_mtime_ns != entry["mtime_ns"]) and sha256(folder / name) != entry["sha256"]:
                return f"{name} does not have the hash it was built with"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def build(
    root: Path,
    name: str,
    recipe: int,
    maker: Callable[[Path], Origin],
    usable: Callable[[], bool],
    *,
    needs_mib: int = 0,
    say: Say = lambda line: None,
) -> None:
    """Make `root/name` with `maker(temporary folder)`, unless another process did so while the lock was awaited.

    `usable` is asked once the lock is held; `needs_mib` is the room a build takes, for the message. Raises
    ModelFetchError where the disk refuses.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f".{name}.lock", lambda: say(f"Another process is building {name}; waiting for it ...")):
            if usable():
                return
            for stale in root.glob(f".{name}.building-*"):
                shutil.rmtree(stale, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=f".{name}.building-", dir=root))
            try:
                folder.chmod(0o755)
                origin = maker(folder)
                _write_manifest(folder, name, recipe, origin)
                _swap(folder, root / name)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise disk_problem(error, root, f"building {name} in {root}", needs_mib) from error


def _write_manifest(folder: Path, name: str, recipe: int, origin: Origin) -> None:
    files = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        stat = path.stat()
        files[path.name] = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256(path)}
    body = {"schema": MANIFEST_SCHEMA, "name": name, "origin": asdict(origin), "recipe": recipe, "files": files}
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(body, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def _swap(built: Path, final: Path) -> None:
    """Put the built folder in place. A broken one that is there leaves first: a rename needs an empty target."""
    if final.exists() or final.is_symlink():
        old = Path(tempfile.mkdtemp(prefix=f".{final.name}.building-", dir=final.parent))
        os.rename(final, old / "old")
        os.rename(built, final)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(built, final)
    directory = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold an advisory lock; the system releases it when the holder dies, however it dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
