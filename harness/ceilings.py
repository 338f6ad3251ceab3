"""Measure the machine's ceilings right before a run, in a child with a time limit, and keep them in its manifest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from harness.cpu_watch import CPUWatch
from results.clock import ClockPair
from results.errors import EnvironmentProblemError
from results.store import RunWriter

# `skip` leaves them out: percentages of ceilings are then unknown.
SWITCH = "DYNO_CEILINGS"
_SECONDS = 2.0
# Of which loading torch is the most; a child that takes longer is stopped, and the run goes on without ceilings.
_LIMIT_S = 30.0


def measure_ceilings(seconds: float = _SECONDS) -> dict[str, Any]:
    """{"devices": [...]} as `results.ceilings` reads it, and `others_cpu`, the share of the machine's CPU that other work used
    meanwhile. Raises EnvironmentProblemError where it cannot be measured."""
    watch = CPUWatch()
    command = [sys.executable, "-P", "-m", "harness.ceilings_probe", str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S + seconds, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblemError(
            f"Measuring the machine's ceilings took more than {error.timeout:.0f} s and was stopped. The machine is busy: try "
            f"again, or leave them out with {SWITCH}=skip."
        ) from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()
        raise EnvironmentProblemError(
            f"The machine's ceilings could not be measured: {said[-1] if said else f'exit code {error.returncode}'}. Leave them "
            f"out with {SWITCH}=skip."
        ) from error
    except (OSError, ValueError) as error:
        raise EnvironmentProblemError(f"The machine's ceilings could not be measured: {error}.") from error
    return {**found, "others_cpu": watch.others()}


def keep_ceilings(store: RunWriter) -> None:
    """Measure them into the run's manifest, once a run; what kept it from being done is kept in their place."""
    if os.environ.get(SWITCH, "").strip().lower() == "skip" or "devices" in (store.manifest.get("ceilings") or {}):
        return
    taken = {"wall_ns": ClockPair.read().wall_ns}
    try:
        store.update_manifest(ceilings={**measure_ceilings(), **taken})
    except EnvironmentProblemError as error:
        store.update_manifest(ceilings={"reason": str(error), **taken})
