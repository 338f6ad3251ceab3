"""The server over real HTTP: answers, streams, refusals, disconnects, truth."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pyarrow as pa
import pytest

from results.schema import TRUTH_SCHEDULED, TRUTH_STEPS, TRUTH_TOKENS
from tests.backends.reference.server_process import Answer, ServerProcess, running_server
from tests.backends.reference.test_model import built, generate
from tests.waiting import LONG_S, wait_until

PROMPT = [5, 6, 7, 8]
EOS_AT = 3  # the model's fourth token after PROMPT is its end of sequence
# Long enough for a request to be still running whenever a test gets round to dropping it.
MODEL_LEN = 32768
POOL = ["--dtype", "float32", "--kv-cache-tokens", str(MODEL_LEN), "--max-model-len", str(MODEL_LEN)]


@pytest.fixture(scope="module")
def greedy(tiny_dir: Path) -> list[int]:
    """What the engine makes of PROMPT in this process."""
    return generate(built(tiny_dir), [PROMPT], 40)[0]


@pytest.fixture(scope="module")
def folder(tiny_dir: Path, greedy: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with more positions, saying its end of sequence after PROMPT and three tokens."""
    copy = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(tiny_dir, copy)
    assert greedy[EOS_AT] not in greedy[:EOS_AT]
    config = json.loads((copy / "config.json").read_text()) | {"max_position_embeddings": MODEL_LEN}
    (copy / "config.json").write_text(json.dumps(config))
    template = (
        "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    (copy / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [greedy[EOS_AT], 500]}))
    return copy


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("server")
    with running_server(folder, home / "log", *POOL, "--truth-dir", str(home / "truth")) as running:
        yield running


def truth_dir(server: ServerProcess) -> Path:
    return server.log.parent / "truth"


def events(answer: Answer) -> Iterator[Any]:
    """Decoded data of each event; the string "[DONE]" at the end."""
    for line in answer.lines():
        if line:
            assert line.startswith("data: "), line
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def stream(server: ServerProcess, request_id: str = "", path: str = "/v1/completions", **body: Any) -> list[Any]:
    with streaming(server, request_id, path, **body) as answer:
        return list(events(answer))


@contextmanager
def streaming(
    server: ServerProcess, request_id: str = "", path: str = "/v1/completions", **body: Any
) -> Iterator[Answer]:
    headers = {"X-Request-Id": request_id} if request_id else {}
    content = json.dumps({"temperature": 0, "stream": True} | body).encode()
    with server.ask(path, content, **headers) as answer:
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer


def rows(path: Path) -> list[dict[str, Any]]:
    """What a truth file holds by now, complete or still growing."""
    found: list[dict[str, Any]] = []
    try:
        for batch in pa.ipc.open_stream(path):
            found.extend(batch.to_pylist())
    except (pa.ArrowInvalid, EOFError, OSError):
        pass  # the end of a file that still grows
    return found


def token_rows(server: ServerProcess, request_id: str) -> list[dict[str, Any]]:
    return [row for row in rows(truth_dir(server) / "truth.arrows") if row["request_id"] == request_id]


def test_token_ids_in_and_out_with_exact_usage(server: ServerProcess, greedy: list[int]) -> None:
    answer = server.complete(prompt=PROMPT, max_tokens=40, ignore_eos=True, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == greedy
    assert choice["prompt_token_ids"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 40, "total_tokens": 44}
    assert (answer["object"], answer["model"]) == ("text_completion", "tiny")


def test_end_of_sequence_stops_unless_it_is_to_be_ignored(server: ServerProcess, greedy: list[int]) -> None:
    answer = server.complete(prompt=PROMPT, max_tokens=40, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == greedy[: EOS_AT + 1]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == EOS_AT + 1


def test_text_prompts_and_lists_of_prompts(server: ServerProcess) -> None:
    single = server.complete(prompt="Hi there", max_tokens=5, ignore_eos=True, return_token_ids=True)
    ids = single["choices"][0]["prompt_token_ids"]
    assert single["usage"]["prompt_tokens"] == len(ids) > 0
    both = server.complete(prompt=["Hi there", "Yes"], max_tokens=5, ignore_eos=True)
    assert [choice["index"] for choice in both["choices"]] == [0, 1]
    assert both["choices"][0]["text"] == single["choices"][0]["text"]
    assert both["usage"]["completion_tokens"] == 10
    lists = server.complete(prompt=[ids, PROMPT], max_tokens=5, ignore_eos=True)
    assert lists["choices"][0]["text"] == single["choices"][0]["text"]


def test_stream_has_one_event_a_token_and_joins_to_the_whole(server: ServerProcess, greedy: list[int]) -> None:
    whole = server.complete(prompt=PROMPT, max_tokens=40, ignore_eos=True)
    made = stream(
        server,
        prompt=PROMPT,
        max_tokens=40,
        ignore_eos=True,
        return_token_ids=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    *tokens, usage, done = made
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert [event["choices"][0]["token_ids"] for event in tokens] == [[token] for token in greedy]
    assert "".join(event["choices"][0]["text"] for event in tokens) == whole["choices"][0]["text"]
    assert [event["usage"]["completion_tokens"] for event in tokens] == list(range(1, 41))
    assert {event["usage"]["prompt_tokens"] for event in tokens} == {4}
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 39 + ["length"]


def test_plain_stream_carries_no_usage(server: ServerProcess) -> None:
    made = stream(server, prompt=PROMPT, max_tokens=3)
    assert made[-1] == "[DONE]"
    assert all("usage" not in event and event["choices"] for event in made[:-1])


def test_stream_of_several_prompts_tells_them_apart(server: ServerProcess, greedy: list[int]) -> None:
    made = stream(server, prompt=[PROMPT, [9]], max_tokens=6, ignore_eos=True, return_token_ids=True)
    by_index: dict[int, list[int]] = {0: [], 1: []}
    for event in made[:-1]:
        by_index[event["choices"][0]["index"]] += event["choices"][0]["token_ids"]
    assert by_index[0] == greedy[:6]
    assert len(by_index[1]) == 6


def test_seed_fixes_a_sampled_answer_and_its_absence_does_not(server: ServerProcess) -> None:
    def ids(**body: Any) -> list[int]:
        asked = {"prompt": PROMPT, "max_tokens": 20, "temperature": 1.5, "ignore_eos": True, "return_token_ids": True}
        return server.complete(**(asked | body))["choices"][0]["token_ids"]

    assert ids(seed=3) == ids(seed=3) != ids(seed=4)
    assert ids() != ids()


def test_logprobs_streamed_join_to_those_of_the_whole_answer(server: ServerProcess, greedy: list[int]) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 6, "ignore_eos": True, "logprobs": 2}
    asked |= {"return_tokens_as_token_ids": True}
    whole = server.complete(**asked)["choices"][0]["logprobs"]
    assert whole["tokens"] == [f"token_id:{token}" for token in greedy[:6]]
    for token, logprob, top in zip(whole["tokens"], whole["token_logprobs"], whole["top_logprobs"], strict=True):
        assert len(top) == 2
        assert max(top, key=top.get) == token  # greedy
        assert top[token] == logprob < 0
    assert whole["text_offset"] == [sum(map(len, whole["tokens"][:i])) for i in range(6)]
    pieces = [event["choices"][0]["logprobs"] for event in stream(server, **asked)[:-1]]
    assert {field: [part for piece in pieces for part in piece[field]] for field in whole} == whole


def test_echo_scores_a_given_text_without_generating(server: ServerProcess) -> None:
    answer = server.complete(prompt="Hi there", max_tokens=0, echo=True, logprobs=0)
    (choice,) = answer["choices"]
    assert choice["text"] == "Hi there" == "".join(choice["logprobs"]["tokens"])
    assert answer["usage"]["completion_tokens"] == 0
    told = choice["logprobs"]
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert all(
        list(top.values()) == [p] for top, p in zip(told["top_logprobs"][1:], told["token_logprobs"][1:], strict=True)
    )
    more = server.complete(prompt="Hi there", max_tokens=2, echo=True, logprobs=0, ignore_eos=True)["choices"][0]
    assert more["text"].startswith("Hi there")
    assert more["logprobs"]["token_logprobs"][: len(told["tokens"])] == told["token_logprobs"]
    assert len(more["logprobs"]["tokens"]) == len(told["tokens"]) + 2


def test_prompt_logprobs_tell_each_prompt_token_by_id(server: ServerProcess) -> None:
    choice = server.complete(prompt=PROMPT, max_tokens=1, prompt_logprobs=2)["choices"][0]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert choice["logprobs"] is None
    for token, told in zip(PROMPT[1:], others, strict=True):
        assert len(told) == (2 if told[str(token)]["rank"] <= 2 else 3)
        assert {1, 2} <= {entry["rank"] for entry in told.values()}
        assert all(entry["logprob"] < 0 for entry in told.values())


def test_stop_string_ends_a_request_streamed_or_not_and_frees_it(server: ServerProcess) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 20000, "ignore_eos": True, "return_token_ids": True}
    whole = server.complete(**(asked | {"max_tokens": 40}))["choices"][0]
    stop = whole["text"][9:12]
    before = server.metric('vllm:request_success_total{model_name="tiny",engine="0",finished_reason="stop"}')
    answer = server.complete(**asked, stop=["never there", stop])
    (choice,) = answer["choices"]
    assert choice["text"] == whole["text"][: whole["text"].index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["token_ids"] == whole["token_ids"][: len(choice["token_ids"])]
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"]) < 40
    *events_, done = stream(server, **asked, stop=stop)
    assert done == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in events_) == choice["text"]
    assert [event["choices"][0]["finish_reason"] for event in events_] == [None] * (len(events_) - 1) + ["stop"]
    assert [token for event in events_ for token in event["choices"][0]["token_ids"]] == choice["token_ids"]
    wait_until(lambda: idle(server), "what ran on is stopped")
    after = server.metric('vllm:request_success_total{model_name="tiny",engine="0",finished_reason="stop"}')
    assert after == before + 2


def test_stop_token_ids_and_min_tokens(server: ServerProcess, greedy: list[int]) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 40, "return_token_ids": True}
    (choice,) = server.complete(**asked, ignore_eos=True, stop_token_ids=[greedy[5]])["choices"]
    first = greedy.index(greedy[5])
    assert choice["token_ids"] == greedy[: first + 1]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", greedy[5])
    plain = server.complete(**(asked | {"max_tokens": first + 1}), ignore_eos=True)["choices"][0]
    assert plain["text"].startswith(choice["text"])  # the stop token itself has no text
    (long,) = server.complete(**asked, min_tokens=20)["choices"]
    assert len(long["token_ids"]) > 20 > EOS_AT
    assert greedy[EOS_AT] not in long["token_ids"][:20]


CHAT = [{"role": "user", "content": "Hi there"}]


def test_chat_prompt_is_rendered_by_the_template_and_answered_whole_and_streamed(server: ServerProcess) -> None:
    asked: dict[str, Any] = {"messages": CHAT, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    whole = server.post("/v1/chat/completions", **asked)
    (choice,) = whole["choices"]
    rendered = server.complete(
        prompt="user: Hi there\nassistant:", max_tokens=8, ignore_eos=True, return_token_ids=True
    )
    assert choice["prompt_token_ids"] == rendered["choices"][0]["prompt_token_ids"]
    assert choice["message"] == {"role": "assistant", "content": rendered["choices"][0]["text"]}
    assert (whole["object"], whole["usage"]) == ("chat.completion", rendered["usage"])
    options = {"include_usage": True, "continuous_usage_stats": True}
    role, *tokens, usage, done = stream(server, path="/v1/chat/completions", **asked, stream_options=options)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert role["usage"]["completion_tokens"] == 0
    assert {event["object"] for event in (role, *tokens)} == {"chat.completion.chunk"}
    assert "".join(event["choices"][0]["delta"]["content"] for event in tokens) == choice["message"]["content"]
    assert [event["usage"]["completion_tokens"] for event in tokens] == list(range(1, 9))
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 7 + ["length"]
    assert (usage["usage"], done) == (whole["usage"], "[DONE]")


def test_official_client_chats_with_log_probabilities(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        parts: Any = [{"role": "user", "content": [{"type": "text", "text": "Hi there"}]}]
        made = client.chat.completions.create(
            model="tiny",
            messages=parts,
            max_completion_tokens=3,
            logprobs=True,
            top_logprobs=2,
            temperature=0,
            top_p=0.5,
        )
        told = made.choices[0].logprobs
        assert told is not None
        assert told.content is not None
        assert [len(token.top_logprobs) for token in told.content] == [2] * len(told.content)
        assert all(token.logprob == token.top_logprobs[0].logprob for token in told.content)
        deltas = client.chat.completions.create(model="tiny", messages=parts, max_tokens=3, temperature=0, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in deltas) == made.choices[0].message.content


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages must be a list"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": [{"content": "x"}]}, "messages[0] must be an object with a role"),
        ({"messages": [*CHAT, {"role": "user"}]}, "messages[1].content must be"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not text"),
        ({"messages": CHAT, "top_logprobs": 2}, "top_logprobs needs logprobs = true"),
        ({"messages": CHAT, "tools": [{}]}, "tools"),
        ({"messages": [{"role": "bad", "content": "x"}]}, "template refused the messages: no such role"),
        ({"messages": CHAT, "max_tokens": MODEL_LEN}, f"max_model_len is {MODEL_LEN}"),
    ],
)
def test_bad_chats_are_refused_with_the_reason(server: ServerProcess, body: dict[str, Any], message: str) -> None:
    assert message in server.post("/v1/chat/completions", status=400, **body)["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": []}, "0 tokens"),
        ({"prompt": [[]]}, "0 tokens"),
        ({}, "prompt must be"),
        ({"prompt": 5}, "prompt must be"),
        ({"prompt": [1, "a"]}, "prompt must be"),
        ({"prompt": [1, True]}, "prompt must be"),
        ({"prompt": [512]}, "Token id 512 is outside the vocabulary of 512"),
        ({"prompt": [-1]}, "Token id -1"),
        (
            {"prompt": [1] * MODEL_LEN, "max_tokens": 1},
            f"{MODEL_LEN} tokens and max_tokens is 1: {MODEL_LEN + 1} tokens, but max_model_len is {MODEL_LEN}",
        ),
        ({"prompt": [1] * MODEL_LEN}, f"max_model_len is {MODEL_LEN}"),
        ({"prompt": [1] * 68, "max_tokens": MODEL_LEN - 67}, "lower max_tokens by 1"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens must be"),
        ({"prompt": [1], "max_tokens": "5"}, "max_tokens must be"),
        ({"prompt": [1], "temperature": -1}, "temperature must be"),
        ({"prompt": [1], "seed": 1.5}, "seed must be"),
        ({"prompt": [1], "stream": "yes"}, "stream must be"),
        ({"prompt": [1], "stream_options": {"include_usage": True}}, "stream_options needs stream"),
        ({"prompt": [1], "n": 2}, "n = 2 is not supported"),
        ({"prompt": [1], "logprobs": 21}, "logprobs must be a whole number from 0 to 20, not 21"),
        ({"prompt": [1], "logprobs": True}, "logprobs must be"),
        ({"prompt": [1], "prompt_logprobs": -1}, "prompt_logprobs must be"),
        ({"prompt": [1], "prompt_logprobs": 1, "stream": True}, "prompt_logprobs needs stream = false"),
        ({"prompt": [1], "echo": True, "stream": True}, "echo needs stream = false"),
        ({"prompt": [1], "tools": [{}]}, "tools"),
        ({"prompt": [1], "stop": [5]}, "stop must be a text"),
        ({"prompt": [1], "stop_token_ids": [512]}, "stop_token_ids must be a list of token ids below 512"),
        ({"prompt": [1], "top_p": 0}, "top_p must be a number above 0 up to 1"),
        ({"prompt": [1], "top_k": -2}, "top_k must be a whole number of at least -1"),
        ({"prompt": [1], "min_p": 1.5}, "min_p must be a number from 0 to 1"),
        ({"prompt": [1], "max_tokens": 3, "min_tokens": 4}, "min_tokens = 4 is more than max_tokens = 3"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(server: ServerProcess, body: dict[str, Any], message: str) -> None:
    error = server.complete(status=400, **body)["error"]
    assert message in error["message"]
    assert error["type"] == "BadRequestError"
    assert error["code"] == 400
    assert server.complete(prompt=[1], max_tokens=1)["usage"]["completion_tokens"] == 1


def test_fields_that_change_nothing_are_accepted(server: ServerProcess) -> None:
    server.complete(prompt=[1], max_tokens=1, n=1, logprobs=None, top_p=1, stop=[], user="me", model="tiny")


def test_body_that_is_not_an_object_and_unknown_paths_get_json_errors(server: ServerProcess) -> None:
    for content in (b"{", b"[]", b'"x"'):
        with server.ask("/v1/completions", content) as answer:
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)
    for path, status in (("/v1/nothing", 404), ("/v1/completions", 405)):
        with server.ask(path) as answer:
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
    assert "'other'" in server.complete(status=404, prompt=[1], model="other")["error"]["message"]


def test_models_health_settings_and_metrics(server: ServerProcess) -> None:
    (model,) = json.loads(server.text("/v1/models"))["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", MODEL_LEN)
    assert server.text("/health") == ""
    facts = json.loads(server.text("/v1/dyno/settings"))
    assert facts["dtype"] == facts["kv_dtype"] == "float32"
    assert facts["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert (facts["kv_cache_tokens"], facts["block_size"], facts["threads"]) == (MODEL_LEN, 16, 1)
    before = server.metric("vllm:generation_tokens_total"), server.metric("vllm:prompt_tokens_total")
    server.complete(prompt=PROMPT, max_tokens=7, ignore_eos=True)
    assert server.metric("vllm:generation_tokens_total") == before[0] + 7
    assert server.metric("vllm:prompt_tokens_total") == before[1] + 4
    assert server.metric("dyno_reference:kv_pool_bytes") == MODEL_LEN * facts["kv_bytes_per_token"]
    text = server.text("/metrics")
    assert f'block_size="16",num_gpu_blocks="{MODEL_LEN // 16}",kv_cache_size_tokens="{MODEL_LEN}"' in text


def idle(server: ServerProcess) -> bool:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return all(server.metric(name) == 0 for name in names)


def send_and_leave(server: ServerProcess, request_id: str, seen: Callable[[], bool], **body: Any) -> None:
    """Ask for a completion on a bare connection, and drop it once `seen` holds."""
    content = json.dumps({"temperature": 0, "ignore_eos": True} | body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(content)}"
    with server.connect() as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        wait_until(seen, "the request is there")


@pytest.mark.parametrize("streamed", [True, False])
def test_disconnect_ends_the_request_and_gives_its_blocks_back(server: ServerProcess, streamed: bool) -> None:
    name = f"gone-{streamed}"
    running = lambda: server.metric("vllm:num_requests_running") == 1  # noqa: E731 - read at its call, one line
    send_and_leave(server, name, running, prompt=PROMPT, max_tokens=32000, stream=streamed)
    wait_until(lambda: idle(server), "blocks are back")
    if streamed:  # else it may have been left before its first token, which nothing outside tells
        wait_until(lambda: bool(token_rows(server, name)), "its tokens are in the truth log")
    made = token_rows(server, name)
    assert len(made) < 32000
    if not streamed:
        assert {row["written"] for row in made} <= {None}


def test_disconnect_while_queued(server: ServerProcess) -> None:
    waiting = lambda: server.metric("vllm:num_requests_waiting") == 1  # noqa: E731 - read at its call, one line
    with streaming(server, prompt=PROMPT, max_tokens=32000, ignore_eos=True) as first:
        next(events(first))
        send_and_leave(
            server, "queued", waiting, prompt=[1] * (MODEL_LEN - 1), max_tokens=1
        )  # more blocks than are left
        wait_until(lambda: not waiting(), "the second is gone")
        assert server.metric("vllm:num_requests_running") == 1
    wait_until(lambda: idle(server), "blocks are back")


def test_official_client_works_streamed_and_whole(server: ServerProcess, greedy: list[int]) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=6, temperature=0)
        assert whole.usage is not None
        assert whole.usage.completion_tokens == EOS_AT + 1
        chunks = list(
            client.completions.create(
                model="tiny",
                prompt=PROMPT,
                max_tokens=6,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
        )
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 6
        assert chunks[-2].choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError, match=f"max_model_len is {MODEL_LEN}"):
            client.completions.create(model="tiny", prompt=PROMPT, max_tokens=MODEL_LEN)
        assert [model.id for model in client.models.list()] == ["tiny"]


def test_truth_log_is_complete_and_joins_by_request_id(server: ServerProcess) -> None:
    asked = {f"truth-{i}": 5 + i for i in range(6)}
    with ThreadPoolExecutor(6) as pool:
        for request_id, length in asked.items():
            pool.submit(stream, server, request_id, prompt=[1] * (10 * length), max_tokens=length, ignore_eos=True)
    wait_until(lambda: all(len(token_rows(server, i)) == n for i, n in asked.items()), "all tokens are in the log")
    steps = {row["step"]: row for row in rows(truth_dir(server) / "steps.arrows")}
    queue = truth_dir(server) / "scheduled.arrows"
    wait_until(
        lambda: set(asked) <= {row["request_id"] for row in rows(queue)}, "all requests have left the queue in the log"
    )
    taken = {row["request_id"]: row for row in rows(queue)}
    for request_id, length in asked.items():
        made = token_rows(server, request_id)
        # Left the queue once, in the step that made the first token or (a prompt in chunks) before it.
        assert taken[request_id]["step"] <= made[0]["step"]
        assert taken[request_id]["start"] == steps[taken[request_id]["step"]]["start"]
        assert [row["index"] for row in made] == list(range(length))
        assert [row["step"] for row in made] == sorted({row["step"] for row in made})
        for row in made:
            step = steps[row["step"]]
            assert step["start"] < step["end"] == row["sampled"] < row["written"]
            assert step["decodes"] + step["prefills"] >= 1
    for step in steps.values():
        assert step["blocks_total"] == MODEL_LEN // 16
        assert 0 <= step["tokens_held"] <= step["blocks_allocated"] * 16
        assert step["context_tokens"] >= step["prefill_tokens"] + step["decodes"]
        # As the step left it, before what it ended is freed: the last step of a request still holds it.
        assert step["tokens_held"] >= step["context_tokens"]
        assert step["running"] >= step["decodes"] + step["prefills"]
    assert sorted(steps) == list(range(len(steps)))
    assert pa.ipc.open_stream(truth_dir(server) / "truth.arrows").schema.equals(TRUTH_TOKENS, check_metadata=True)
    assert pa.ipc.open_stream(truth_dir(server) / "steps.arrows").schema.equals(TRUTH_STEPS, check_metadata=True)
    scheduled = pa.ipc.open_stream(truth_dir(server) / "scheduled.arrows").schema
    assert scheduled.equals(TRUTH_SCHEDULED, check_metadata=True)


def test_sigterm_ends_streams_with_an_error_and_exits_0(folder: Path, tmp_path: Path) -> None:
    flags = [*POOL, "--truth-dir", str(tmp_path / "truth"), "--served-model-name", "other"]
    with running_server(folder, tmp_path / "log", *flags) as server:
        with streaming(server, "cut", prompt=PROMPT, max_tokens=32000, ignore_eos=True, model="other") as answer:
            received = events(answer)
            next(received)
            server.process.send_signal(signal.SIGTERM)
            *_, last, done = received
        assert "shutting down" in last["error"]["message"]
        assert done == "[DONE]"
        assert server.process.wait(LONG_S) == 0
        log = server.log.read_text()
        assert "Traceback" not in log
        for step in ("loading weights", "allocating KV", "stopped"):
            assert step in log
        assert len(token_rows(server, "cut")) > 0


def test_truth_survives_a_kill_and_a_folder_without_tokenizer_serves_ids(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "tokenizer.json").unlink()
    flags = ["--kv-cache-tokens", "1024", "--truth-dir", str(tmp_path / "truth")]
    with running_server(bare, tmp_path / "log", *flags) as server:
        answer = server.complete(prompt=PROMPT, max_tokens=5, ignore_eos=True)
        assert answer["choices"][0]["text"] == ""
        assert answer["usage"]["completion_tokens"] == 5
        assert "no tokenizer.json" in server.complete(status=400, prompt="text")["error"]["message"]
        longest = server.complete(prompt=[1] * 1023, ignore_eos=True)  # the default output shrinks to the room there is
        assert longest["usage"]["completion_tokens"] == 1
        stream(server, "kept", prompt=PROMPT, max_tokens=9, ignore_eos=True)
        wait_until(lambda: len(token_rows(server, "kept")) == 9, "the log is flushed while the server runs")
        server.process.kill()
        server.process.wait(LONG_S)
        assert [row["index"] for row in token_rows(server, "kept")] == list(range(9))
        assert rows(tmp_path / "truth" / "steps.arrows")


def cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def failed_start(*arguments: str) -> str:
    """Standard error of a server that must refuse to start."""
    ended = subprocess.run(
        [sys.executable, "-m", "backends.reference", *arguments], capture_output=True, text=True, timeout=LONG_S
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    *_, last = ended.stderr.splitlines()
    assert last.startswith("error: ")
    assert len([line for line in ended.stderr.splitlines() if line.startswith("error: ")]) == 1
    return last


def test_mistakes_at_start_are_one_line_and_exit_code_2(tiny_dir: Path, tmp_path: Path) -> None:
    assert "nowhere does not exist" in failed_start(str(tmp_path / "nowhere"))
    assert "--max-num-seqs" in failed_start(str(tiny_dir), "--max-num-seqs", "0")
    if not cuda():
        assert "needs a CUDA device" in failed_start(str(tiny_dir), "--device", "cuda")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in failed_start(str(tiny_dir), "--port", str(port))
    (tmp_path / "file").write_text("")
    assert "truth log" in failed_start(str(tiny_dir), "--port", "0", "--truth-dir", str(tmp_path / "file" / "x"))


def test_a_server_without_a_profiler_says_how_to_get_one(server: ServerProcess) -> None:
    refused = server.post("/start_profile", 409)
    assert "--profile-dir" in refused["error"]["message"]
