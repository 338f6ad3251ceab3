"""The trials of a search as they were chosen, `trials.json` of its run: what a search that is completed later goes on from.

What was measured of them lies in the run's cells, as ever. Here is what cells do not tell: in which order trials were chosen
and why, which could not be started, and which combinations were left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from results.errors import StoreError, UsageError
from results.files import read_json, to_json, write_atomic

FILE = "trials.json"


@dataclass(slots=True)
class Trial:
    """Settings to be tried of one arm (an engine as it was given; no values: its defaults). `why` says what they were chosen
    for, `failure` what its engine died of before it could be measured."""

    arm: str
    values: dict[str, Any]
    why: str
    failure: dict[str, Any] | None = None


@dataclass(slots=True)
class Ledger:
    """Rounds of trials, one of each arm a round (the defaults first), and combinations left out with the reason.

    `asked` is what makes it the same search: another one in its place is refused. `order` says who chose the order.
    """

    path: Path
    asked: Mapping[str, Any]
    rounds: list[list[Trial]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    order: str = ""

    @classmethod
    def open(cls, folder: Path, asked: Mapping[str, Any]) -> Ledger:
        """The ledger of a run, or a new one. Raises UsageError where it is of another search, StoreError where it is damaged."""
        path = folder / FILE
        if not path.is_file():
            return cls(path, asked)
        data = read_json(path)
        try:
            rounds = [[Trial(**trial) for trial in trials] for trials in data["rounds"]]
            before, left_out, order = data["asked"], dict(data["left_out"]), str(data.get("order", ""))
        except (TypeError, KeyError, ValueError) as error:
            raise StoreError(f"{path} is damaged: it does not hold the trials of a search ({error!r}).") from error
        if before != asked:
            raise UsageError(
                f"{folder} holds another search: it was asked {before}, now {dict(asked)}. Name another folder with --out, or give "
                "the same command again to complete it."
            )
        for trial in (trial for trials in rounds for trial in trials if not trial.values):
            trial.failure = None  # without its defaults an engine has nothing to be held against: they are tried again
        return cls(path, asked, rounds, left_out, order)

    def trials(self, arm: str | None = None) -> Iterator[Trial]:
        """All trials, or those of one arm, in the order they were chosen."""
        for trials in self.rounds:
            yield from (trial for trial in trials if arm in (None, trial.arm))

    def add(self, trials: Sequence[Trial]) -> None:
        """A further round."""
        self.rounds.append(list(trials))
        self.save()

    def fail(self, trial: Trial, failure: Mapping[str, Any]) -> None:
        """A trial whose engine could not be measured: it is not tried again, the defaults by the next command alone."""
        trial.failure = {key: failure.get(key) for key in ("class", "words", "evidence", "advice")}
        self.save()

    def leave_out(self, what: str, why: str) -> None:
        """Kept from the next round on: without one nothing follows from it."""
        self.left_out.setdefault(what, why)

    def save(self) -> None:
        rounds = [[asdict(trial) for trial in trials] for trials in self.rounds]
        told = {"asked": self.asked, "order": self.order, "rounds": rounds, "left_out": self.left_out}
        write_atomic(self.path, to_json(told))
