"""The OpenAI completions and chat protocols: requests checked, errors shaped. Knows no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from backends.reference.fields import ApiError, Fields
from backends.reference.messages import Sampling

MAX_LOGPROBS = 20
MAX_STOPS = 16
# Fields that change the answer in a way this server does not do: refused unless they ask for what is done anyway.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "suffix": (None, ""),
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "logit_bias": (None, {}),
    "bad_words": (None, []),
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "guided_json": (None,),
    "structured_outputs": (None,),
    "truncate_prompt_tokens": (None,),
    "prompt_embeds": (None,),
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a chat, plain text in each, and how the model's template is to be applied."""

    messages: list[dict[str, str]]
    add_generation_prompt: bool
    continue_final_message: bool
    template_values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked body. `prompts` are texts, token ids or conversations, one choice each; `max_tokens` None when not given.

    `sampling.stop_ids` are those of the body; the model's own are the server's to add unless `ignore_eos`.
    """

    prompts: list[str | list[int] | Conversation]
    max_tokens: int | None
    sampling: Sampling
    has_seed: bool
    ignore_eos: bool
    stops: tuple[str, ...]
    include_stop: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    tokens_as_ids: bool
    echo: bool = False
    prompt_logprobs: int | None = None


def parse_completion(raw: bytes, model: str, vocab_size: int) -> GenerationRequest:
    """A body of /v1/completions; ApiError 400 names the field that is wrong, 404 an unknown model."""
    fields = _body(raw, model)
    echo, logprobs = fields.flag("echo"), fields.whole_or_none("logprobs", 0, MAX_LOGPROBS)
    told = fields.whole_or_none("prompt_logprobs", 0, MAX_LOGPROBS)
    for name, asked in (("echo", echo), ("prompt_logprobs", told is not None)):
        if asked and fields.flag("stream"):
            raise ApiError(400, f"{name} needs stream = false: the prompt is told of in one piece.", name)
    return _request(
        fields,
        prompts=_prompts(fields.get("prompt"), vocab_size),
        max_tokens=fields.whole_or_none("max_tokens", 0 if echo else 1),
        vocab_size=vocab_size,
        logprobs=logprobs,
        prompt_logprobs=told,
        echo=echo,
    )


def parse_chat(raw: bytes, model: str, vocab_size: int) -> GenerationRequest:
    """A body of /v1/chat/completions; errors as in parse_completion."""
    fields = _body(raw, model)
    top = fields.whole_or_none("top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not fields.flag("logprobs"):
        raise ApiError(400, "top_logprobs needs logprobs = true.", "top_logprobs")
    newer = fields.whole_or_none("max_completion_tokens", 1)
    return _request(
        fields,
        prompts=[_conversation(fields)],
        max_tokens=fields.whole_or_none("max_tokens", 1) if newer is None else newer,
        vocab_size=vocab_size,
        logprobs=(top or 0) if fields.flag("logprobs") else None,
    )


def _body(raw: bytes, model: str) -> Fields:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise ApiError(400, f"The body must be a JSON object, not a {type(body).__name__}.")
    if body.get("model") not in (None, model):
        raise ApiError(404, f"The model {body['model']!r} does not exist; this server has {model!r}.", "model")
    for name, harmless in _UNSUPPORTED.items():
        if name in body and body[name] not in harmless:
            raise ApiError(400, f"{name} = {body[name]!r} is not supported by this server; leave it out.", name)
    return Fields(body)


def _request(
    fields: Fields,
    prompts: list[str | list[int] | Conversation],
    max_tokens: int | None,
    vocab_size: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    echo: bool = False,
) -> GenerationRequest:
    """What both protocols share."""
    stream, options = fields.flag("stream"), fields.object("stream_options")
    if options.has_any and not stream:
        raise ApiError(400, "stream_options needs stream = true.", "stream_options")
    seed = fields.whole_or_none("seed")
    min_tokens = fields.whole("min_tokens", 0, 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise ApiError(400, f"min_tokens = {min_tokens} is more than max_tokens = {max_tokens}.", "min_tokens")
    sampling = Sampling(
        temperature=fields.number("temperature", 1.0, 0, 100),
        seed=seed or 0,
        stop_ids=frozenset(_stop_ids(fields.get("stop_token_ids"), vocab_size)),
        logprobs=logprobs,
        # An echoed prompt is told of like the output.
        prompt_logprobs=logprobs if echo and prompt_logprobs is None else prompt_logprobs,
        top_p=fields.number("top_p", 1.0, 0, 1, above=True),
        top_k=max(fields.whole("top_k", 0, -1), 0),
        min_p=fields.number("min_p", 0.0, 0, 1),
        min_tokens=min_tokens,
    )
    return GenerationRequest(
        prompts=prompts,
        max_tokens=max_tokens,
        sampling=sampling,
        has_seed=seed is not None,
        ignore_eos=fields.flag("ignore_eos"),
        stops=_stops(fields.get("stop")),
        include_stop=fields.flag("include_stop_str_in_output"),
        stream=stream,
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("continuous_usage_stats"),
        return_token_ids=fields.flag("return_token_ids"),
        tokens_as_ids=fields.flag("return_tokens_as_token_ids"),
        echo=echo,
        prompt_logprobs=prompt_logprobs,
    )


def _prompts(value: Any, vocab_size: int) -> list[str | list[int] | Conversation]:
    """A text, a list of ids, or a list of either, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        if not value:
            raise ApiError(400, "The prompt is empty: 0 tokens; at least 1 is needed.", "prompt")
        if all(isinstance(part, str) for part in value):
            return list(value)
        if all(isinstance(part, list) for part in value):
            return [_token_ids(part, vocab_size) for part in value]
        return [_token_ids(value, vocab_size)]
    raise ApiError(400, "prompt must be a text, a list of token ids, or a list of either.", "prompt")


