"""Whose CPU time it was: what neither the server nor the client used, somebody else did."""

from __future__ import annotations

import pytest

from results.events import Samples
from results.server_use import server_use

S = 1_000_000_000


def readings(busy: float, server: float | None, seconds: int = 10) -> Samples:
    """One reading a second of a machine that is `busy` cores busy, its server using `server` of them."""
    rows = []
    for second in range(seconds + 1):
        t = second * S
        rows.append({"source": "host", "metric": "host_busy_s", "t0": t, "t1": t, "value": 100 + busy * second})
        rows.append({"source": "host", "metric": "host_cpus", "t0": t, "t1": t, "value": 2.0})
        value = None if server is None else 7 + server * second
        rows.append(
            {"source": "host", "metric": "server_cpu_s", "t0": t, "t1": t, "value": value, "reason": "not ours"}
        )
    return Samples.of([{"device": None, "reason": None, **row} for row in rows])


@pytest.mark.parametrize(
    ("busy", "server", "client_s", "foreign"),
    [(2.0, 1.9, 0.5, 0.05), (2.0, 0.8, 1.0, 1.1), (1.0, 1.0, 0.5, 0.0)],
)
def test_what_neither_server_nor_client_used_is_told(
    busy: float, server: float, client_s: float, foreign: float
) -> None:
    use = server_use(readings(busy, server), (1 * S, 9 * S))
    assert use.numbers["host_cpus"] == 2
    # The readings used lie on the cell's edges, 8 s apart.
    expected = max(0.0, busy - server - client_s / 8)
    assert use.foreign_cores(client_s) == pytest.approx(expected)
    assert expected == pytest.approx(foreign, abs=0.15)


def test_nothing_is_claimed_of_a_server_that_is_not_ours_or_of_a_short_cell() -> None:
    assert server_use(readings(2.0, None), (1 * S, 9 * S)).foreign_cores(0.1) is None
    assert server_use(readings(2.0, 0.1), (1 * S, 4 * S)).foreign_cores(0.1) is None
    assert server_use(readings(2.0, 0.1), (1 * S, 9 * S)).foreign_cores(None) is None
