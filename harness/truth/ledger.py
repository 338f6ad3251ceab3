"""What a truth server has done so far: counts always, every stamp where they are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.truth.stream import DONE, Stream


class Ledger:
    """`keeping` False forgets the stamps of answers that have ended: a run of hours would fill the memory."""

    def __init__(self) -> None:
        self.keeping = True
        self.accepted = 0
        self.blocked = 0  # chunks that the kernel did not take at once, since the client did not read
        self.refused = 0
        self._begun = 0
        self._by_outcome: dict[str, int] = {}
        self._tokens = 0
        self._latest = 0
        self._ended: list[Stream] = []

    def begin(self) -> int:
        """One more request for tokens: its number."""
        self._begun += 1
        return self._begun - 1

    def end(self, stream: Stream) -> None:
        """An answer has ended, well or not."""
        outcome = stream.outcome
        self._by_outcome[outcome] = self._by_outcome.get(outcome, 0) + 1
        self._tokens += stream.answer.form.tokens if outcome == DONE else sum(stream.tokens)
        if stream.sent:
            self._latest = max(self._latest, max(map(int.__sub__, stream.sent, stream.due)))
        if self.keeping:
            self._ended.append(stream)

    def counts(self) -> dict[str, Any]:
        """Of all since the start."""
        return {
            "requests": self._begun,
            "active": self._begun - sum(self._by_outcome.values()),
            "by_outcome": dict(self._by_outcome),
            "tokens": self._tokens,
            "accepted": self.accepted,
            "refused": self.refused,
            "blocked": self.blocked,
            "latest_ms": self._latest / 1e6,
        }

    def write(self, folder: Path) -> None:
        """Write the stamps of all answers that have ended since the last time, and forget them. Raises StoreError."""
        import numpy as np

        from harness.truth.stamps import write_truth

        ended, self._ended = self._ended, []
        requests: dict[str, list[Any]] = {
            "request_id": [s.id for s in ended],
            "index": [s.index for s in ended],
            "received": [s.received for s in ended],
            "input_tokens": [s.answer.form.prompt_tokens for s in ended],
            "output_tokens": [sum(s.tokens) for s in ended],
            "outcome": [s.outcome for s in ended],
            "chunks": [len(s.sent) for s in ended],
        }

        def joined(parts: list[Any]) -> Any:
            return np.concatenate(parts) if parts else np.empty(0, np.int64)

        chunks = {
            "sent": joined([np.frombuffer(s.sent, np.int64) for s in ended if s.sent]),
            "due": joined([np.frombuffer(s.due, np.int64)[: len(s.sent)] for s in ended if s.sent]),
            "tokens": joined([np.array(s.tokens, np.int64) for s in ended if s.sent]),
        }
        write_truth(folder, requests, chunks)
