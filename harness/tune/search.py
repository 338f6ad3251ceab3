"""The search as a planner: short cells of many settings, longer ones of the few that did best, the same number for each arm.

An *arm* is an engine as it was given; it begins with its defaults. Rung 0 goes in rounds of one trial an arm, each a session
with cells of a quarter of the load's length. Of those trials the best third goes on to rung 1 with cells twice as long, the best
third of these to rung 2, while more than one is left (successive halving). The defaults are the first and coldest trial, so they are
measured again beside those of rung 1. The best of the last rung is what the confirmation holds against the defaults: nothing
measured here is used as evidence for it, since the best of many flatters itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.experiment import Cell, EngineSpec
from harness.planner_memory import lacked_memory
from harness.tune.ledger import Ledger, Trial
from harness.tune.measure import Look, Measurement, Results
from harness.tune.predictor import Predictor
from harness.tune.propose import Rules, Tried, propose
from harness.tune.space import Space, Values, most_in_flight, shown
from results.clock import NS_PER_S, now_ns

KEEP = 3
# Shares of the budget: rung 0 begins no round that would end after the first, nothing of the search begins after the second.
ROUNDS_SHARE, SEARCH_SHARE = 0.35, 0.5
DEFAULTS = "the defaults"


@dataclass(frozen=True, slots=True)
class Arm:
    """An engine to be tuned. `refuse` says why an engine cannot be started (None: it can), `defaults` what the engine of this
    label told of its settings so far."""

    base: EngineSpec
    space: Space
    refuse: Callable[[EngineSpec], str | None] = lambda engine: None
    defaults: Callable[[], Mapping[str, Any]] = dict

    @property
    def label(self) -> str:
        return self.base.label

    def engine(self, values: Values) -> EngineSpec:
        """The engine with these values of its space."""
        return self.space.engine(self.base, values)


@dataclass(frozen=True, slots=True)
class Score:
    """A trial at a rung: the number that is to be large, or None and why."""

    trial: Trial
    rung: int
    value: float | None
    why: str
    look: Look


@dataclass(slots=True)
class Standing:
    """Where an arm's search is: the trials of whole rounds, then those that went on, rung by rung. `whole` says of each rung
    whether all of its trials were measured to their end."""

    rungs: list[list[Score]] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)

    def kept(self, rung: int) -> int:
        """How many trials beside the defaults went on to a rung; the best alone beyond the last."""
        return sum(bool(score.trial.values) for score in self.rungs[rung]) if rung < len(self.rungs) else 1

    @property
    def best(self) -> Score | None:
        """The best that is not the defaults, at the highest rung that was measured whole; None where nothing gave a number."""
        for rung, whole in zip(reversed(self.rungs), reversed(self.whole), strict=True):
            ranked = _ranked(rung)
            if whole and ranked:
                return ranked[0]
        return None

    def last(self, trial: Trial) -> Score | None:
        """A trial at the highest rung it got to."""
        return next((s for rung in reversed(self.rungs) for s in rung if s.trial is trial), None)


class SearchPlanner:
    """See the module. `trials` bounds the rounds, `budget_s` the whole of the tuning, whose clock begins here: no cell is begun
    after the search's share of it. `longest_s` is how long its longest round took, `wanted_s`, where the
    budget ended the search, when one more round would have ended."""

    def __init__(
        self,
        arms: Sequence[Arm],
        measurement: Measurement,
        ledger: Ledger,
        predictor: Predictor,
        trials: int,
        budget_s: float | None = None,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self._arms, self._measurement, self._ledger, self._predictor = arms, measurement, ledger, predictor
        self._trials, self._budget_s, self._clock, self._begun = trials, budget_s, clock, clock()
        self._round_begun: int | None = None
        self.longest_s = 0.0
        self.wanted_s: float | None = None
        self._looks: dict[tuple[str, int], Look] = {}

    def next_cell(self, results: Results) -> Cell | None:
        while not self._late(SEARCH_SHARE):
            if (cell := self._unfinished(results)) is not None:
                if self._round_begun is None:  # an earlier start chose its trials
                    self._round_begun = self._clock()
                return cell
            if not self._new_round(results):
                return self._of_later_rungs(results)
        if self._unfinished(results) is None:
            self._end_round()
        self.wanted_s = self._spent() + self.longest_s
        return None

    def planned(self) -> list[Cell]:
        """The beginning: what follows depends on the answers."""
        looks = [self._look(Trial(arm.label, {}, DEFAULTS), 0, {}) for arm in self._arms]
        return [look.missing for look in looks if look.missing is not None]

    def standing(self, results: Results) -> dict[str, Standing]:
        """Where each arm is, by its label."""
        return {arm.label: self._standing(arm, results) for arm in self._arms}

    def engine(self, trial: Trial) -> EngineSpec:
        """The engine of a trial."""
        return self._arm(trial.arm).engine(trial.values)

    def _arm(self, label: str) -> Arm:
        return next(arm for arm in self._arms if arm.label == label)

    def _late(self, share: float, more_s: float = 0.0) -> bool:
        return self._budget_s is not None and self._spent() + more_s >= share * self._budget_s

    def _spent(self) -> float:
        return (self._clock() - self._begun) / NS_PER_S

    def _unfinished(self, results: Results) -> Cell | None:
        """The next cell of a trial of rung 0 that was chosen and is not measured to its end."""
        for trial in self._ledger.trials():
            if trial.failure is not None:
                continue
            look = self._look(trial, 0, results)
            if look.failure is not None:
                self._ledger.fail(trial, look.failure)
            elif look.missing is not None:
                return look.missing
        return None

    def _new_round(self, results: Results) -> bool:
        """Choose one more trial of each arm that has any left. False where there is none, or no time for one."""
        number = len(self._ledger.rounds)
        self._end_round()
        if number >= self._trials:
            return False
        if number and self._late(ROUNDS_SHARE, self.longest_s):
            self.wanted_s = self._spent() + self.longest_s
            return False
        self._round_begun = self._clock()
        shift = number % len(self._arms)
        order = [*self._arms[shift:], *self._arms[:shift]]
        trials = [trial for arm in order if (trial := self._chosen(arm, number, results)) is not None]
        if trials:
            if number:  # of the first nobody was asked: it is the defaults
                self._ledger.order = self._predictor.words
            self._ledger.add(trials)
        return bool(trials)

    def _end_round(self) -> None:
        if self._round_begun is not None:
            self.longest_s = max(self.longest_s, (self._clock() - self._round_begun) / NS_PER_S)
            self._round_begun = None

    def _chosen(self, arm: Arm, number: int, results: Results) -> Trial | None:
        if number == 0:
            return Trial(arm.label, {}, DEFAULTS)
        scores = self._standing(arm, results).rungs[0]
        if not scores or _dead(scores[0]):
            return None
        tried = [Tried(s.trial.values, s.value, ran_out(s)) for s in scores]

        told, most = arm.defaults(), most_in_flight(self._measurement.experiment)

        def refuse(values: Values) -> str | None:
            if most is not None and min(values.get("max_num_seqs", 0), told.get("max_num_seqs") or 0) >= most:
                return f"no more than {most} requests are in flight, which its defaults take as well"
            return arm.refuse(arm.engine(values))

        def leave_out(values: Values, why: str) -> None:
            self._ledger.leave_out(f"{arm.label}: {shown(values)}", why)

        def predict(candidates: Sequence[Values]) -> Sequence[float | None]:
            return self._predictor.predict([arm.engine(values) for values in candidates], results)

        seed = self._measurement.experiment.seed
        found = propose(arm.space, tried, told, Rules(refuse, leave_out), predict, seed)
        return None if found is None else Trial(arm.label, found.values, found.why)

    def _of_later_rungs(self, results: Results) -> Cell | None:
        """The next cell of trials that went on; arms take turns."""
        standings = [self._standing(arm, results) for arm in self._arms]
        for rung in range(1, max(len(s.rungs) for s in standings)):
            reached = [s.rungs[rung] for s in standings if rung < len(s.rungs)]
            for place in range(max(map(len, reached))):
                for scores in reached:
                    if place < len(scores) and (cell := scores[place].look.missing) is not None:
                        return cell
        return None

    def _standing(self, arm: Arm, results: Results) -> Standing:
        # A round that the budget cut off would count one trial more for some arms than for others.
        rounds = [r for r in self._ledger.rounds if all(self._measured(trial, results) for trial in r)]
        trials = [trial for r in rounds for trial in r if trial.arm == arm.label]
        standing = Standing()
        rung = 0
        while trials:
            scores = [self._score(trial, rung, results) for trial in trials]
            whole = all(score.look.missing is None for score in scores)
            standing.rungs.append(scores)
            standing.whole.append(whole)
            ranked = _ranked(scores)
            keep = -(-len(ranked) // KEEP)
            trials = [score.trial for score in ranked[:keep]] if whole and keep > 1 else []
            if trials and rung == 0:
                trials = [s.trial for s in scores if not s.trial.values and s.value is not None] + trials
            rung += 1
        return standing

    def _measured(self, trial: Trial, results: Results) -> bool:
        return trial.failure is not None or self._look(trial, 0, results).missing is None

    def _score(self, trial: Trial, rung: int, results: Results) -> Score:
        if trial.failure is not None:
            return Score(trial, rung, None, str(trial.failure.get("words")), Look(None, ({"failure": trial.failure},)))
        look = self._look(trial, rung, results)
        return Score(trial, rung, *self._measurement.value(look), look)

    def _look(self, trial: Trial, rung: int, results: Results) -> Look:
        engine = self.engine(trial)
        look = self._looks.get((engine.label, rung))
        if look is None:
            look = self._measurement.at_rung(rung).look(engine, rung, results)
            if look.missing is None:  # nothing that was measured changes
                self._looks[engine.label, rung] = look
        return look


def ran_out(score: Score) -> bool:
    """Whether its engine ran out of memory, at its start or in a cell."""
    failure = score.look.failure
    if failure is not None:
        return str(failure.get("class")).startswith("out_of_memory")
    return any(lacked_memory(entry) for entry in score.look.found)


def _dead(defaults: Score) -> bool:
    """Whether an engine cannot be measured at all: with any settings the same would happen, memory apart."""
    return defaults.look.failure is not None and not ran_out(defaults)


def _ranked(scores: Sequence[Score]) -> list[Score]:
    """Those with a number, the defaults left out, the best first, of equals the first."""
    scored = [s for s in scores if s.value is not None and s.trial.values]
    return sorted(scored, key=lambda s: -(s.value or 0.0))
