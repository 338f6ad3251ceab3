"""One recorded stream of chat answers: role chunks, several tokens a chunk, empty chunks, a finish chunk and usage."""

from __future__ import annotations

import json
from typing import Any

from results.events import Chunks, Requests
from results.schema import ChunkKind

MS = 1_000_000
# (start, kinds with their times in ms after it, output tokens)
_ANSWERS: tuple[tuple[int, list[tuple[float, ChunkKind]], int], ...] = (
    (
        0,
        [
            (20, ChunkKind.ROLE),
            (120, ChunkKind.TEXT),
            (135, ChunkKind.TEXT),
            (160, ChunkKind.TEXT),
            (161, ChunkKind.FINISH),
        ],
        5,
    ),
    (7, [(15, ChunkKind.ROLE), (90, ChunkKind.REASONING), (101, ChunkKind.EMPTY), (140, ChunkKind.TEXT)], 2),
    (30, [(80, ChunkKind.TEXT), (81, ChunkKind.FINISH)], 1),
    (31, [(60, ChunkKind.ROLE), (75, ChunkKind.COMMENT), (95.5, ChunkKind.TEXT), (110.25, ChunkKind.TEXT)], 8),
)
_DELTAS: dict[ChunkKind, dict[str, Any]] = {
    ChunkKind.ROLE: {"delta": {"role": "assistant", "content": ""}},
    ChunkKind.TEXT: {"delta": {"content": "word "}},
    ChunkKind.REASONING: {"delta": {"reasoning_content": "hm "}},
    ChunkKind.EMPTY: {"delta": {"content": ""}},
    ChunkKind.FINISH: {"delta": {}, "finish_reason": "length"},
}
_CHUNK = {"object": "chat.completion.chunk"}
INPUT_TOKENS = 11


def events() -> tuple[Requests, Chunks]:
    """As our client recorded it."""
    requests, chunks = [], []
    for at, (start, parts, tokens) in enumerate(_ANSWERS):
        name, begin = f"r{at}", start * MS
        times = [begin + round(t * MS) for t, _ in parts]
        requests.append(
            {
                "request_id": name,
                "outcome": "ok",
                "sent": begin,
                "end": times[-1] + 3 * MS,
                "output_tokens": tokens,
                "input_tokens_planned": INPUT_TOKENS,
                "input_tokens_counted": INPUT_TOKENS,
                "count_source": "final_usage",
            }
        )
        chunks += [{"request_id": name, "kind": kind, "t": t} for t, (_, kind) in zip(times, parts, strict=True)]
        chunks.append({"request_id": name, "kind": ChunkKind.USAGE, "t": times[-1] + 2 * MS})
    return Requests.of(requests), Chunks.of(chunks)


def messages() -> list[dict[str, Any]]:
    """The same as bytes on the wire: for each answer its start (s) and (time in s, server-sent event) pairs."""
    out = []
    for start, parts, tokens in _ANSWERS:
        said, comment = [], ""
        for t, kind in parts:
            # A comment comes in one read with the next event: read alone, vLLM's client takes it for the beginning of that one.
            if kind is ChunkKind.COMMENT:
                comment = ": ping\n\n"
                continue
            said.append(
                [(start + t) / 1000, f"{comment}data: {json.dumps({**_CHUNK, 'choices': [_DELTAS[kind]]})}\n\n"]
            )
            comment = ""
        usage = {**_CHUNK, "choices": [], "usage": {"prompt_tokens": INPUT_TOKENS, "completion_tokens": tokens}}
        said.append([(start + parts[-1][0] + 2) / 1000, f"data: {json.dumps(usage)}\n\n"])
        said.append([(start + parts[-1][0] + 3) / 1000, "data: [DONE]\n\n"])
        out.append({"start": start / 1000, "tokens": tokens, "events": said})
    return out
