"""`dyno calibrate`: how much the load client can measure on this machine, and how wrong it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from harness.calibration.level import LevelResult


def calibrate(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and shorter levels: about 20 s, not one to two minutes.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Print what is stored of this machine; run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Find the load at which this machine's client passes 1 ms and 5 ms of error, against a server of known schedule.

    Example: `dyno calibrate`

    It is stored for this host and reader, and cells past 70 % of the ceiling are SUSPECT. Run it while the machine is quiet. Exit
    code 1 when the transport itself delays (a TTFT of 5 ms and more from a server that answers at once).
    """
    from harness.calibration.store import calibration_path, load_calibration, machine, save_calibration
    from results.errors import EXIT_BAD_ANSWER, UsageError

    if show:
        stored = load_calibration()
        if stored is None:
            raise UsageError(
                f"This machine has no calibration ({calibration_path(machine())} is not there). Run dyno calibrate."
            )
        _show(stored, as_json)
        return
    from rich.console import Console

    from harness.calibration.calibrate import calibrate as measure

    console = Console(stderr=as_json, highlight=False, quiet=as_json, soft_wrap=True)
    console.print(
        f"{'':8}{'streams':>8}{'chunks/s':>10}{'TTFT error p50 p99 ms':>24}{'arrival p99':>13}{'lag p99':>9}{'us/token':>10}"
    )
    found = measure(quick=quick, say=lambda kind, result: _line(console, kind, result))
    stored = found.to_dict()
    path = save_calibration(stored)
    _show({**stored, "path": str(path)}, as_json)
    if not found.floor_good:
        raise typer.Exit(EXIT_BAD_ANSWER)


def _line(console: Console, kind: str, result: LevelResult) -> None:
    error = result.error
    p50, p99 = error.ttft_error_ms
    lost = f"  {error.lost} requests lost" if error.lost else ""
    console.print(
        f"{kind:8}{result.level.streams:8,}{result.busiest_chunks_per_s:10,.0f}{_ms(p50):>16}{_ms(p99):>8}"
        f"{_ms(error.arrival_ms.p99):>13}{_ms(error.lag_ms.p99):>9}{_ms(result.cpu_us_per_token, 1):>10}{lost}"
    )


def _show(stored: dict[str, Any], as_json: bool) -> None:
    from rich.console import Console

    from results.files import to_json

    if as_json:
        typer.echo(to_json(stored).decode(), nl=False)
        return
    console = Console(highlight=False)
    which = stored["machine"]
    where = f"{which['host']}, {which['cpu']}, {which['cpus']} cores, {which.get('reader', 'python')} reader"
    console.print(f"{where}; {stored['date']}, dyno {stored['version']}")
    floor = stored["floor_ttft_ms"]
    console.print(
        f"Floor    TTFT p50 {_ms(floor['p50'])} ms, p99 {_ms(floor['p99'])} ms from a server that answers at once"
    )
    if not stored["floor_good"]:
        console.print(
            "The transport itself delays: look for a proxy or a firewall on the loopback device.", style="red"
        )
    words = {"chunks_per_s": "chunks/s", "streams": "streams"}
    for what, by_bar in stored["ceilings"].items():
        for bar, found in by_bar.items():
            least = "" if found["met"] else "at least "
            value = (
                "below the lowest level" if found["value"] is None else f"{least}{found['value']:,.0f} {words[what]}"
            )
            console.print(f"Ceiling  {value} with an error of {bar.replace('_', ' ')} at p99")
    if "path" in stored:
        console.print(f"Stored in {stored['path']}", style="dim")


def _ms(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
