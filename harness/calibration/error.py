"""How wrong a measurement was: the client's events held against the truth server's own stamps. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.truth.stamps import Truth
from results.clock import NS_PER_MS
from results.events import Chunks, Floats, Ints, Requests
from results.schema import Outcome
from results.tokens import token_chunks


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution by its median, 99th percentile and largest value, in ms; None without values."""

    p50: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, values_ms: Floats) -> Spread:
        if not len(values_ms):
            return cls(None, None, None)
        p50, p99 = np.quantile(values_ms, (0.5, 0.99))
        return cls(float(p50), float(p99), float(values_ms.max()))


@dataclass(frozen=True, slots=True)
class ClientError:
    """Client against truth, request by request. `*_error_ms`: difference of percentiles, client minus truth.

    `arrival_ms` is how far each chunk's arrival lies from its sending; `lost` counts requests that were not answered in
    full, `tokens_wrong` those whose count is not the truth's. `late_ms` is the server's own lateness, `lag_ms` the client's.
    """

    requests: int
    lost: int
    tokens: int
    tokens_wrong: int
    ttft_ms: Spread
    true_ttft_ms: Spread
    gap_ms: Spread
    true_gap_ms: Spread
    arrival_ms: Spread
    lag_ms: Spread
    late_ms: Spread

    @property
    def ttft_error_ms(self) -> tuple[float | None, float | None]:
        """(p50, p99)."""
        return _less(self.ttft_ms.p50, self.true_ttft_ms.p50), _less(self.ttft_ms.p99, self.true_ttft_ms.p99)

    @property
    def worst_p99_ms(self) -> float | None:
        """The larger of the errors at p99, of TTFT and of a chunk's arrival; None where nothing was measured."""
        _, ttft = self.ttft_error_ms
        if ttft is None or self.arrival_ms.p99 is None:
            return None
        return max(abs(ttft), self.arrival_ms.p99)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ttft_error_ms": list(self.ttft_error_ms), "worst_p99_ms": self.worst_p99_ms}


def client_error(requests: Requests, chunks: Chunks, truth: Truth) -> ClientError:
    """Join by request id. TTFT counts from the client's sending on both sides."""
    by_id = {name: row for row, name in enumerate(truth.request_id)}
    ok = requests.outcome == str(Outcome.OK)
    rows = np.array([by_id.get(name, -1) for name in requests.request_id], dtype=np.int64)
    good = np.flatnonzero(ok & (rows >= 0))
    answered, true = requests.take(good), truth.take(rows[good])
    wrong = answered.output_tokens != true.output_tokens
    sent_at = answered.sent
    tokens = token_chunks(answered, chunks)
    same = np.bincount(tokens.request, minlength=len(answered)) == true.chunks
    mine = same[tokens.request]
    # By request and then by time on both sides, so chunk i here is chunk i there (several workers' streams lie in turns).
    t = tokens.t[mine][np.argsort(tokens.request[mine], kind="stable")]
    gaps = tokens.gaps()[mine & ~tokens.first]
    sent, true_gaps = _of(true, same)
    return ClientError(
        requests=len(requests),
        lost=len(requests) - len(good),
        tokens=int(answered.output_tokens.sum()),
        tokens_wrong=int((wrong | ~same).sum()),
        ttft_ms=Spread.of((answered.first_token - sent_at) / NS_PER_MS),
        true_ttft_ms=Spread.of((true.first_sent - sent_at) / NS_PER_MS) if len(true) else Spread.of(np.empty(0)),
        gap_ms=Spread.of(gaps / NS_PER_MS),
        true_gap_ms=Spread.of(true_gaps / NS_PER_MS),
        arrival_ms=Spread.of(np.abs(t - sent) / NS_PER_MS),
        lag_ms=Spread.of(chunks.lag[np.isfinite(chunks.lag)] / NS_PER_MS),
        late_ms=Spread.of(true.late_ms()),
    )


def _of(truth: Truth, which: Any) -> tuple[Ints, Ints]:
    """Send stamps of some requests' chunks, and the gaps within each of them."""
    some = truth.take(np.flatnonzero(which))
    inside = np.ones(len(some.sent), dtype=bool)
    inside[some.start[:-1]] = False
    return some.sent, np.diff(some.sent, prepend=some.sent[:1])[inside]


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
