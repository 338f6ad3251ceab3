"""An engine as `verify` sees it: it generates greedily, and scores fixed text. `ServerArm` is one behind HTTP.

Servers differ in how they tell log probabilities and ids. What this one understands is found out once, with a short
prompt: the richest body that it answers; what is missing is a reason in the result, not an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from backends.base import CompletionRequest
from backends.http_probe import ProbeError
from harness.api_call import Answer, ask
from harness.open_server import OpenServer
from harness.verify.by_prefix import MOST_PLACES, score_by_prefix
from results.agreement import Position
from results.errors import EngineError

# Candidates told of each output token, and of each token of fixed text.
TOP_OUTPUT, TOP_SCORED = 5, 10
# What a server tells where a token's logarithm is minus infinity (JSON has none).
_LOWEST = -9998.0


@dataclass(slots=True)
class Scores:
    """Scored texts (all positions but the first, which nothing predicts), or the reason why there are none, or why they are
    not told in full."""

    texts: list[list[Position]] | None
    reason: str | None = None


class Arm(Protocol):
    """What `observe` needs of an engine."""

    @property
    def label(self) -> str: ...

    @property
    def about(self) -> Mapping[str, Any]:
        """Facts for the result: backend, dtype, versions, how ids and log probabilities were told."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], length: int, *, together: bool) -> list[list[Position]]:
        """Greedy outputs of exactly `length` tokens where the engine can; one after the other, or all in flight."""
        ...

    def score(self, texts: Sequence[Sequence[int]]) -> Scores:
        """The engine's log probabilities on fixed text."""
        ...


@dataclass(frozen=True, slots=True)
class _Form:
    """One way of asking, and of reading what comes back."""

    name: str
    fields: Mapping[str, Any]


_OUTPUT_FORMS = (
    _Form("ids", {"logprobs": TOP_OUTPUT, "return_token_ids": True, "return_tokens_as_token_ids": True}),
    _Form("ids, no log probabilities", {"return_token_ids": True}),
    # TensorRT-LLM: it refuses fields it does not know, and tells ids in place of the text.
    _Form("ids in place of text", {"detokenize": False}),
    _Form("text with log probabilities", {"logprobs": TOP_OUTPUT}),
    _Form("text", {}),
)
_SCORE_FORMS = (
    _Form("prompt_logprobs", {"prompt_logprobs": TOP_SCORED, "max_tokens": 1}),
    _Form("echo", {"echo": True, "logprobs": TOP_OUTPUT, "max_tokens": 1, "return_tokens_as_token_ids": True}),
)


@dataclass(slots=True)
class ServerArm:
    """An engine behind an open server. `encode` turns an output's text into ids where the server tells no ids."""

    label: str
    server: OpenServer
    encode: Callable[[str], list[int]] | None = None
    timeout_s: float = 300.0
    _output: _Form | None = None
    _refusals: list[str] = field(default_factory=list)

    @property
    def about(self) -> dict[str, Any]:
        settings = {name: resolved.value for name, resolved in self.server.settings.items()}
        return {
            "backend": self.server.backend.name,
            "dtype": settings.get("dtype"),
            "settings": settings,
            "versions": self.server.versions,
            "told": self._output.name if self._output else None,
        }

    def generate(self, prompts: Sequence[Sequence[int]], length: int, *, together: bool) -> list[list[Position]]:
        """Raises EngineError where the server gives no answer, or nothing that can be compared."""
        form = self._output or self._find_output_form(prompts[0])
        if not together:
            return [self._one(prompt, length, form) for prompt in prompts]
        with ThreadPoolExecutor(len(prompts), thread_name_prefix="verify") as pool:
            return list(pool.map(lambda prompt: self._one(prompt, length, form), prompts))

    def _one(self, prompt: Sequence[int], length: int, form: _Form) -> list[Position]:
        answer = self._post(prompt, length, form.fields)
        if not answer.ok:
            raise EngineError(
                f"Engine {self.label!r} answered a prompt of {len(prompt)} tokens with {answer.trouble()}."
            )
        positions = self._positions(answer.choice)
        if positions is None:
            raise EngineError(
                f"Engine {self.label!r} answers, but not in a form that can be compared: {_shown(answer)}."
            )
        return positions

    def _find_output_form(self, prompt: Sequence[int]) -> _Form:
        """The richest way of asking that is answered with something to compare."""
        for form in _OUTPUT_FORMS:
            answer = self._post(prompt[:8], 2, form.fields)
            if answer.ok and self._positions(answer.choice) is not None:
                self._output = form
                return form
            self._refusals.append(f"{form.name}: {answer.trouble() or 'no ids, and no tokenizer for its text'}")
        raise EngineError(
            f"Engine {self.label!r} tells nothing that can be compared ({'; '.join(self._refusals)}). Token ids are needed "
            "(return_token_ids), or the model's tokenizer: name a folder with --model."
        )

    def _post(self, prompt: Sequence[int], length: int, fields: Mapping[str, Any]) -> Answer:
        self.server.check_alive()
        backend = self.server.backend
        asked = CompletionRequest(self.server.served_name, list(prompt), length, stream=False)
        body = {**backend.completion_body(asked), **fields}
        try:
            return ask(self.server.url, body, timeout_s=self.timeout_s, key_env=backend.api_key_env())
        except ProbeError:
            self.server.check_alive()
            raise

    def _positions(self, choice: Mapping[str, Any]) -> list[Position] | None:
        """Output tokens of a choice: by id where they are told, else by encoding its text; None where neither can be."""
        ids = _told_ids(choice)
        if ids is None:
            if self.encode is None or not isinstance(choice.get("text"), str):
                return None
            return [Position(token) for token in self.encode(choice["text"])]
        return _joined(ids, _logprobs(choice))

    def score(self, texts: Sequence[Sequence[int]]) -> Scores:
        """Raises EngineError where the server gives no answer at all."""
        refusals = []
        for form in _SCORE_FORMS:
            scored = []
            for text in texts:
                answer = self._post(text, 1, form.fields)
                found = _scored(text, answer, form) if answer.ok else answer.trouble()
                if isinstance(found, str):
                    refusals.append(f"{form.name}: {found}")
                    break
                scored.append(found)
            else:
                return Scores(scored)
        why = f"{self.label} tells no log probabilities of a prompt ({'; '.join(refusals)})"
        form = self._output or self._find_output_form(texts[0])
        if _told_ids(self._post(texts[0][:1], 1, form.fields).choice) is None:
            return Scores(None, f"{why}, nor ids by which its favourite in each place could be asked for")
        places = sum(len(text) - 1 for text in texts)
        asked = f"its favourite was asked for in {min(places, MOST_PLACES)} of {places} places instead, a request each"
        return Scores(score_by_prefix(texts, lambda prompt: self._next(prompt, form)), f"{why}; {asked}")

    def _next(self, prompt: Sequence[int], form: _Form) -> Position:
        output = self._one(prompt, 1, form)
        if not output:
            raise EngineError(f"Engine {self.label!r} gave no token after a prompt of {len(prompt)} tokens.")
        return output[0]


