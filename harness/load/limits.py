"""When a request has taken too long: the deadlines of one exchange, computed when somebody looks.

No read pays for them. The loop looks at each deadline it knows of and at least every `interval`; only the first-token
limit needs to know what was parsed, and then the loop parses what is there before it judges.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.load.exchange import Exchange
from harness.load.plan import LoadPlan
from results.clock import NS_PER_MS, NS_PER_S

FIRST_TOKEN = "first token"
_NEVER_NS = 10**18


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts in ns, None for none."""

    connect: int | None
    first_token: int | None
    between: int | None
    total: int | None
    interval: int

    @classmethod
    def of(cls, plan: LoadPlan) -> Limits:
        asked = plan.timeouts
        connect, first, between, total = (
            None if value is None else int(value * NS_PER_S)
            for value in (asked.connect_s, asked.first_token_s, asked.between_tokens_s, asked.total_s)
        )
        if not plan.stream:  # one answer in one piece: only its whole can be late
            first = between = None
        # A stream whose first token is found after a check gets its own deadline at the next one.
        interval = NS_PER_S if between is None else min(NS_PER_S, max(between // 4, NS_PER_MS))
        return cls(connect, first, between, total, interval)

    def next(self, exchange: Exchange) -> tuple[int, str]:
        """The deadline that comes first, and its name."""
        best, name = exchange.queued + _NEVER_NS, ""
        if self.total is not None:
            best, name = exchange.queued + self.total, "total"
        if exchange.sent is None:
            began, limit, what = exchange.connect_start, self.connect, "connect"
            if exchange.connect_end is not None:
                began = None
        elif exchange.token_seen:
            began, limit, what = exchange.heard, self.between, "between tokens"
        else:
            began, limit, what = exchange.sent, self.first_token, FIRST_TOKEN
        if began is not None and limit is not None and began + limit < best:
            return began + limit, what
        return best, name

    def words(self, what: str) -> str:
        limit = {
            "connect": self.connect,
            FIRST_TOKEN: self.first_token,
            "between tokens": self.between,
            "total": self.total,
        }[what]
        return f"{what}: more than {(limit or 0) / NS_PER_S:g} s"
