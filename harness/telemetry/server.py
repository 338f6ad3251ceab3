"""What the server says of itself in its metrics endpoint, under neutral names."""

from __future__ import annotations

from collections.abc import Sequence

from backends.base import MetricRule
from backends.http_probe import ProbeError, get
from backends.prometheus import metrics_reader
from harness.telemetry.sample import Sample
from results.clock import now_ns


class ServerSampler:
    """Scrapes one endpoint. A server that does not answer gives nulls with the reason, not gaps and never zeros."""

    source = "server"

    def __init__(
        self,
        url: str,
        path: str,
        rules: Sequence[MetricRule],
        key_env: str | None,
        timeout_s: float,
        reader: str | None = None,
    ) -> None:
        self._url, self._path, self._rules = url, path, tuple(rules)
        self._reader = metrics_reader(reader, self._rules)
        self._key_env, self._timeout_s = key_env, max(timeout_s, self._reader.timeout_s)

    def sample(self) -> list[Sample]:
        """One scrape. The values hold at some instant between the two stamps, which enclose the exchange."""
        t0 = now_ns()
        try:
            reply = get(self._url, self._path, self._timeout_s, self._key_env)
        except ProbeError as error:
            return self._absent(t0, f"no answer from {self._path}: {error}")
        if reply.status != 200:
            return self._absent(t0, f"{self._path} answered HTTP {reply.status}")
        t1 = now_ns()
        values = self._reader.read(reply.text)
        return [
            Sample(
                self.source, rule.neutral, t0, t1, value, None if value is not None else "not in the server's metrics"
            )
            for rule in self._rules
            for value in [values.get(rule.neutral)]
        ]

    def _absent(self, t0: int, reason: str) -> list[Sample]:
        t1 = now_ns()
        return [Sample(self.source, rule.neutral, t0, t1, None, reason) for rule in self._rules]