def _logprobs(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    told = choice.get("logprobs")
    return told if isinstance(told, dict) else {}


def _told_ids(choice: Mapping[str, Any]) -> list[int] | None:
    """The output's ids where they are told."""
    ids = choice.get("token_ids")
    return ids if isinstance(ids, list) else _ids_of(_logprobs(choice).get("tokens") or ())


def _ids_of(tokens: Iterable[Any]) -> list[int] | None:
    """Ids from "token_id:N" names; None where they are texts, or none."""
    ids = [_id_of(token) for token in tokens]
    return None if not ids or None in ids else [i for i in ids if i is not None]


def _id_of(name: Any) -> int | None:
    text = str(name)
    return int(text[9:]) if text.startswith("token_id:") and text[9:].isdigit() else None


def _joined(ids: Sequence[int], logprobs: Mapping[str, Any]) -> list[Position]:
    """Ids with what OpenAI's object tells of them. A null among numbers is a NaN that JSON could not say."""
    values = logprobs.get("token_logprobs") or []
    tops = logprobs.get("top_logprobs") or []
    if len(values) != len(ids):
        return [Position(token) for token in ids]
    positions = []
    for index, token in enumerate(ids):
        top = tops[index] if index < len(tops) and isinstance(tops[index], dict) else {}
        named = {_id_of(name): value for name, value in top.items() if value is not None}
        positions.append(Position(token, _number(values[index]), {i: v for i, v in named.items() if i is not None}))
    return positions


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _scored(text: Sequence[int], answer: Answer, form: _Form) -> list[Position] | str:
    """The positions of a scored text after its first, or what is wrong with the answer."""
    if form.name == "echo":
        logprobs = answer.choice.get("logprobs")
        ids = _ids_of(logprobs.get("tokens") or ()) if isinstance(logprobs, dict) else None
        if ids is None:
            return "the tokens are not told by id"
        if ids[: len(text)] != list(text):
            return "the prompt that came back is another one"
        assert isinstance(logprobs, dict)
        return _joined(ids, logprobs)[1 : len(text)]
    told = answer.choice.get("prompt_logprobs", answer.message.get("prompt_logprobs"))
    if not isinstance(told, list):
        return "the field is ignored"
    if len(told) != len(text):
        return f"{len(told)} entries for a prompt of {len(text)} tokens"
    positions = []
    for token, entry in zip(text[1:], told[1:], strict=True):
        if not isinstance(entry, dict) or str(token) not in entry:
            return "an entry lacks its own token"
        top = {int(i): _number(e.get("logprob")) for i, e in entry.items() if isinstance(e, dict) and i.isdigit()}
        positions.append(Position(token, top[token], {i: v for i, v in top.items() if v > _LOWEST}))
    return positions


def _shown(answer: Answer) -> str:
    return answer.body[:200].decode("utf-8", "replace")
