"""`dyno twin`: how well a run's engines are predicted by running their scheduler on fitted step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from harness.twin.check import Compared, Held

LEAST_FOR_P90 = 10


def twin(
    run: RunFolder,
    fit_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENGINE",
            help="Fit on the cells of this engine alone and predict all others. Repeatable.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Predict each setting of a run from its other cells, and say how far off that is: what a twin's word is worth.

    The engine's scheduler runs the very requests of the cell, on a clock of step times fitted from the other cells. Needs
    engines that log their steps (the reference engine does). A setting that differs from another in nothing that binds is the same
    work, and no news: the bar is for the others, and for all metrics but p99. Cells are predicted at the usual pace, as in a session
    nobody has seen. Exit code 1 when the median error is above 10 %, 3 when nothing new could be predicted.

    Example: `dyno twin runs/smollm2-135m-1a2b3c4d`
    """
    from harness.cli.console import CalmConsole
    from harness.experiment import load_experiment
    from harness.model_parts import model_parts
    from harness.twin.check import BAR, hold_out
    from results.errors import EXIT_BAD_ANSWER, EXIT_INCONCLUSIVE, UnknownNameError, UsageError
    from results.files import to_json
    from results.store import RunStore

    store = RunStore.open(run)
    experiment = load_experiment(store.path / "experiment.yaml")
    labels = [engine.label for engine in experiment.engines]
    for label in fit_on or []:
        if label not in labels:
            raise UnknownNameError("engine", label, labels, f"Looked in {store.path.name}.")
    if fit_on and not set(labels) - set(fit_on):
        raise UsageError(
            f"--fit-on names every engine of {store.path.name}, so none is left to predict: leave out one of"
            f" {', '.join(labels)}, or --fit-on altogether to predict each setting from the others."
        )
    console = CalmConsole(stderr=as_json, highlight=False)
    vocabulary = model_parts(experiment.model, experiment.tokenizer, needs_folder=False).vocabulary
    with console.status("Predicting ...") as status:
        held = hold_out(
            store,
            experiment,
            vocabulary,
            fit_on or (),
            lambda done, total: status.update(f"Predicting: {done} of {total} settings"),
        )
    if as_json:
        typer.echo(to_json(as_data(store.path.name, fit_on or [], held)).decode(), nl=False)
    else:
        _print(console, held)
    found = held.median_error(new=True)
    if found is None:
        raise typer.Exit(EXIT_INCONCLUSIVE)
    if found > BAR:
        raise typer.Exit(EXIT_BAD_ANSWER)


def as_data(run: str, fit_on: list[str], held: Held) -> dict[str, Any]:
    """What --json prints; errors are parts of one."""
    from statistics import median

    from harness.twin.check import BAR

    return {
        "schema": 1,
        "run": run,
        "fit_on": fit_on,
        "bar": BAR,
        "median_error": held.median_error(),
        "median_error_new": held.median_error(new=True),
        "median_error_paced": held.paced_error(),
        "floor": held.floor(),
        "same_work_apart": held.apart(),
        "fit_moves": held.moves,
        "metrics": {metric: _errors(held, metric) for metric in _metrics(held)},
        "settings": [
            {
                "engine": c.cell.engine.label,
                "workload": c.cell.workload.label,
                "load": _load(c),
                "metric": c.metric,
                "measured": c.measured,
                "predicted": c.predicted,
                "paced": c.paced,
                "error": c.error,
                "error_paced": c.paced_error,
                "floor": median(c.floor) if c.floor else None,
                "same_work_as": c.like,
            }
            for c in held.compared
        ],
        "left_out": held.left_out,
    }


def _errors(held: Held, metric: str) -> dict[str, Any]:
    from statistics import median

    from harness.twin.check import NOT_IN_BAR

    errors, new = held.errors(metric), held.errors(metric, new=True)
    signed = [c.error for c in held.compared if c.metric == metric]
    return {
        "n": len(errors),
        "median": median(errors),
        "n_new": len(new),
        "median_new": median(new) if new else None,
        # A percentile needs n (1 - p) >= 1.
        "p90": errors[int(0.9 * len(errors))] if len(errors) >= LEAST_FOR_P90 else None,
        "bias": median(signed),
        "median_paced": held.paced_error(metric),
        "floor": held.floor(metric),
        "in_bar": metric not in NOT_IN_BAR,
    }


def _metrics(held: Held) -> list[str]:
    return list(dict.fromkeys(c.metric for c in held.compared))


def _told(compared: Compared | None) -> tuple[str, str]:
    """`319 ±8 %` and `-4 %`: the median of the measured blocks with how far off a perfect prediction would be, and the error."""
    from statistics import median

    from results.report_format import UNKNOWN, number

    if compared is None:
        return UNKNOWN, UNKNOWN
    floor = f" ±{100 * median(compared.floor):.0f} %" if compared.floor else ""
    return f"{number(median(compared.measured))}{floor}", f"{100 * compared.error:+.0f} %"


