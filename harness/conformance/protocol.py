"""Checks of the request API: prompts, lengths, streams, counts."""

from __future__ import annotations

import threading
from typing import Any

from backends.http_probe import ProbeError, get
from harness.api_call import Answer
from harness.conformance.base import Bench, CheckFailedError, NotClaimedError, require
from results.schema import ChunkKind, CountSource

MODELS_PATH = "/v1/models"
# A client that reads late makes streams that follow one another seem to touch; one that sends late parts two that do not.
_OVERLAP, _TRIES = 0.4, 3
_TOKEN_KINDS = (ChunkKind.TEXT, ChunkKind.REASONING)


def ready(bench: Bench) -> str:
    """Ready means that it generates: readiness that came before the model was there fails here."""
    answer = bench.complete(bench.prompt(4), 1)
    server = bench.server
    after = "attached" if server.ready_s is None else f"{server.ready_s:.1f} s after launch"
    require(answer.stream.output_tokens == 1, f"asked for 1 token, got {answer.stream.output_tokens}")
    return f"{server.backend.ready_path} answered 200 {after}, and the first request got its token"


def served_name(bench: Bench) -> str:
    """The name that requests carry is one that the server lists and says itself."""
    name = bench.server.served_name
    listed: list[str] | None = None
    try:
        reply = get(bench.server.url, MODELS_PATH, 10, bench.backend.api_key_env())
        document = reply.json() if reply.status == 200 else None
        if isinstance(document, dict) and isinstance(document.get("data"), list):
            listed = [str(entry.get("id")) for entry in document["data"] if isinstance(entry, dict)]
    except ProbeError as error:
        raise CheckFailedError(str(error)) from error
    require(listed is None or name in listed, f"requests carry {name!r}, but {MODELS_PATH} lists {listed}")
    said = bench.complete(bench.prompt(4), 1, stream=False).message.get("model")
    require(said in (None, name), f"asked for {name!r}, the answer says it is from {said!r}")
    return f"{name!r}, {'as listed' if listed else 'accepted (the server lists no models)'}"


def prompt_ids(bench: Bench) -> str:
    """Token ids are taken as they are: nothing is added (a begin-of-text), cut, or encoded again."""
    bench.claims("token_id_prompts")
    lengths = [length for length in (1, 7, 64, 257) if length + 1 <= (bench.server.max_model_len or 10**9)]
    for length in lengths:
        counted = bench.complete(bench.prompt(length), 1).stream.input_tokens
        require(counted is not None, f"{length} ids sent, and the answer does not tell how many it took")
        require(counted == length, f"{length} ids sent, {counted} counted")
    return f"prompts of {', '.join(map(str, lengths))} ids, each counted so"


def exact_length(bench: Bench) -> str:
    """ignore_eos and max_tokens together give exactly so many tokens, streamed or whole."""
    bench.claims("ignore_eos")
    asked = _lengths(bench, 1, 2, 17, 128)
    for length in asked:
        for stream in (True, False):
            answer = bench.complete(bench.prompt(8), length, stream=stream)
            kind = "streamed" if stream else "whole"
            got = answer.stream.output_tokens
            require(got == length, f"asked for {length} tokens ({kind}), got {got}")
            reason = answer.stream.finish_reason
            require(reason == "length", f"{length} tokens ({kind}) ended with finish_reason {reason!r}, not 'length'")
    return f"{', '.join(map(str, asked))} tokens, streamed and whole, each to the token"


def _lengths(bench: Bench, *lengths: int) -> list[int]:
    return [length for length in lengths if length + 8 <= (bench.server.max_model_len or 10**9)]


def final_usage(bench: Bench) -> str:
    """A stream tells how many tokens it read and wrote, and the same as the answer that does not stream."""
    prompt = bench.prompt(12)
    streamed = bench.complete(prompt, 9)
    usages = [event["usage"] for event in streamed.events if isinstance(event.get("usage"), dict)]
    require(bool(usages), "the stream told no usage although stream_options.include_usage was asked")
    last: dict[str, Any] = usages[-1]
    whole = bench.complete(prompt, 9, stream=False).message.get("usage")
    if not isinstance(whole, dict):
        raise CheckFailedError("the answer that does not stream tells no usage")
    for name in ("prompt_tokens", "completion_tokens"):
        require(last.get(name) == whole.get(name), f"{name}: {last.get(name)} streamed, {whole.get(name)} whole")
    return f"{last.get('prompt_tokens')} prompt and {last.get('completion_tokens')} completion tokens, both ways"


def continuous_usage(bench: Bench) -> str:
    """Every event with tokens carries the count so far."""
    bench.claims("continuous_usage")
    answer = bench.complete(bench.prompt(8), 24)
    counts = _counts(answer)
    tokens = [event for event in answer.events if event.get("choices")]
    require(len(counts) == len(tokens), f"{len(counts)} of {len(tokens)} events with choices carry usage")
    require(counts == sorted(counts) and counts[:1] != [0], f"the counts do not rise: {counts[:8]}")
    require(counts[-1] == 24, f"24 tokens asked, the last count is {counts[-1]}")
    source = answer.stream.count_source
    require(source in (CountSource.CONTINUOUS_USAGE, CountSource.IDS), f"the client had to count by {source}")
    return f"{len(counts)} events with their count, 1 to {counts[-1]}"


