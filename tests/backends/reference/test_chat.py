"""Chat templates: rendered as transformers renders them, in a sandbox, and refused where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.reference.api import Conversation
from backends.reference.chat import load_chat_template
from results.errors import UsageError

CHATML = """{% for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}{{ bos_token + 'system: be brief\\n' }}{% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + eos_token + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LOOPS = """{% for message in messages %}
  {% if message.role == 'system' %}{% continue %}{% endif %}
{{ message.role }}: {{ message | tojson }}
  {% if loop.index > 2 %}{% break %}{% endif %}
{% endfor %}{{ extra | default('none') }}"""
MESSAGES = [
    {"role": "system", "content": "You are <b>kind</b>."},
    {"role": "user", "content": " Wie heißt du? "},
    {"role": "assistant", "content": "Dyno"},
    {"role": "user", "content": "Why?"},
]


def save(folder: Path, template: Any, **tokens: Any) -> Path:
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}} | tokens
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def render(folder: Path, messages: list[dict[str, str]] = MESSAGES, *, continued: bool = False, **values: Any) -> str:
    return load_chat_template(folder).render(Conversation(messages, not continued, continued, values))


@pytest.mark.parametrize("template", [CHATML, LOOPS], ids=["chatml", "loops"])
@pytest.mark.parametrize("messages", [MESSAGES, MESSAGES[1:], MESSAGES[1:2]], ids=len)
def test_prompt_is_what_transformers_makes(template: str, messages: list[dict[str, str]], tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"x": 0}, "x")), bos_token="<s>", eos_token="</s>"
    )
    expected = theirs.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True, extra="more"
    )
    assert render(save(tmp_path, template), messages, extra="more") == expected


def test_final_message_can_be_continued(tmp_path: Path) -> None:
    made = render(save(tmp_path, CHATML), MESSAGES[:3], continued=True)
    assert made.endswith("<|im_start|>assistant\nDyno")


def test_template_by_name_and_in_a_file_of_its_own(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert render(save(tmp_path, named)) == "yes"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert render(tmp_path) == "file"


def test_model_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no chat template; use /v1/completions"):
        render(tmp_path)


def test_template_that_refuses_or_reaches_out_of_the_sandbox_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="roles must alternate"):
        render(save(tmp_path, "{{ raise_exception('roles must alternate') }}"))
    for escape in ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}"):
        with pytest.raises(UsageError, match="refused the messages"):
            render(save(tmp_path, escape))
    with pytest.raises(UsageError, match="cannot be read"):
        render(save(tmp_path, "{% if %}"))
