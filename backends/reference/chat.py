"""The model's chat template: messages to the prompt text that the model was trained on."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from backends.reference.api import Conversation
from backends.reference.config import read_json
from results.errors import UsageError

_END_MARK = "\ue000end of the final message\ue000"


class ChatTemplate(Protocol):
    """Makes the prompt of a conversation."""

    def render(self, conversation: Conversation) -> str:
        """The prompt text; UsageError where the template refuses or fails."""
        ...


def load_chat_template(folder: Path) -> ChatTemplate:
    """From chat_template.jinja or tokenizer_config.json; a stand-in that refuses where there is none."""
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    source = config.get("chat_template")
    if isinstance(source, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    alone = folder / "chat_template.jinja"
    if alone.is_file():
        source = alone.read_text(encoding="utf-8")
    if not isinstance(source, str):
        return NoTemplate(folder)
    return JinjaTemplate(source, {name: _token(config.get(name)) for name in ("bos_token", "eos_token", "unk_token")})


class NoTemplate:
    """For models without a chat template."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def render(self, conversation: Conversation) -> str:
        """Refuse."""
        raise UsageError(f"The model folder {self._folder} has no chat template; use /v1/completions.")


class JinjaTemplate:
    """A template as transformers would apply it, in Jinja's sandbox: it came with the weights and is not trusted."""

    def __init__(self, source: str, tokens: dict[str, str]) -> None:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self._tokens = tokens
        self._error: type[Exception] = TemplateError
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UsageError(f"The model's chat template cannot be read: {error}.") from error

    def render(self, conversation: Conversation) -> str:
        """See ChatTemplate."""
        messages: Sequence[dict[str, str]] = conversation.messages
        if conversation.continue_final_message:
            *before, last = messages
            messages = [*before, last | {"content": last["content"] + _END_MARK}]
        values: dict[str, Any] = {
            "add_generation_prompt": conversation.add_generation_prompt and not conversation.continue_final_message,
            **self._tokens,
            **conversation.template_values,
        }
        try:
            text: str = self._template.render(messages=messages, **values)
        except (self._error, TypeError, ValueError, KeyError, ZeroDivisionError, OverflowError) as error:
            raise UsageError(f"The model's chat template refused the messages: {error}.") from error
        return text.split(_END_MARK)[0] if conversation.continue_final_message else text


def _raise(message: str) -> None:
    raise ValueError(message)


def _token(value: Any) -> str:
    """A special token, plain or as an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""
