"""When requests are sent, in a world whose clock the test moves: no request early, none twice, none lost, caps kept."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from harness.load.plan import RequestPlan
from harness.load.strategies import BatchStrategy, ClosedLoopStrategy, Due, OpenLoopStrategy, Strategy, Until

TIMES = st.lists(st.integers(0, 2000), min_size=1, max_size=60).map(sorted)
LASTS = st.integers(0, 300)


@dataclass
class World:
    """Plays a strategy: each request lasts as long as `lasts` says, by its index."""

    strategy: Strategy
    lasts: list[int]
    step: int = 1
    sent: list[tuple[int, Due]] = field(default_factory=list)
    most: int = 0

    def play(self) -> None:
        now, ends = 0, list[tuple[int, int]]()
        for _ in range(100_000):
            while ends and ends[0][0] <= now:
                end, slot = heapq.heappop(ends)
                self.strategy.ended(slot, end)
            for due in self.strategy.due(now):
                self.sent.append((now, due))
                heapq.heappush(ends, (now + self.lasts[due.index % len(self.lasts)], due.slot))
                self.most = max(self.most, len(ends))
            if not ends and self.strategy.exhausted:
                return
            following = [t for t in (self.strategy.next_time(), ends[0][0] if ends else None) if t is not None]
            # A loop that looks late now and then: by as much as `step`.
            now = max(now, min(following, default=now)) + (len(self.sent) % self.step)
        raise AssertionError("the load never ended")

    @property
    def order(self) -> list[int]:
        return [due.index for _, due in self.sent]


@given(TIMES, st.lists(LASTS, min_size=1, max_size=60), st.one_of(st.none(), st.integers(1, 8)), st.integers(1, 40))
def test_an_open_loop_sends_each_request_once_in_order_and_never_early(
    times: list[int], lasts: list[int], cap: int | None, late: int
) -> None:
    strategy = OpenLoopStrategy(times, cap)
    world = World(strategy, lasts, late)
    world.play()
    assert world.order == list(range(len(times)))
    assert [due.intended for _, due in world.sent] == times
    assert all(now >= due.intended for now, due in world.sent)
    assert cap is None or world.most <= cap
    assert strategy.held <= len(times)
    if cap is None:
        assert strategy.held == 0


@given(TIMES, st.integers(1, 30))
def test_nothing_adds_up_a_late_look_delays_no_later_request(times: list[int], late: int) -> None:
    world = World(OpenLoopStrategy(times, None), [5], late)
    world.play()
    # Late by one look at most, however many there were before.
    assert all(now - due.intended < 2 * late + 5 for now, due in world.sent)


def test_what_a_cap_holds_back_keeps_its_intended_time() -> None:
    strategy = OpenLoopStrategy([0, 100, 200, 300, 400], 1)
    world = World(strategy, [500])
    world.play()
    assert [now for now, _ in world.sent] == [0, 500, 1000, 1500, 2000]
    assert [now + 500 - due.intended for now, due in world.sent] == [500, 900, 1300, 1700, 2100]
    assert strategy.held == 4


@given(st.lists(LASTS, min_size=1, max_size=40), st.integers(1, 5), st.integers(0, 2000))
def test_a_closed_loop_sends_nothing_after_its_time(lasts: list[int], slots: int, end: int) -> None:
    requests = [RequestPlan(f"r{i}", 1, 1, 0, 0) for i in range(50)]
    plain = World(ClosedLoopStrategy(requests, slots, 0), lasts)
    plain.play()
    until = Until(ClosedLoopStrategy(requests, slots, 0), end)
    cut = World(until, lasts)
    cut.play()
    assert cut.sent == [(now, due) for now, due in plain.sent if now < end]
    last = max(now + lasts[due.index % len(lasts)] for now, due in cut.sent) if cut.sent else 0
    assert until.ran_out == (len(cut.sent) == 50 and last < end)


def test_a_wave_that_has_begun_goes_out_whole() -> None:
    world = World(Until(BatchStrategy(12, 4, 0), 150), [100])
    world.play()
    assert world.order == list(range(8))
    assert {now for now, _ in world.sent} == {0, 100}


@given(TIMES, st.lists(LASTS, min_size=1, max_size=60))
def test_slots_of_an_open_loop_are_as_many_as_were_ever_in_flight(times: list[int], lasts: list[int]) -> None:
    world = World(OpenLoopStrategy(times, None), lasts)
    world.play()
    assert max(due.slot for _, due in world.sent) + 1 == world.most


def test_a_loop_whose_time_is_over_waits_for_no_think_time() -> None:
    inner = ClosedLoopStrategy([RequestPlan(f"r{i}", 1, 1, 0, 0) for i in range(4)], 1, 0, think=50)
    loop = Until(inner, 100)
    assert [due.index for due in loop.due(0)] == [0]
    loop.ended(0, 80)
    assert loop.next_time() == 130
    assert not list(loop.due(130))
    assert loop.next_time() is None
    assert loop.exhausted
