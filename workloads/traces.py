"""Replay of recorded traffic: arrivals and lengths of a trace, with prompts of random ids (a trace holds no text)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from results.errors import UnknownNameError
from workloads.base import PlannedRequest, Vocabulary, draw_ids, ordinary_ids, request_seed
from workloads.from_file import DROPPED, FromFile
from workloads.lines import Skipped, as_text, read_file
from workloads.trace_files import FORMATS, Row, Trace, guess_format, read_trace

_BLOCK = 512
# Blocks of shared prompts kept at hand while a trace is planned.
_KEPT_BLOCKS = 1 << 14


class TraceWorkload(FromFile):
    """`path` in one of the `FORMATS`; the first `rows` of it where that is given.

    Requests of equal time go `together` (at the same instant, in the order of the file), or `spread` evenly until the next
    later time, as befits a trace of whole seconds. A trace with block ids (Mooncake) gets prompts that begin alike where the
    ids do. Played by a schedule without times of its own; other loads take the lengths alone.
    """

    type: Literal["trace"] = "trace"
    format: str = ""
    equal_times: Literal["together", "spread"] = "together"
    rows: int | None = Field(None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _format(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("path"), str) or not values["path"]:
            return values
        if not values.get("format"):
            text = as_text(values["path"], read_file(values["path"])[0])
            return {**values, "format": guess_format(values["path"], text)}
        if values["format"] not in FORMATS:
            raise UnknownNameError("trace format", str(values["format"]), list(FORMATS))
        return values

    @property
    def trace(self) -> Trace:
        """The trace as it was read, cut to `rows`. Raises UsageError where too much of it cannot be used."""
        found = read_trace(self.path, self.sha256, self.format)
        found.skipped.check(self.max_skipped)
        return found if self.rows is None else replace(found, rows=found.rows[: self.rows])

    def skipped(self) -> Skipped:
        return self.trace.skipped

    def notes(self) -> list[str]:
        """What else of the file the result has to tell."""
        late = self.trace.unsorted
        return [f"{late} rows stood after a later one and were put in order"] if late else []

    @property
    def longest_input(self) -> int:
        return min(self._most[0], self.max_len - 1 if self.max_len else self._most[0])

    @property
    def longest_output(self) -> int:
        return min(self._most[1], self.max_len - 1 if self.max_len else self._most[1])

    @property
    def longest(self) -> int:
        return min(self._most[2], self.max_len or self._most[2])

    @property
    def _most(self) -> tuple[int, int, int]:
        rows = self.trace.rows
        return (
            max(r.input_tokens for r in rows),
            max(r.output_tokens for r in rows),
            max(r.input_tokens + r.output_tokens for r in rows),
        )

    @property
    def expected_input(self) -> int:
        rows = self.trace.rows
        return sum(r.input_tokens for r in rows) // len(rows)

    @property
    def expected_output(self) -> int:
        rows = self.trace.rows
        return max(1, sum(r.output_tokens for r in rows) // len(rows))

    @property
    def label(self) -> str:
        return f"{self.name} ({self.format})"

    def available(self) -> int | None:
        """The most requests there can be; None where rows may be sent again."""
        return None if self.oversample else len(self.trace.rows)

    def times_ns(self) -> list[int]:
        """When each row is to be sent, in ns after the first, at the speed of the trace."""
        times = [row.at_ns for row in self.trace.rows]
        return spread_equal(times) if self.equal_times == "spread" else times

    def requests(self, n: int, seed: int, vocabulary: Vocabulary) -> list[PlannedRequest]:
        """The first `n` rows (all, where there are fewer and none may be sent again)."""
        return list(islice(self.stream(n, seed, vocabulary), n))

    def stream(self, n: int, seed: int, vocabulary: Vocabulary) -> Iterator[PlannedRequest]:
        """At most `n` requests one by one, in order of time, each with its time."""
        ordinary = ordinary_ids(vocabulary)
        rng = np.random.default_rng(seed)

        @lru_cache(maxsize=_KEPT_BLOCKS)
        def block(number: int) -> tuple[int, ...]:
            return draw_ids(np.random.default_rng(request_seed(seed, number)), ordinary, _BLOCK)

        rows, times = self.trace.rows, self.times_ns()
        sent = dropped = 0
        while sent < n:
            before = sent
            for row, at in zip(rows, times, strict=True):
                prompt = _prompt(row, rng, ordinary, block)
                made = self.fit(PlannedRequest(prompt, row.output_tokens, at), f"line {row.line}", row.output_tokens)
                if made is None:
                    dropped += 1
                    continue
                yield replace(made, marks=made.marks + (DROPPED,) * dropped) if dropped else made
                sent, dropped = sent + 1, 0
                if sent >= n:
                    return
            if sent == before or not self.oversample:
                return


def _prompt(row: Row, rng: np.random.Generator, ordinary: NDArray[np.int64], block: Any) -> tuple[int, ...]:
    """Ids of the row's length: its blocks in turn, what they do not cover its own."""
    ids: list[int] = []
    for number in row.blocks:
        ids += block(number)
    ids = ids[: row.input_tokens]
    return (*ids, *draw_ids(rng, ordinary, row.input_tokens - len(ids)))


def spread_equal(times: list[int]) -> list[int]:
    """Equal times spread evenly until the next later one; the last ones over as long as the gap before them (or a second)."""
    out: list[int] = []
    gap = 1_000_000_000
    start = 0
    while start < len(times):
        end = start
        while end < len(times) and times[end] == times[start]:
            end += 1
        gap = times[end] - times[start] if end < len(times) else gap
        out += [times[start] + gap * i // (end - start) for i in range(end - start)]
        start = end
    return out
