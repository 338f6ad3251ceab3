"""One answer on its way: what is due when, and the stamps of what was sent."""

from __future__ import annotations

from array import array

from harness.truth.answers import Answer
from harness.truth.connection import Connection, Request
from harness.truth.schedule import Fault, Schedule
from results.clock import NS_PER_S

# How an answer ended: sent whole, the client gone first, or a fault (by its name).
DONE, LOST = "done", "lost"
_NO_ANSWER = (Fault.UNAVAILABLE, Fault.NEVER, Fault.HANG_UP)


class Stream:
    """The answer to request number `index`. `due` holds the instants (monotonic ns) at which its chunks are to be sent."""

    __slots__ = (
        "answer",
        "connection",
        "due",
        "fault",
        "fault_at",
        "id",
        "index",
        "opened",
        "outcome",
        "received",
        "sent",
        "stall",
    )

    def __init__(
        self, connection: Connection, request: Request, index: int, answer: Answer, schedule: Schedule
    ) -> None:
        self.connection: Connection | None = connection
        self.id, self.received = request.id, request.received
        self.index, self.answer = index, answer
        chunks = schedule.chunks(answer.form.tokens)
        offsets = schedule.offsets(index, chunks)
        if not answer.form.stream:
            offsets = offsets[-1:]
        self.due = array("q", [self.received + offset for offset in offsets])
        self.sent = array("q")
        self.fault = schedule.fault_of(index)
        self.fault_at = min(schedule.fault_after, len(self.due) - 1) if self.fault else -1
        if self.fault in _NO_ANSWER:
            self.fault_at = 0
        self.stall = round(schedule.stall_s * NS_PER_S)
        self.opened = False
        self.outcome = ""

    @property
    def tokens(self) -> list[int]:
        """Tokens in each chunk that was sent."""
        form = self.answer.form
        return [form.tokens_of(chunk) for chunk in range(len(self.sent))]

    def opening(self) -> bytes:
        """The head of the answer if it was not sent yet; from now on it was."""
        if self.opened:
            return b""
        self.opened = True
        return self.answer.opening

    def next_bytes(self) -> bytes:
        """The next chunk, with the head before the first and the end behind the last."""
        answer, at = self.answer, len(self.sent)
        if not answer.form.stream:
            return answer.whole()
        data = answer.chunk(at)
        if not self.opened:
            data = self.opening() + data
        return data + answer.end if at + 1 == len(self.due) else data

    def pause(self, now: int) -> None:
        """Put off what is left, so that nothing comes for the stall's time from `now` on; the fault has happened."""
        self.fault_at = -1
        first = len(self.sent)
        by = max(0, now - self.due[first]) + self.stall
        for at in range(first, len(self.due)):
            self.due[at] += by
