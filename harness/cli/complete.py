"""What the shell is offered after <Tab>: names, from folders and entry points alone. Nothing heavy is imported, no server asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import typer

_PACKAGE = Path(__file__).resolve().parents[2]


def backends(incomplete: str) -> list[str]:
    """Registered backends."""
    from importlib.metadata import entry_points

    return _matching((entry.name for entry in entry_points(group="dyno.backends")), incomplete)


def models(incomplete: str) -> list[str]:
    """Models that can be fetched, and folders of models in the cache."""
    from harness.models.cache import cache_root
    from harness.models.known import KNOWN

    root = cache_root()
    cached = (path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else ()
    return _matching({*KNOWN, *cached}, incomplete)


def planned_models(incomplete: str) -> list[str]:
    """The same, and those whose shape is known."""
    shapes = (path.stem for path in (_PACKAGE / "results" / "model_configs").glob("*.json"))
    return sorted({*models(incomplete), *_matching(shapes, incomplete)})


def presets(incomplete: str) -> list[str]:
    """Presets that ship with dyno."""
    return _matching((path.stem for path in (_PACKAGE / "workloads" / "presets").glob("*.yaml")), incomplete)


def runs(incomplete: str) -> list[str]:
    """Runs below the folder that is being typed; below `runs` where none is."""
    typed, slash, _ = incomplete.rpartition("/")
    folder = Path(typed or "/") if slash else Path("runs")
    prefix = f"{typed}/" if slash else "runs/"
    return _matching((f"{prefix}{name}" for name in _runs_in(folder)), incomplete)


def cells(context: typer.Context, incomplete: str) -> list[str]:
    """Cells of the run that was named before."""
    run = context.params.get("run")
    found = (path.parent.name for path in Path(run).glob("cells/*/cell.json")) if run else ()
    return _matching(found, incomplete)


def _runs_in(folder: Path) -> Iterator[str]:
    try:
        yield from (path.name for path in folder.iterdir() if (path / "manifest.json").is_file())
    except OSError:
        return


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