def _token_ids(value: list[Any], vocab_size: int) -> list[int]:
    if not all(type(token) is int for token in value):
        raise ApiError(400, "prompt must be a text, a list of token ids, or a list of either.", "prompt")
    check_vocabulary(value, vocab_size)
    return value


def check_vocabulary(ids: list[int], vocab_size: int, param: str = "prompt") -> None:
    """ApiError 400 for a token id that the model has no embedding for: from the client, or from a tokenizer of another model."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise ApiError(400, f"Token id {wrong} is outside the vocabulary of {vocab_size} tokens.", param)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops) or len(stops) > MAX_STOPS:
        raise ApiError(400, f"stop must be a text or a list of {MAX_STOPS} texts at most, not {value!r}.", "stop")
    return tuple(stop for stop in stops if stop)


def _stop_ids(value: Any, vocab_size: int) -> list[int]:
    ids = value or []
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise ApiError(
            400, f"stop_token_ids must be a list of token ids below {vocab_size}, not {value!r}.", "stop_token_ids"
        )
    return ids


def _conversation(fields: Fields) -> Conversation:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list of at least one message.", "messages")
    generation = fields.get("add_generation_prompt")
    return Conversation(
        messages=[_message(number, message) for number, message in enumerate(messages)],
        add_generation_prompt=True if generation is None else fields.flag("add_generation_prompt"),
        continue_final_message=fields.flag("continue_final_message"),
        template_values=fields.object("chat_template_kwargs").plain,
    )


def _message(number: int, message: Any) -> dict[str, str]:
    """Role and text; a list of text parts is joined."""
    where = f"messages[{number}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ApiError(400, f"{where} must be an object with a role.", "messages")
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ApiError(400, f"{where}.content has a part that is not text; this model reads text.", "messages")
        content = "\n".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ApiError(400, f"{where}.content must be a text or a list of text parts.", "messages")
    return {"role": message["role"], "content": content}