def _counts(answer: Answer) -> list[int]:
    return [
        int(event["usage"].get("completion_tokens", -1))
        for event in answer.events
        if event.get("choices") and isinstance(event.get("usage"), dict)
    ]


def token_ids(bench: Bench) -> str:
    """The ids of what was generated, as many as were counted, and greedy ones the same streamed or whole."""
    bench.claims("return_token_ids")
    prompt = bench.prompt(8)
    streamed = bench.complete(prompt, 16, return_token_ids=True).stream.token_ids
    require(len(streamed) == 16, f"16 tokens asked, {len(streamed)} ids streamed")
    whole = bench.complete(prompt, 16, stream=False, return_token_ids=True).choice.get("token_ids")
    require(whole == streamed, f"greedy ids differ: streamed {streamed[:6]}..., whole {str(whole)[:40]}")
    return f"16 ids, the same streamed and whole: {', '.join(map(str, streamed[:4]))}, ..."


def first_chunk(bench: Bench) -> str:
    """The first event is the first token. An empty or role event before it would pass for it elsewhere."""
    kinds = [chunk.kind for chunk in bench.complete(bench.prompt(8), 8).stream.chunks]
    kinds = [kind for kind in kinds if kind is not ChunkKind.COMMENT]
    require(
        any(kind in _TOKEN_KINDS for kind in kinds),
        "no event carries text, a count or ids: the time of the first token cannot be told",
    )
    require(kinds[0] in _TOKEN_KINDS, f"the first event is of kind {kinds[0].name.lower()}, without a token")
    return "the first event carries a generated token"


def stream_end(bench: Bench) -> str:
    """A stream ends with one finish_reason and [DONE]; without, a broken connection cannot be told from the end."""
    answer = bench.complete(bench.prompt(8), 8)
    reasons = [c.get("finish_reason") for e in answer.events for c in e.get("choices") or () if c.get("finish_reason")]
    require(answer.stream.done, f"the stream ended without [DONE] (finish_reason {reasons})")
    require(len(reasons) == 1, f"finish_reason was given {len(reasons)} times: {reasons}")
    require(answer.body.rstrip().endswith(b"[DONE]"), "something follows [DONE]")
    return f"finish_reason {reasons[0]!r}, then [DONE]"


def two_at_once(bench: Bench) -> str:
    """Two requests are in flight together, and each gets its own answer."""
    tokens = max(_lengths(bench, 8, 32, 128), default=8)
    shares = []
    for _ in range(_TRIES):
        shares.append(_overlap(_two(bench, tokens)))
        if shares[-1] >= _OVERLAP:
            return f"two streams of {tokens} tokens, {shares[-1]:.0%} of the time generated side by side"
    shown = ", ".join(f"{share:.0%}" for share in shares)
    raise CheckFailedError(f"one is generated when the other is done: their times overlap by {shown} in {_TRIES} tries")


def _two(bench: Bench, tokens: int) -> list[Answer]:
    """Two prompts sent at the same time, each answered as by itself."""
    answers: dict[int, Answer] = {}
    problems: list[str] = []
    start = threading.Barrier(2)
    prompts = [bench.prompt(8), bench.prompt(21)]

    def run(index: int) -> None:
        try:
            start.wait(10)
            answers[index] = bench.complete(prompts[index], tokens)
        except (CheckFailedError, threading.BrokenBarrierError) as error:
            problems.append(str(error))

    threads = [threading.Thread(target=run, args=(i,), name=f"check-{i}", daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(bench.timeout_s + 20)
    require(not problems and len(answers) == 2, "; ".join(problems) or "one of two requests never ended")
    for index, prompt in enumerate(prompts):
        stream = answers[index].stream
        if bench.capabilities.ignore_eos:
            require(stream.output_tokens == tokens, f"asked for {tokens} tokens each, one got {stream.output_tokens}")
        if bench.capabilities.token_id_prompts:
            counted = stream.input_tokens
            require(counted == len(prompt), f"a prompt of {len(prompt)} got the answer of one of {counted}")
    return [answers[0], answers[1]]


def _overlap(answers: list[Answer]) -> float:
    """The part of the longer stream (from first to last token) in which the other one ran too. The shorter would not do:
    a server that was held up sends its tokens in a burst, which a late reader sees beside the end of the other."""
    spans = []
    for answer in answers:
        first, last = answer.stream.first_token, answer.stream.last_token
        if first is None or last is None:
            raise NotClaimedError("the stream does not tell when a token came, so overlap cannot be seen")
        spans.append((first, last))
    longer = max(last - first for first, last in spans)
    both = min(last for _, last in spans) - max(first for first, _ in spans)
    return max(both, 0) / max(longer, 1)


def oversize(bench: Bench) -> str:
    """A prompt that cannot fit is refused as the client's mistake, and the server lives on."""
    limit = bench.server.max_model_len
    if limit is None:
        raise NotClaimedError("the server does not tell its max_model_len")
    if not bench.capabilities.token_id_prompts:
        raise NotClaimedError("prompts are text, so their length in tokens is not known")
    answer = bench.send(bench.body(bench.prompt(limit + 8), 4, stream=False))
    said = answer.trouble()
    require(answer.status != 200, f"{limit + 8} tokens with max_model_len {limit} were answered with 200")
    require(400 <= answer.status < 500, f"{limit + 8} tokens with max_model_len {limit} gave {said}")
    bench.server.check_alive()
    bench.complete(bench.prompt(4), 1)
    return f"{limit + 8} tokens of {limit}: {said[:120]}"
