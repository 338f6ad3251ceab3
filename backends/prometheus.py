"""A server's metrics page under neutral names: Prometheus text, read just far enough for a few gauges and counters several
times a second, or whatever else an adapter brings a reader for."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from backends.base import MetricRule

Sample = tuple[str, dict[str, str], float]

_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
# The closing brace that ends the labels: one that is not inside quotes.
_LABELS = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}')
_ESCAPE = re.compile(r"\\(.)")


def parse_prometheus(text: str, names: Collection[str] | None = None) -> list[Sample]:
    """(name, labels, value) of each sample line, of those names only where they are given.

    Lines that are no samples are skipped: a server's page is not ours to judge. Values may be NaN or infinite.
    """
    samples: list[Sample] = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] == "#":
            continue
        brace = line.find("{")
        name = line[:brace].strip() if brace >= 0 else line.split(None, 1)[0]
        if names is not None and name not in names:
            continue
        labels: dict[str, str] = {}
        rest = line[len(name) :]
        if brace >= 0:
            match = _LABELS.match(line, brace)
            if match is None:
                continue
            labels = {key: _unescape(value) for key, value in _LABEL.findall(match[1])}
            rest = line[match.end() :]
        fields = rest.split()
        if not fields:
            continue
        try:
            samples.append((name, labels, float(fields[0])))
        except ValueError:
            continue
    return samples


def metric_names(rules: Iterable[MetricRule]) -> frozenset[str]:
    """Every engine name the rules mention: what `parse_prometheus` has to look at."""
    return frozenset(name for rule in rules for name in rule.names)


def neutral_metrics(rules: Sequence[MetricRule], samples: Iterable[Sample]) -> dict[str, float]:
    """Values under neutral names, summed over labels. What the engine does not tell (or tells as NaN) is absent, not 0.

    The names of a rule are alternatives, the newest first: the first one present counts, so that an engine that still
    shows an old name beside the new one is not counted twice.
    """
    sums: dict[str, float] = {}
    for name, _, value in samples:
        if not math.isnan(value):
            sums[name] = sums.get(name, 0.0) + value
    neutral: dict[str, float] = {}
    for rule in rules:
        for name in rule.names:
            if name in sums:
                neutral[rule.neutral] = sums[name]
                break
    return neutral


class MetricsReader(Protocol):
    """Reads one server's metrics page, again and again."""

    # How long the page may take, where that is longer than usual.
    timeout_s: float

    def read(self, text: str) -> dict[str, float]:
        """Values under neutral names."""


class PrometheusReader:
    """A page of Prometheus text: each reading stands by itself."""

    timeout_s = 0.0

    def __init__(self, rules: Sequence[MetricRule]) -> None:
        self._rules, self._names = tuple(rules), metric_names(rules)

    def read(self, text: str) -> dict[str, float]:
        return neutral_metrics(self._rules, parse_prometheus(text, self._names))


def metrics_reader(path: str | None, rules: Sequence[MetricRule]) -> MetricsReader:
    """A new reader: the adapter's own (`Backend.metrics_reader`), else Prometheus by the rules."""
    if path is None:
        return PrometheusReader(rules)
    module, _, name = path.partition(":")
    reader: MetricsReader = getattr(importlib.import_module(module), name)()
    return reader


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], text) if "\\" in text else text
