"""Finding the load at which the error passes a bar."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from harness.calibration.calibrate import Calibration
from harness.calibration.error import Spread
from harness.calibration.ladder import ceiling, climb, within
from harness.calibration.level import Level, LevelResult
from tests.harness.calibration.support import result


def _level(rate: float) -> Level:
    return Level(100, 1000 * 100 / rate, 10, 2)


def _between(a: Level, b: Level) -> Level:
    assert a.tokens_per_s is not None
    assert b.tokens_per_s is not None
    return _level((a.tokens_per_s + b.tokens_per_s) / 2)


def _rate(one: LevelResult) -> float:
    return one.busiest_chunks_per_s


@given(st.floats(500, 60_000), st.integers(0, 4))
def test_the_ceiling_lies_within_the_last_step_below_the_true_one(true: float, halvings: int) -> None:
    levels = [_level(rate) for rate in (1000, 2000, 4000, 8000, 16_000, 32_000)]
    run: list[Level] = []

    def once(level: Level) -> LevelResult:
        run.append(level)
        return result(level, 0.1 if (level.tokens_per_s or 0) <= true else 9.0)

    results = climb(levels, once, halvings=halvings, between=_between)
    found = ceiling(results, 5.0, _rate)
    assert [_rate(r) for r in results] == sorted(_rate(r) for r in results)
    if true < 1000:
        assert (found.value, found.met, round(found.passed_at or 0)) == (None, True, 1000)
    elif true >= 32_000:
        assert not found.met
        assert round(found.value or 0) == 32_000
    else:
        assert found.met
        assert found.value is not None
        step = max(level.tokens_per_s or 0 for level in levels if (level.tokens_per_s or 0) <= true)
        assert true - step / 2**halvings - 1 <= found.value <= true + 1
    # A level that is good is run once, a bad one twice.
    assert max(run.count(level) for level in run) <= 2


def test_one_disturbed_try_is_forgiven_and_the_better_one_kept() -> None:
    errors = iter([50.0, 0.2])
    (found,) = climb([_level(1000)], lambda level: result(level, next(errors)), between=_between)
    assert found.error.worst_p99_ms == 0.2


def test_bars_have_ceilings_of_their_own() -> None:
    results = [result(_level(rate), error) for rate, error in ((1000, 0.1), (2000, 3.0), (4000, 30.0))]
    assert round(ceiling(results, 1.0, _rate).value or 0) == 1000
    assert round(ceiling(results, 5.0, _rate).value or 0) == 2000


def test_a_lost_request_or_no_measurement_is_not_within_any_bar() -> None:
    assert within(result(_level(1000), 0.1), 1.0)
    assert not within(result(_level(1000), 0.1, lost=1), 1.0)
    assert not within(result(_level(1000), None), 5.0)


def test_the_floor_is_bad_from_five_milliseconds_on() -> None:
    def calibration(ms: float) -> Calibration:
        floor = result(_level(1000), 0.0)
        floor = replace(floor, error=replace(floor.error, ttft_ms=Spread(ms, ms, ms)))
        return Calibration({}, "", "", True, floor, [], [])

    assert calibration(0.2).floor_good
    assert not calibration(42.0).floor_good
