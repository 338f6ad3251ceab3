"""Axes: ticks that a reader can place a mark between, in as few characters as they need."""

from __future__ import annotations

import pytest

from reports.scales import Axis, Scale


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.8, 3.6, [1, 1.5, 2, 3]),
        (0.8, 4.1, [1, 2, 4]),
        (0.6, 0.9, [0.75]),
        (0.9, 300, [1, 4, 16, 64, 256]),
    ],
)
def test_powers_of_two_and_what_lies_between_where_they_are_few(low: float, high: float, ticks: list[float]) -> None:
    assert Scale(Axis("batch", log=2), low, high, 0, 100).ticks(5) == ticks


@pytest.mark.parametrize(("tick", "text"), [(0, "0"), (0.25, "0.25"), (100_000, "100,000"), (2_500_000, "2.5 M")])
def test_a_tick_is_short(tick: float, text: str) -> None:
    assert Scale(Axis("ms"), 0, 1e7, 0, 100).text(tick) == text
