"""`dyno baseline`: what a machine measured, recorded in the repository for `dyno regress --baseline`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from results.regression_baseline import Baseline, Entry

app = typer.Typer(name="baseline", no_args_is_help=True, help="Record what a machine measures, for `dyno regress`.")

_SIDE = typer.Argument(metavar="RUN[:LABEL]", help="A run, and which engine of it.", show_default=False)


@app.command()
def make(
    side: Annotated[str, _SIDE],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to.", show_default="results/baselines/RUN.json")
    ] = None,
) -> None:
    """Record an engine of a run as a new baseline.

    Example: `dyno baseline make runs/nightly --out results/baselines/nightly.json`
    """
    from harness.gate import split_side
    from results.errors import UsageError
    from results.regression_baseline import Baseline

    path = out or Path("results/baselines") / f"{split_side(side)[0].resolve().name}.json"
    if path.exists():
        raise UsageError(f"{path} is there already: `dyno baseline update {path} {side}` shows what would change.")
    _put(path, Baseline(path.stem), side, dry_run=False)


@app.command()
def update(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The baseline.", show_default=False)],
    side: Annotated[str, _SIDE],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")] = False,
) -> None:
    """Record a run in a baseline, in the place of its machine's numbers or beside those of others, and show the difference.

    Example: `dyno baseline update results/baselines/nightly.json runs/nightly --dry-run`
    """
    from results.regression_baseline import read_baseline

    _put(file, read_baseline(file), side, dry_run)


def _put(path: Path, baseline: Baseline, side: str, dry_run: bool) -> None:
    from results.regression_baseline import difference, write_baseline
    from results.regression_fingerprint import machine_of, unlike

    entry = _entry(side)
    key = machine_of(entry.fingerprint)
    old = baseline.machines.get(key)
    if not dry_run:
        baseline.put(entry)
        write_baseline(path, baseline)
    # Told of what is so by now, not of what may yet fail.
    typer.echo(f"{path}, {key}: {'replaces ' + old.recorded if old else 'new'}")
    for text in (*(unlike(old.fingerprint, entry.fingerprint) if old else ()), *difference(old, entry)):
        typer.echo(f"  {text}")
    if dry_run:
        typer.echo("Nothing was written (--dry-run).")


def _entry(side: str) -> Entry:
    from datetime import UTC, datetime

    from harness.gate import split_side
    from results.regression_runs import GateRun, entry_of
    from results.store import RunStore

    folder, label = split_side(side)
    run = GateRun.read(RunStore.open(folder))
    wall = (run.facts.manifest.get("start") or {}).get("wall_ns")
    when = datetime.fromtimestamp(wall / 1e9, UTC) if isinstance(wall, int) else datetime.now(UTC)
    return entry_of(run, run.engine(label, "engine"), when.date().isoformat())
