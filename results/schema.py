"""The files of a run, column by column. Every table carries its schema version in the Parquet metadata.

All stamps are int64 ns of the monotonic clock (`results.clock`); null means "not known" or "did not happen", never 0.
"""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa

SCHEMA_VERSION = 1
SUMMARY_SCHEMA = 1
_METADATA = {b"dyno_schema": str(SCHEMA_VERSION).encode()}

# The header by which a client names its request to the server; the reference engine's truth log echoes it.
REQUEST_ID_HEADER = "x-request-id"


class ChunkKind(StrEnum):
    """What one server-sent event carried. Only TEXT and REASONING hold generated tokens."""

    ROLE = "role"
    TEXT = "text"
    REASONING = "reasoning"
    EMPTY = "empty"
    FINISH = "finish"
    USAGE = "usage"
    ERROR = "error"
    COMMENT = "comment"


TOKEN_KINDS = (ChunkKind.TEXT, ChunkKind.REASONING)


class Outcome(StrEnum):
    """How a request ended, a closed set. Only OK enters latency; all are counted and shown."""

    OK = "ok"
    HTTP_ERROR = "http_error"
    REFUSED = "refused"
    RESET = "reset"
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"
    STREAM_ERROR = "stream_error"
    SHORT = "short"
    CANCELLED = "cancelled"


# The finish_reason of an answer that the client itself ended because its plan was fulfilled (outcome OK).
ENDED_BY_PLAN = "ended_by_plan"

OUTCOME_WORDS: dict[Outcome, str] = {
    Outcome.OK: "answered in full",
    Outcome.HTTP_ERROR: "the server answered with an HTTP error status",
    Outcome.REFUSED: "no connection could be opened",
    Outcome.RESET: "the connection broke before the answer ended",
    Outcome.TIMEOUT: "connect, first token, between tokens or the whole took longer than allowed",
    Outcome.TRUNCATED: "the body ended cleanly but without an end marker",
    Outcome.STREAM_ERROR: "an error object inside a 200 answer, or nothing of the protocol in it",
    Outcome.SHORT: "no token, or fewer than asked although end-of-sequence was to be ignored",
    Outcome.CANCELLED: "ended by the client",
}


class CountSource(StrEnum):
    """Where the number of output tokens of a request comes from, best first."""

    IDS = "ids"
    CONTINUOUS_USAGE = "continuous_usage"
    FINAL_USAGE = "final_usage"
    CHUNKS = "chunks"


_REQUEST_FIELDS = [
    ("request_id", pa.string()),
    ("slot", pa.int32()),
    ("worker", pa.int32()),
    # intended: when the load plan wanted it sent. queued: when the client took it up. All before `sent`.
    ("intended", pa.int64()),
    ("queued", pa.int64()),
    ("connect_start", pa.int64()),
    ("connect_end", pa.int64()),
    ("sent", pa.int64()),
    ("first_byte", pa.int64()),
    ("first_token", pa.int64()),
    ("last_token", pa.int64()),
    ("end", pa.int64()),
    ("outcome", pa.string()),
    ("http_status", pa.int32()),
    ("error", pa.string()),
    ("input_tokens_planned", pa.int32()),
    ("input_tokens_counted", pa.int32()),
    ("output_tokens_asked", pa.int32()),
    ("output_tokens", pa.int32()),
    ("tokens_in_first_chunk", pa.int32()),
    ("count_source", pa.string()),
    ("finish_reason", pa.string()),
]
_CHUNK_FIELDS = [
    ("request_id", pa.string()),
    ("t", pa.int64()),
    # From the kernel's receive stamp to the client's own read: the client's lateness, already taken out of `t`.
    ("lag", pa.int64()),
    ("kind", pa.string()),
    ("tokens", pa.int32()),
    ("bytes", pa.int32()),
]
_SAMPLE_FIELDS = [
    ("source", pa.string()),
    ("metric", pa.string()),
    ("device", pa.string()),
    # An average belongs to [t0, t1]; a gauge has t0 == t1.
    ("t0", pa.int64()),
    ("t1", pa.int64()),
    ("value", pa.float64()),
    ("reason", pa.string()),
]
# The reference engine's truth: one row a generated token, and one row a step.
_TRUTH_TOKEN_FIELDS = [
    ("request_id", pa.string()),
    ("index", pa.int32()),
    ("step", pa.int64()),
    ("sampled", pa.int64()),
    ("written", pa.int64()),
]
_TRUTH_STEP_FIELDS = [
    ("step", pa.int64()),
    ("start", pa.int64()),
    ("end", pa.int64()),
    ("prefill_tokens", pa.int32()),
    ("decodes", pa.int32()),
    ("prefills", pa.int32()),
    ("running", pa.int32()),
    ("waiting", pa.int32()),
    ("preempted", pa.int32()),
    ("context_tokens", pa.int64()),
    ("blocks_allocated", pa.int32()),
    ("blocks_total", pa.int32()),
    ("tokens_held", pa.int64()),
    # Promised to running requests or held by them; with on-demand admission the same as allocated.
    ("blocks_reserved", pa.int32()),
    # Prompt tokens that the prefix cache spared, and tokens computed for finished rows of a padded batch.
    ("cached_tokens", pa.int32()),
    ("padding_tokens", pa.int32()),
]
# One row a request that left the queue: the step it was first scheduled in, and when that step began.
_TRUTH_SCHEDULED_FIELDS = [
    ("request_id", pa.string()),
    ("step", pa.int64()),
    ("start", pa.int64()),
]
# Steps as an engine's own log tells them, one row a line: less than the truth above. `before` is where the line before ended
# (null for the first), `uncertain_ns` how far off an end may be by the log's own stamps (null: not known).
_LOGGED_STEP_FIELDS = [
    ("step", pa.int64()),
    ("before", pa.int64()),
    ("end", pa.int64()),
    ("uncertain_ns", pa.int64()),
    ("prefills", pa.int32()),
    ("prefill_tokens", pa.int32()),
    ("decodes", pa.int32()),
    ("device_ns", pa.int64()),
]

REQUESTS = pa.schema(_REQUEST_FIELDS, metadata=_METADATA)
CHUNKS = pa.schema(_CHUNK_FIELDS, metadata=_METADATA)
SAMPLES = pa.schema(_SAMPLE_FIELDS, metadata=_METADATA)
TRUTH_TOKENS = pa.schema(_TRUTH_TOKEN_FIELDS, metadata=_METADATA)
TRUTH_STEPS = pa.schema(_TRUTH_STEP_FIELDS, metadata=_METADATA)
TRUTH_SCHEDULED = pa.schema(_TRUTH_SCHEDULED_FIELDS, metadata=_METADATA)
LOGGED_STEPS = pa.schema(_LOGGED_STEP_FIELDS, metadata=_METADATA)
