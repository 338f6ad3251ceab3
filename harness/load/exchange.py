"""One request's life at the client: its stamps while it runs, and the judgement once it is over."""

from __future__ import annotations

import orjson

from harness.load.completion import StreamResult, error_text, plain_result, shorten
from harness.load.http import Head
from harness.load.plan import RequestPlan
from harness.load.run import Run
from harness.load.sse import StreamParser
from results.schema import ENDED_BY_PLAN, CountSource, Outcome

# Of a body that is no stream this much is kept.
MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_ERROR_BODY = 64 * 1024


class Exchange:
    """Stamps (ns, None for "did not happen") and what came back. `failure` is how the transport failed, if it did."""

    __slots__ = (
        "_body",
        "_body_size",
        "_parser",
        "cancel_after",
        "connect_end",
        "connect_start",
        "cut",
        "end",
        "failure",
        "first_byte",
        "head",
        "index",
        "intended",
        "last_read",
        "plan",
        "queued",
        "retried",
        "run",
        "sent",
        "slot",
    )

    def __init__(self, index: int, plan: RequestPlan, slot: int, intended: int, queued: int) -> None:
        self.index, self.plan, self.slot = index, plan, slot
        self.intended = min(intended, queued)
        self.queued = queued
        self.connect_start: int | None = None
        self.connect_end: int | None = None
        self.sent: int | None = None
        self.first_byte: int | None = None
        self.end: int | None = None
        self.last_read: int | None = None
        self.head: Head | None = None
        self.failure: tuple[Outcome, str] | None = None
        self.retried = False
        self.run: Run | None = None  # tokens that were read and stand behind all that was handed on to be parsed
        self.cancel_after = plan.cancel_after_tokens
        self.cut = False  # ended by the client when its plan was fulfilled
        self._parser: StreamParser | None = None
        self._body: list[bytes] | None = None
        self._body_size = 0

    @property
    def token_seen(self) -> bool:
        """Has a generated token been found in what was parsed so far, or is it kept in the run?"""
        return self.run is not None or (self._parser is not None and self._parser.result.first_token is not None)

    @property
    def heard(self) -> int | None:
        """When something of the answer was last read."""
        if self.run is None or self.last_read is None:
            return self.last_read
        return max(self.last_read, self.run.read)

    @property
    def tokens_seen(self) -> int:
        """Generated tokens in what was parsed so far."""
        return self._parser.tokens_so_far if self._parser is not None else 0

    def take(self, t: int, lag: int | None, data: bytes) -> None:
        """A piece of the body, in order; called when there is time for it, not when it arrives."""
        if self._parser is not None:
            self._parser.feed(t, lag, data)
        elif self._body is not None:
            if self._body_size <= MAX_BODY_BYTES:
                self._body.append(data)
                self._body_size += len(data)
        elif self._is_stream(data):
            self._parser = StreamParser()
            self._parser.feed(t, lag, data)
        else:
            self._body = [data]
            self._body_size = len(data)

    def take_run(self, run: Run) -> None:
        """The tokens of a run, in order with the pieces."""
        if self._parser is None:
            self._parser = StreamParser()
        self._parser.take_run(run)

    @property
    def is_events(self) -> bool:
        """Its head says that the answer is an event stream."""
        head = self.head
        if head is None or not 200 <= head.status < 300 or _coding(head):
            return False
        return "event-stream" in head.headers.get("content-type", "").lower()

    def _is_stream(self, data: bytes) -> bool:
        """By its type; where the server names neither, JSON is what begins with a brace."""
        if self.is_events:
            return True
        head = self.head
        if head is None or not 200 <= head.status < 300 or _coding(head):
            return False
        kind = head.headers.get("content-type", "").lower()
        return "json" not in kind and not data.lstrip().startswith(b"{")

    def settle(self, ignore_eos: bool) -> tuple[Outcome, str | None, StreamResult]:
        """Outcome, error text and counts; called once, after the last `take`.

        A 200 answer in one JSON object is understood whether or not streaming was asked for: its tokens are counted
        from its usage, it has no chunks and so no first token, and its last token came with its last byte. One that the
        client ended because its plan was fulfilled is answered in full.
        """
        if self._parser is not None:
            result = self._parser.finish()
            if self.cut:
                result.finish_reason = ENDED_BY_PLAN
        else:
            result = self._plain_result()
            if result.output_tokens or result.wrote:
                result.last_token = self.end  # no token has a time of its own, but the last came with the last byte
        outcome, error = self._judge(result, ignore_eos)
        return outcome, error, result

    @property
    def not_streamed(self) -> bool:
        """A body came that was not an event stream."""
        return self._body is not None

    def _judge(self, result: StreamResult, ignore_eos: bool) -> tuple[Outcome, str | None]:
        head = self.head
        if self.failure is not None and self.failure[0] is Outcome.CANCELLED:
            return self.failure
        if head is not None and not 200 <= head.status < 300:
            return Outcome.HTTP_ERROR, self._http_error(head)
        if head is not None and (coding := _coding(head)):
            return Outcome.STREAM_ERROR, f"the answer came with content-encoding {coding!r} although none was accepted"
        if result.error is not None:
            return Outcome.STREAM_ERROR, result.error
        # With [DONE] the answer was whole, whatever became of the connection afterwards.
        if self.failure is not None and not (result.done and self.failure[0] is Outcome.RESET):
            return self.failure
        if result.finish_reason in ("error", "abort"):
            return Outcome.STREAM_ERROR, f"the server ended the answer with finish_reason {result.finish_reason!r}"
        if self.cut:
            return Outcome.OK, None
        if not result.terminal:
            return Outcome.TRUNCATED, "the answer ended without finish_reason, usage or [DONE]"
        if self.plan.output_tokens > 0 and not result.output_tokens and not result.wrote:
            return self._judge_nothing(result, ignore_eos)
        if ignore_eos and self._is_short(result):
            return Outcome.SHORT, (
                f"{result.output_tokens} of {self.plan.output_tokens} tokens although end-of-sequence was to be ignored "
                f"(finish_reason {result.finish_reason!r})"
            )
        return Outcome.OK, None

    def _judge_nothing(self, result: StreamResult, ignore_eos: bool) -> tuple[Outcome, str | None]:
        """A whole answer without a token although some were asked for."""
        asked = self.plan.output_tokens
        if not result.answers:
            return (
                Outcome.STREAM_ERROR,
                f"the answer ended without a choice or usage in it; {asked} tokens were asked for",
            )
        # Only a model that may end by itself, on a server that counts, can have said nothing.
        if not ignore_eos and result.count_source is not None and result.finish_reason == "stop":
            return Outcome.OK, None
        return Outcome.SHORT, f"no token of {asked} asked for (finish_reason {result.finish_reason!r})"

    def _is_short(self, result: StreamResult) -> bool:
        if result.output_tokens >= self.plan.output_tokens:
            return False
        # A count of chunks is only a lower bound of the tokens: then the server's own word must confirm it.
        if result.count_source is None:
            return False
        known = result.count_source is not CountSource.CHUNKS
        return known or result.finish_reason == "stop"

    def _http_error(self, head: Head) -> str:
        body = b"".join(self._body or [])[:_MAX_ERROR_BODY]
        try:
            said = error_text(orjson.loads(body))
        except orjson.JSONDecodeError:
            said = shorten(body.decode("utf-8", "replace"))
        if location := head.headers.get("location"):
            said = f"redirect to {shorten(location, 200)} (not followed) {said}".rstrip()
        return f"HTTP {head.status}: {said or 'no body'}"

    def _plain_result(self) -> StreamResult:
        """What an answer without a stream said."""
        result = StreamResult()
        if self._body is None or self.head is None or not 200 <= self.head.status < 300:
            return result
        body = b"".join(self._body)
        try:
            return plain_result(orjson.loads(body))
        except orjson.JSONDecodeError:
            if self.failure is None:
                said = shorten(body[:2000].decode("utf-8", "replace"))
                result.error = f"the answer is neither an event stream nor JSON: {said}"
            return result


def _coding(head: Head) -> str:
    """The content coding of an answer; empty where there is none."""
    coding = ", ".join(head.tokens("content-encoding"))
    return "" if coding == "identity" else coding