def _load(compared: Compared) -> str:
    load = compared.cell.load
    return f"{load.mode} {load.value:g}"


def _setting_lines(metrics: Sequence[str], cells: Mapping[str, Mapping[str, Compared]]) -> list[str]:
    """Heads, and of each setting its name on a line of its own (beside five metrics there is no room), what was measured, the errors."""
    rows: list[tuple[str, ...]] = [("", *metrics)]
    for row in cells.values():
        measured, errors = zip(*(_told(row.get(metric)) for metric in metrics), strict=True)
        rows += [("  measured", *measured), ("  error", *errors)]
    name, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    heads, *lines = (
        f"{head:{name}}" + "".join(f"  {value:>{width}}" for value, width in zip(values, widths, strict=True))
        for head, *values in rows
    )
    for at, setting in enumerate(cells):
        lines.insert(3 * at, setting)
    return [heads, *lines]


def _print(console: Console, held: Held) -> None:
    from rich.table import Table

    from harness.twin.check import BAR, METRICS, NOT_IN_BAR
    from harness.twin.step_model import SETTLED
    from results.report_format import plural

    shown = [m for m in METRICS if m in _metrics(held) and not m.endswith("p90")]
    cells: dict[str, dict[str, Compared]] = {}
    for c in held.compared:
        like = f" (as {c.like})" if c.like else ""
        cells.setdefault(f"{c.cell.engine.label}, {c.cell.workload.label}, {_load(c)}{like}", {})[c.metric] = c
    if cells:
        for line in _setting_lines(shown, cells):
            console.print(line, markup=False)
        console.print()
    summary = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for head in (
        "predicted",
        "settings",
        "median error",
        "new ones",
        "median error",
        "90 % below",
        "bias",
        "pace known",
        "floor",
    ):
        summary.add_column(head, justify="left" if head == "predicted" else "right", no_wrap=head == "predicted")
    for metric in _metrics(held):
        e = _errors(held, metric)
        summary.add_row(
            metric if e["in_bar"] else f"{metric} *",
            *(str(e["n"]), _percent(e["median"]), str(e["n_new"]), _percent(e["median_new"])),
            *(_percent(e["p90"], digits=0), f"{100 * e['bias']:+.1f} %"),
            *(_percent(e["median_paced"]), _percent(e["floor"])),
        )
    if cells:
        console.print(summary)
        if NOT_IN_BAR.intersection(_metrics(held)):
            console.print("* not in the bar", style="dim")
    reasons: dict[str, int] = {}
    for why in held.left_out.values():
        reasons[why] = reasons.get(why, 0) + 1
    for why, times in reasons.items():
        console.print(f"{plural(times, 'cell', 'cells')} left out: {why}", style="dim", markup=False)
    found, everywhere = held.median_error(new=True), held.median_error()
    same = len({c.cell.id for c in held.compared if c.like})
    if same:
        words = f"{plural(same, 'setting')} of {len(cells)} differ{'s' * (same == 1)} from another in nothing that binds (as ...): no news."
        words += f" With {'it' if same == 1 else 'them'} the median error is {_percent(everywhere)}."
        if (apart := held.apart()) is not None:
            words += f" Measured, the same work differs by {_percent(apart)} (median):"
            words += f" a perfect prediction would be off by {_percent(apart / sqrt(2))}."
        console.print(words, markup=False)
    if held.moves >= SETTLED:
        console.print(
            f"Step times and paces did not settle in every fit: they still moved by {100 * held.moves:.2g} % at its end."
        )
    if found is None:
        console.print("Nothing new could be predicted.", style="bold")
        return
    floor = held.floor()
    words = (
        "There is one block a setting, which does not tell how far off a perfect twin would be: measure with --blocks 3."
        if floor is None
        else f"A perfect twin's median error would be {_percent(floor)}, from how the blocks of a setting differ."
    )
    console.print(words, markup=False)
    words = f"Were the pace of its session known, which it is not beforehand, the median error would be {_percent(held.paced_error())}."
    console.print(words, markup=False)
    met = found <= BAR
    words = f"Median error over {plural(len(cells) - same, 'new setting')} without p99, at the usual pace: {_percent(found)}"
    words += f"; the bar is {100 * BAR:.0f} %: {'met' if met else 'missed'}."
    console.print(words, style="bold green" if met else "bold red", markup=False)


def _percent(part: float | None, digits: int = 1) -> str:
    from results.report_format import UNKNOWN

    return UNKNOWN if part is None else f"{100 * part:.{digits}f} %"
