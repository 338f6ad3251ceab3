"""The models this bench can make by itself: a table, and `fetch`, which puts one into the cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.models import cache, smollm2, tiny
from harness.models.cache import Manifest, Origin, Say
from harness.models.errors import ModelFetchError
from results.errors import UnknownNameError, UsageError


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A row of the table. `make(folder, source, say)` fills an empty folder; `recipe` changes when its output does;
    `needs_mib` is the room it takes on the disk while it is built."""

    name: str
    words: str
    sources: tuple[str, ...]
    recipe: int
    needs_mib: int
    make: Callable[[Path, str, Say], Origin]


KNOWN = {
    model.name: model
    for model in (
        KnownModel(
            "smollm2-135m",
            "SmolLM2-135M-Instruct, a real model small enough for a CPU (Apache-2.0)",
            smollm2.SOURCES,
            1,
            400,
            smollm2.make,
        ),
        KnownModel(
            "random-tiny",
            "a random 2-layer Llama for tests, generated without a network",
            ("auto",),
            1,
            1,
            lambda folder, source, say: tiny.make(folder),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model in the cache. `built` says whether this call made it."""

    folder: Path
    manifest: Manifest
    built: bool


def to_stderr(line: str) -> None:
    """Where progress goes unless the caller takes it."""
    print(line, file=sys.stderr, flush=True)


def fetch(
    name: str, source: str = "auto", *, verify: bool = False, root: Path | None = None, say: Say = to_stderr
) -> Fetched:
    """The known model `name` in the cache, built if it is missing, damaged, or not from the source asked for.

    `verify` hashes every file instead of trusting size and time. Raises UnknownNameError, UsageError (a source the
    model does not have), ModelFetchError.
    """
    if name not in KNOWN:
        raise UnknownNameError("model", name, KNOWN, "Anything else is given as a folder or a Hub id, not fetched.")
    model = KNOWN[name]
    if source not in model.sources:
        raise UsageError(f"--source {source} is not one of {name}'s: {', '.join(model.sources)}.")
    root = root or cache.cache_root()
    folder = root / name

    def problem() -> str | None:
        if reason := cache.fault(folder, full=verify):
            return reason
        manifest = cache.read_manifest(folder)
        if manifest is None or manifest.recipe != model.recipe:
            return "an older version of this program built it"
        if source not in ("auto", manifest.origin.source):
            return f"it came from the {manifest.origin.source}"
        return None

    built = False
    if reason := problem():

        def make(into: Path) -> Origin:
            nonlocal built
            built = True
            say(f"Building {name} in {folder}{f' again ({reason})' if folder.exists() else ''} ...")
            return model.make(into, source, say)

        cache.build(root, name, model.recipe, make, lambda: problem() is None, needs_mib=model.needs_mib, say=say)
    manifest = cache.read_manifest(folder)
    if manifest is None:
        raise ModelFetchError(f"{folder} vanished while it was being used. Run the command again.")
    return Fetched(folder, manifest, built)
