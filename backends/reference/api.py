"""The OpenAI completions protocol: requests checked, errors shaped. Knows no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 20
# Fields that change the answer in a way this server does not do: refused unless they ask for what is done anyway.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "suffix": (None, ""),
    "stop": (None, [], ""),
    "stop_token_ids": (None, []),
    "min_tokens": (None, 0),
    "top_p": (None, 1, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "logit_bias": (None, {}),
    "bad_words": (None, []),
    "tools": (None, []),
    "response_format": (None, {"type": "text"}),
    "guided_json": (None,),
    "structured_outputs": (None,),
    "truncate_prompt_tokens": (None,),
    "prompt_embeds": (None,),
}


class ApiError(Exception):
    """An answer other than 200, in OpenAI's shape."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param

    def body(self) -> bytes:
        """The error object as JSON."""
        kind = {400: "BadRequestError", 404: "NotFoundError"}.get(self.status, "InternalServerError")
        return orjson.dumps(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}
        )


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked body of /v1/completions. `prompts` are texts or lists of token ids; `max_tokens` None when not given.

    `logprobs` and `prompt_logprobs` are numbers of likeliest tokens to tell of, None for no log probabilities at all.
    """

    prompts: list[str | list[int]]
    max_tokens: int | None
    temperature: float
    seed: int | None
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None
    tokens_as_ids: bool

    @property
    def asked_of_prompt(self) -> int | None:
        """How many likeliest tokens the engine must tell of each prompt token."""
        return self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs


def parse_completion(raw: bytes, model: str, vocab_size: int) -> CompletionRequest:
    """Check a body; ApiError 400 names the field that is wrong, 404 an unknown model."""
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
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object.", "stream_options")
    if options and not stream:
        raise ApiError(400, "stream_options needs stream = true.", "stream_options")
    echo, prompt_logprobs = _flag(body, "echo"), _count(body, "prompt_logprobs")
    for name, asked in (("echo", echo), ("prompt_logprobs", prompt_logprobs is not None)):
        if asked and stream:
            raise ApiError(400, f"{name} needs stream = false: the prompt is told of in one piece.", name)
    return CompletionRequest(
        prompts=_prompts(body.get("prompt"), vocab_size),
        max_tokens=_max_tokens(body.get("max_tokens"), least=0 if echo else 1),
        temperature=_temperature(body.get("temperature")),
        seed=_seed(body.get("seed")),
        ignore_eos=_flag(body, "ignore_eos"),
        stream=stream,
        include_usage=_flag(options or {}, "include_usage"),
        continuous_usage=_flag(options or {}, "continuous_usage_stats"),
        return_token_ids=_flag(body, "return_token_ids"),
        echo=echo,
        logprobs=_count(body, "logprobs"),
        prompt_logprobs=prompt_logprobs,
        tokens_as_ids=_flag(body, "return_tokens_as_token_ids"),
    )


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false, not {value!r}.", name)
    return bool(value)


def _max_tokens(value: Any, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ApiError(400, f"max_tokens must be a whole number of at least {least}, not {value!r}.", "max_tokens")
    return value


def _count(body: dict[str, Any], name: str) -> int | None:
    """A number of log probabilities; false is the same as nothing."""
    value = body.get(name)
    if value is None or value is False:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_LOGPROBS:
        raise ApiError(400, f"{name} must be a whole number from 0 to {MAX_LOGPROBS}, not {value!r}.", name)
    return value


def _temperature(value: Any) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ApiError(400, f"temperature must be a number from 0 to 100, not {value!r}.", "temperature")
    return float(value)


def _seed(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ApiError(400, f"seed must be a whole number, not {value!r}.", "seed")
    return value


def _prompts(value: Any, vocab_size: int) -> list[str | list[int]]:
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
    if value and not (min(value) >= 0 and max(value) < vocab_size):
        wrong = next(token for token in value if not 0 <= token < vocab_size)
        raise ApiError(400, f"Token id {wrong} is outside the vocabulary of {vocab_size} tokens.", "prompt")
    return value
