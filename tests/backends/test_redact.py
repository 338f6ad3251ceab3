"""Secrets never reach a file: by name of variable or flag, by value, and inside URLs."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
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


NESTED = {
    "api_key": "sk-12345678",
    "headers": {"Authorization": "Bearer abcdefgh"},
    "access_keys": ["one-1234", 'two-"1234'],
    "num_key_value_heads": 8,
    "empty_key": "",
    "rope": "a=b",
}
SHOWN = {
    **NESTED,
    "api_key": "***",
    "headers": {"Authorization": "***"},
    "access_keys": ["***", "***"],
}


def test_json_in_an_option_keeps_all_but_the_strings_of_secret_names() -> None:
    from backends.redact import hidden_words

    for spell in (json.dumps, lambda found: json.dumps(found, separators=(",", ":")), repr):
        word, shown = spell(NESTED), spell(SHOWN)
        assert public_argv(["--hf-overrides", word]) == ["--hf-overrides", shown]
        assert public_argv([f"--hf-overrides={word}"]) == [f"--hf-overrides={shown}"]
        assert public_environment({"VLLM_CONFIG": word}) == {"VLLM_CONFIG": shown}
        assert {"sk-12345678", "one-1234", "Bearer abcdefgh"} <= hidden_words(["--hf-overrides", word])


def test_json_inside_a_string_is_hidden_however_often_it_is_escaped() -> None:
    text, shown = json.dumps(NESTED), json.dumps(SHOWN)
    for _ in range(3):
        text, shown = json.dumps({"args": text}), json.dumps({"args": shown})
        assert public_text(f"launching with {text}") == f"launching with {shown}"
        assert public_text(f"args={text!r}") == f"args={shown!r}"


@pytest.mark.parametrize(
    "key", ["--sk-12345678", "--sk-secret", "--Abcdefgh", "--f00ba4b4z", "--longerthananyoptionsname", "--ab=="]
)
def test_a_secret_that_begins_with_dashes_is_hidden_after_its_flag(key: str) -> None:
    from backends.redact import hidden_words

    assert public_argv(["x", "--api-key", key, "--seed", "0"]) == ["x", "--api-key", "***", "--seed", "0"]
    assert public_text(f"no such option: {key}.", hidden_words(["--api-key", key])).count(key) == (len(key) < 6)
    assert public_environment({"VLLM_ARGS": f"x --api-key {key} --seed 0"}) == {"VLLM_ARGS": "x --api-key *** --seed 0"}


@pytest.mark.parametrize(
    "option",
    [
        *("--port", "--max-num-seqs=4", "--kv_cache_dtype", "--hf-overrides.rope", "--hf-token-file", "--fp8-kv", "--"),
        "--generation-config=Qwen/A==",
    ],
)
def test_the_option_after_a_secret_flag_without_a_value_is_kept(option: str) -> None:
    argv = ["x", "--enable-auth", option, "8000", "--api-key"]
    assert public_argv(argv)[:3] == argv[:3]
    assert public_argv(argv)[4:] == argv[4:]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r'{"api\u005fkey": "sk-12345678"}', r'{"api\u005fkey": "***"}'),
        (r'{"\u0061pi_ke\u0079": ["sk-12345678"], "n": 1}', r'{"\u0061pi_ke\u0079": ["***"], "n": 1}'),
        (r'"{\"api\\u005Fkey\": \"sk-12345678\"}"', r'"{\"api\\u005Fkey\": \"***\"}"'),
        (r"{'api\x5fkey': 'sk-12345678'}", r"{'api\x5fkey': '***'}"),
        (r'{"api_key": "sk\u002d12345678"}', r'{"api_key": "***"}'),
    ],
)
def test_a_name_whose_characters_are_escaped_is_still_a_secrets_name(text: str, shown: str) -> None:
    from backends.redact import hidden_words

    assert public_text(text) == shown
    assert public_argv(["--hf-overrides", text]) == ["--hf-overrides", shown]
    assert public_environment({"VLLM_CONFIG": text}) == {"VLLM_CONFIG": shown}
    assert "sk-12345678" in hidden_words(["--hf-overrides", text])


def test_an_escaped_name_of_no_secret_and_a_value_that_is_no_text_are_harmless() -> None:
    from backends.redact import hidden_words

    kept = r'{"model\u005ftype": "llama", "path": "C:\u005cx"}'
    assert public_text(kept) == kept
    # Half a pair of surrogates: what is looked for elsewhere can always be encoded.
    assert all(secret.encode() for secret in hidden_words([r'{"api_key": "sk-12345678\ud83d"}']))


def test_an_assignment_in_a_log_and_a_string_that_is_cut_off_are_hidden() -> None:
    line = "args: Namespace(model='m', api_key=['sk-12345678', 'b'], hf_token='hf_1', seed=0)"
    assert public_text(line) == "args: Namespace(model='m', api_key=['***', '***'], hf_token='***', seed=0)"
    assert public_text('{"api_key": "sk-1234\nnext "line"') == '{"api_key": "***\nnext "line"'
    assert public_text('"api_keys": ["sk-1234", "sk-56') == '"api_keys": ["***", "***'


def test_a_value_of_the_environment_that_is_json_is_looked_for_elsewhere() -> None:
    from backends.redact import known_secrets

    assert known_secrets({"CONFIG": '{"api_key": "sk-12345678", "model": "m-12345678"}'}) == {"sk-12345678"}


@pytest.mark.parametrize(
    "text",
    [
        "eos_token='</s>' is not known",
        "special_tokens_map={'pad_token': '<pad>', \"unk-token\": '<unk>', 'BOS_TOKEN': '<s>'}",
        "stop_token_ids=['1', '2'] and token_ids='x'",
        "key=\"KeyError\" and {'key': 'model.layers.0'} and keys=['a']",
        "missing_keys=['lm_head.weight'], unexpected_keys=['bias']",
    ],
)
def test_tokens_of_text_and_keys_of_a_mapping_are_kept(text: str) -> None:
    assert public_text(text) == text


@pytest.mark.parametrize(
    "name",
    [
        *("api_key", "API_KEY", "hf_token", "access_token", "token", "auth", "password", "client_secret", "credential"),
        *("eos_token_key", "special_token_secret", "stop_token_auth", "my_keys", "xeos_token", "key_token"),
    ],
)
def test_a_name_that_only_begins_like_a_token_of_text_stays_secret(name: str) -> None:
    assert public_text(f"{name}='abcdefgh' is wrong") == f"{name}='***' is wrong"


def test_a_flag_and_a_variable_named_key_alone_hold_a_secret() -> None:
    assert public_argv(["-e", "KEY=abcdefgh", "--key", "abcdefgh"]) == ["-e", "KEY=***", "--key", "***"]


def test_words_that_only_speak_of_keys_are_kept() -> None:
    for text in (
        'missing key: "lm_head.weight"',
        "KeyError: 'model.layers.0'",
        '"keyboard": "us"',
        "{'eos_token_id': 2}",
    ):
        assert public_text(text) == text


@given(st.text(max_size=20), st.from_regex(r"[a-zA-Z0-9]{8,20}", fullmatch=True), st.integers(0, 3))
@example("\\", "00000000", 0)
@example("\\", "00000000", 2)
@example('\\"\\', "00000000", 1)
def test_a_key_in_json_never_shows(before: str, key: str, deep: int) -> None:
    text = json.dumps({"note": before.replace(key, ""), "secret_key": key})
    for _ in range(deep):
        text = json.dumps(text)
    assert key not in public_text(text)
    assert key not in " ".join(public_argv([text, f"--x={text}"]))


def test_a_name_of_an_amount_holds_no_secret() -> None:
    argv = ["--token-interval", "7", "--key-size", "2048", "TOKEN_LIMIT=512"]
    assert public_argv(argv) == argv


def test_numbers_and_short_values_are_not_looked_for_elsewhere() -> None:
    from backends.redact import hidden_words, known_secrets

    argv = ["--token", "20480000", "--api-key", "on", "--auth=-1.5", "--password", "hunter2000"]
    assert hidden_words(argv) == {"hunter2000"}
    assert public_argv(argv) == ["--token", "***", "--api-key", "***", "--auth=***", "--password", "***"]
    assert known_secrets({"A_TOKEN": "1000000", "B_TOKEN": "yes", "C_TOKEN": "hf_1000000"}) == {"hf_1000000"}


KEY = "sk-verysecret123"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("X-Api-Key: {}", "X-Api-Key: ***"),
        ("--header=X-Api-Key: {}", "--header=X-Api-Key: ***"),
        ("Authorization: {}", "Authorization: ***"),
        ("Authorization: Token {}", "Authorization: Token ***"),
        ("Proxy-Authorization: Digest {}", "Proxy-Authorization: Digest ***"),
        ("Cookie: session={}", "Cookie: ***"),
        ("api_key: {}", "api_key: ***"),
        ("api_key: '{}'", "api_key: '***'"),
        ("a,api_key={},b", "a,api_key=***,b"),
        ("--x=api_key={}", "--x=api_key=***"),
        ("http://h:80/v1?api_key={}&n=1", "http://h:80/v1?api_key=***&n=1"),
        ("--url=https://h/?n=1&token={}#x", "--url=https://h/?n=1&token=***#x"),
        ("http://user:p@{}@h/v1", "http://***@h/v1"),
        ("http://user:pa/{}@h/v1", "http://***@h/v1"),
        ('{{"secrets": {{"mine": "{}"}}, "n": 1}}', '{"secrets": {"mine": "***"}, "n": 1}'),
        ('{{"api_key": {{"value": "{}"}}}}', '{"api_key": {"value": "***"}}'),
        ('{{"api_keys": [["{}"]]}}', '{"api_keys": [["***"]]}'),
        ('{{"hf_tokens": "{}"}}', '{"hf_tokens": "***"}'),
        ("{{'api_key': b'{}'}}", "{'api_key': b'***'}"),
    ],
)
def test_every_way_to_write_a_secret_with_its_name_is_hidden_in_words_texts_and_variables(
    text: str, shown: str
) -> None:
    from backends.redact import hidden_words, known_secrets

    word = text.format(KEY)
    assert public_text(word) == shown
    assert public_argv(["--x", word]) == ["--x", shown]
    assert public_environment({"VLLM_EXTRA": word}) == {"VLLM_EXTRA": shown}
    assert any(KEY in secret for secret in hidden_words([word]) & known_secrets({"VLLM_EXTRA": word}))


@pytest.mark.parametrize(
    "line",
    [
        "python -m x --api-key {} --seed 0",
        "python -m x --api-key={}",
        "python -m x --api-key 'a b' {}",
        "python --hf-tokens {}",
        "env HF_TOKEN={} python",
        'bash -c "x --api-key {}"',
        "--api-key {} it's no shell's",
    ],
)
def test_a_command_line_in_a_variable_or_in_a_word_is_hidden_as_one(line: str) -> None:
    from backends.redact import hidden_words, known_secrets

    text = line.format(KEY)
    (shown,) = relevant_environment({"DYNO_VLLM_COMMAND": text}).values()
    assert KEY not in shown
    assert shown.startswith(line[:6])
    assert KEY not in public_argv(["--extra", text])[1]
    assert KEY in hidden_words([text])
    assert KEY in known_secrets({"DYNO_VLLM_COMMAND": text})


@pytest.mark.parametrize(
    "text",
    [
        '{"speculative_token_tree":"[(0,), (0, 0)]"}',
        "--speculative-token-tree=[(0,)]",
        "cache_tokens: 123456 and num_tokens=1234567, time per output token: 12.345678 ms",
        "key_cache_dtype: float16",
        "first pass: compiling, missing key: lm_head.weight",
        "http://h:8000/models/a@main and docker.io/x@sha256",
        '{"key_map": {"a": "b"}}',
        "python -m x --max-num-batched-tokens 2048 --name 'a  b'",
    ],
)
def test_what_only_looks_like_a_secret_is_kept(text: str) -> None:
    from backends.redact import hidden_words

    assert public_text(text) == text
    assert public_argv([text]) == [text]
    assert public_environment({"VLLM_EXTRA": text}) == {"VLLM_EXTRA": text}
    assert not hidden_words([text])


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
