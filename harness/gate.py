"""What `dyno regress` measures and reads: the sides of the gate, and new sessions where something is worse at first sight."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.child import die_with_parent
from results.errors import EngineError, UsageError
from results.regression import SUSPECTED, Gate, GateOptions, confirm
from results.regression_baseline import read_baseline
from results.regression_fingerprint import fingerprint_of, unlike
from results.regression_runs import GateRun, baseline_gate, paired_gate, unpaired_gate
from results.store import RunStore


@dataclass(frozen=True, slots=True)
class Measured:
    """A gate's first answer; `run` is the folder and `labels` the engines of a paired one, whose sessions can be repeated."""

    gate: Gate
    run: Path | None = None
    labels: tuple[str, str] = ("", "")


def split_side(text: str) -> tuple[Path, str | None]:
    """`RUN` or `RUN:LABEL`. A folder that is there is taken as it is named, colons and all."""
    path, sign, label = text.rpartition(":")
    if not sign or not path or not label or Path(text).is_dir():
        return Path(text), None
    return Path(path), label


def measured(sides: Sequence[str], baseline: Path | None, options: GateOptions, disregard: bool) -> Measured:
    """The gate's answer from what was measured. Raises UsageError where it is not plain what is meant, or refused."""
    if baseline is not None:
        if len(sides) != 1:
            raise UsageError("With --baseline name one side, the candidate: dyno regress RUN:LABEL --baseline FILE.")
        path, label = split_side(sides[0])
        run = GateRun.read(RunStore.open(path))
        return Measured(baseline_gate(read_baseline(baseline), run, run.engine(label, "candidate"), options, disregard))
    if len(sides) not in (1, 2):
        raise UsageError(f"A gate has two sides, BASE and CAND; here are {len(sides)}.")
    if len(sides) == 1:
        path, label = split_side(sides[0])
        run = GateRun.read(RunStore.open(path))
        if label is not None or len(run.asked) != 2:
            raise UsageError(f"Name both sides: dyno regress {path}:BASE {path}:CAND (or CAND with --baseline FILE).")
        labels = (run.asked[0], run.asked[1])
        return Measured(paired_gate(run, *labels, options, disregard), path, labels)
    (one, base), (other, cand) = (split_side(text) for text in sides)
    a = GateRun.read(RunStore.open(one))
    if one.resolve() == other.resolve():
        labels = (a.engine(base, "base"), a.engine(cand, "candidate"))
        return Measured(paired_gate(a, *labels, options, disregard), one, labels)
    b = GateRun.read(RunStore.open(other))
    names = (a.engine(base, "base"), b.engine(cand, "candidate"))
    return Measured(unpaired_gate(a, names[0], b, names[1], options, disregard))


def confirmed(first: Measured, options: GateOptions, disregard: bool, measure: bool, given: Path | None) -> Gate:
    """The answer after new sessions, where something is worse at first sight and they are there or to be measured."""
    if first.run is None:
        if measure or given is not None:
            raise UsageError("Only engines of one run can be measured again: there is no confirmation in other modes.")
        return first.gate
    if given is not None:
        # Also where nothing is to be confirmed: a wrong name would show only on the day that it counts.
        RunStore.open(given)
        if given.resolve() == first.run.resolve():
            raise UsageError(
                f"{given} is what is to be confirmed: a confirmation is of new sessions, in a run of their own."
            )
    if not first.gate.of(SUSPECTED) or first.gate.faults or not (measure or given):
        return first.gate
    folder = given or first.run.with_name(f"{first.run.resolve().name}-confirm")
    if measure:
        _measure_again(first.run, folder)
    store, before = RunStore.open(folder), RunStore.open(first.run)
    machines = [fingerprint_of(one.manifest, {}, one.experiment) for one in (before, store)]
    if differences := unlike(*machines):
        raise UsageError(f"{folder} cannot confirm {first.run}, it is of another kind: {'; '.join(differences)}.")
    again = GateRun.read(store)
    return confirm(first.gate, paired_gate(again, *first.labels, options, disregard))


def _measure_again(run: Path, folder: Path) -> None:
    """The run's own experiment from another seed, in a folder beside it. Raises EngineError where it does not end well."""
    seed = RunStore.open(run).experiment.get("seed") or 0
    words = [str(run / "experiment.yaml"), "--seed", str(int(seed) + 1), "--out", str(folder), "--quiet"]
    # A gate that is killed takes its sweep along: left alone it would go on measuring, and hold the folder.
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "sweep", *words],
        check=False,
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    # 1 tells of INVALID cells: those are the gate's to see.
    if done.returncode not in (0, 1):
        raise EngineError(
            f"The new sessions in {folder} ended with status {done.returncode}. Run `dyno sweep {' '.join(words)}` to see "
            "why; what was worse at first sight is not confirmed."
        )
