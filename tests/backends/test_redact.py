"""Secrets never reach a file: by name of variable or flag, by value, and inside URLs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.redact import public_argv, public_environment, public_text, relevant_environment


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "GOOGLE_CREDENTIALS",
        "X_AUTH",
        "apikey",
        "MYTOKEN",
    ],
)
def test_variables_that_look_secret_are_hidden(name: str) -> None:
    assert public_environment({name: "abc"}) == {name: "***"}


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "CUDA_VISIBLE_DEVICES", "KEYBOARD", "AUTHOR", "OMP_NUM_THREADS"],
)
def test_other_variables_are_kept(name: str) -> None:
    assert public_environment({name: "1"}) == {name: "1"}


def test_a_known_secret_is_hidden_wherever_it_appears() -> None:
    env = {"HF_TOKEN": "hf_abcdef", "URL": "http://x/?t=hf_abcdef", "EMPTY_KEY": ""}
    assert public_environment(env) == {"EMPTY_KEY": "", "HF_TOKEN": "***", "URL": "http://x/?t=***"}
    assert public_environment({"A": "from elsewhere"}, ["elsewhere"]) == {"A": "from ***"}


def test_names_and_passwords_inside_urls_are_hidden() -> None:
    assert public_environment({"https_proxy": "http://me:pw@proxy:3128"}) == {"https_proxy": "http://***@proxy:3128"}
    assert public_text("see https://u@h/x and mail@example.org") == "see https://***@h/x and mail@example.org"


def test_only_what_explains_an_engine_is_relevant() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0", "VLLM_API_KEY": "abc", "HOME": "/home/me", "OMP_NUM_THREADS": "2"}
    assert relevant_environment(env) == {"CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2", "VLLM_API_KEY": "***"}


def test_flags_that_carry_secrets_are_hidden() -> None:
    assert public_argv(["vllm", "serve", "m", "--api-key", "abc", "--port", "8000"]) == [
        *("vllm", "serve", "m", "--api-key", "***", "--port", "8000")
    ]
    assert public_argv(["--api-key=abc", "--hf-token", "t"]) == ["--api-key=***", "--hf-token", "***"]
    assert public_argv(["--api-key", "one", "two", "--seed", "0"]) == ["--api-key", "***", "***", "--seed", "0"]
    assert public_argv(["docker", "run", "-e", "HF_TOKEN=abc"]) == ["docker", "run", "-e", "HF_TOKEN=***"]
    assert public_argv(["--url", "http://u:p@h:1/v1"]) == ["--url", "http://***@h:1/v1"]
    assert public_argv(["x", "--header", "Bearer abcdefgh"], ["abcdefgh"]) == ["x", "--header", "Bearer ***"]


def test_a_plain_command_line_is_kept_as_it_is() -> None:
    argv = ["python", "-m", "x", "--max-num-batched-tokens", "2048", "--tokenizer", "t", "--set", "a=b", "--", "-1"]
    assert public_argv(argv) == argv


@given(st.lists(st.text(max_size=12), max_size=6), st.from_regex(r"[a-zA-Z0-9]{8,20}", fullmatch=True))
def test_a_key_after_its_flag_never_shows(before: list[str], key: str) -> None:
    words = [word for word in before if key not in word]
    assert key not in " ".join(public_argv([*words, "--api-key", key]))


def test_what_a_command_line_hides_can_be_looked_for_elsewhere() -> None:
    from backends.redact import hidden_words

    argv = [
        "--api-key",
        "k-123456",
        "--token=t-123456",
        "Authorization: Bearer b-123456",
        "pg://u:pw-1234@h/x",
        "--seed",
        "7",
    ]
    assert hidden_words(argv) == {"k-123456", "t-123456", "b-123456", "u:pw-1234"}
