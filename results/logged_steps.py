"""What an engine's own log says of its steps, as an adapter reads it; `results.step_log` keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

from results.clock import NS_PER_S

# What no step holds or takes: such a line is damaged. Counts are kept in 32 bits.
MOST_HELD = (1 << 31) - 1
LONGEST_NS = 3600 * NS_PER_S
_MOST_STEPS = (1 << 63) - 1
# A line is written a moment after its stamp, and while a cell runs the wall clock may be set by so much.
_CLOCK_OFF_NS = NS_PER_S


class LoggedStep(NamedTuple):
    """One step of a log; fields as in `LoggedSteps`."""

    step: int
    before: int | None
    end: int
    uncertain_ns: int | None
    prefills: int
    prefill_tokens: int
    decodes: int
    device_ns: int | None

    def can_be(self, began: int, ended: int) -> bool:
        """Whether a step of the time from `began` to `ended` can be so: what it held, and when it ended."""
        counts = (self.prefills, self.prefill_tokens, self.decodes)
        uncertain = self.uncertain_ns or 0
        off = max(uncertain, _CLOCK_OFF_NS)
        return (
            0 <= self.step <= _MOST_STEPS
            and all(0 <= count <= MOST_HELD for count in counts)
            and 0 <= uncertain <= LONGEST_NS
            and began - off <= self.end <= ended + off
        )


@dataclass(slots=True)
class LoggedSteps:
    """One element a step in each list, in the order they ran; columns as in `results.schema.LOGGED_STEPS`, stamps in ns of the
    wall clock."""

    step: list[int] = field(default_factory=list)
    before: list[int | None] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    uncertain_ns: list[int | None] = field(default_factory=list)
    prefills: list[int] = field(default_factory=list)
    prefill_tokens: list[int] = field(default_factory=list)
    decodes: list[int] = field(default_factory=list)
    device_ns: list[int | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.end)

    def within(self, began: int, ended: int) -> LoggedSteps:
        """Those that can be steps of the time from `began` to `ended`, ns of the wall clock. An end that is beyond by no more than
        it is uncertain, or a second, is moved inside; one before the end in front of it (a clock was set back) to that end."""
        kept = LoggedSteps()
        last: int | None = None
        for row in map(LoggedStep._make, zip(*(getattr(self, f.name) for f in fields(self)), strict=True)):
            if not row.can_be(began, ended):
                continue
            end = max(min(max(row.end, began), ended), began if last is None else last)
            told = row.before is not None and (began if last is None else last) <= row.before <= end
            device = row.device_ns if row.device_ns is not None and 0 <= row.device_ns <= LONGEST_NS else None
            kept.append(row._replace(end=end, before=row.before if told else last, device_ns=device))
            last = end
        return kept

    def append(self, row: LoggedStep) -> None:
        """A further step, behind the others."""
        for f, value in zip(fields(self), row, strict=True):
            getattr(self, f.name).append(value)
