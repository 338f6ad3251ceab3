"""Command lines and environments as they may be written to a file or shown: without keys, tokens and passwords."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

HIDDEN = "***"

# Ends of words in a name (of a variable or a flag) that say its value is secret. Words end at `_` and `-`, so that
# `tokenizer` and `max_num_batched_tokens` stay readable.
_SECRET_ENDS = (
    "key",
    "keys",
    "token",
    "secret",
    "secrets",
    "passwd",
    "password",
    "passphrase",
    "pwd",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "cookie",
    "bearer",
)
# Secret only as whole words ("compat" and "compass" are not).
_SECRET_WORDS = frozenset(("pat", "pass", "askpass", "pgpass"))
# A name that ends so is of something about it: `--token-interval`, KEY_SIZE, `speculative_token_tree`.
_ABOUT = frozenset(
    ("budget", "count", "ids", "interval", "length", "limit", "number", "rate", "ratio", "size", "timeout", "tree")
)
# Tokens in the plural are of text, but for these.
_TOKENS_OF_ACCESS = re.compile(r"(?<![A-Za-z])(?:access|api|hf|refresh)[_-]?tokens(?![A-Za-z])", re.IGNORECASE)
# Tokens of text and the keys of a mapping: what an error tells of them explains it.
_NO_SECRET = re.compile(
    r"(?<![A-Za-z])(?:(?:eos|bos|pad|stop|unk|sep|cls|mask|special)[_-]token|token[_-]ids"
    r"|(?:missing|unexpected|mismatched)[_-]keys?)(?![A-Za-z])",
    re.IGNORECASE,
)
# As a message has it (KeyError); a flag `--key` and a variable KEY are of another kind.
_PLAIN_KEY = ("key", "keys")
_WORD = re.compile(r"[A-Za-z]+")
_BEARER = re.compile(r"(?P<head>\b(?:bearer|basic)\s+)(?P<secret>[A-Za-z0-9._~+/=-]{6,})", re.IGNORECASE)
# A password may hold `@` and `/`; a port before a path (`http://h:80/a@b`) is none.
_USERINFO = re.compile(
    r"(?P<head>\b[A-Za-z][A-Za-z0-9+.-]*://)"
    r"(?P<secret>[^\s/@:\[\"']+:(?!\d*(?:/|$))[^\s\"'?#]*|[^\s/\"'?#]+)(?=@)"
)
# A string in JSON, in a repr or assigned: its quotes may be escaped (`\"`) where it stands in another, and its end cut off.
_STRING = r"(?P<open>\\*[\"'])(?P<secret>.*?)(?:(?<!\\)(?P=open)|$)"
_QUOTED = re.compile(_STRING, re.MULTILINE)
# A character by its number, as JSON and a repr may write it, however often it was escaped again: `\u005f`, `\\x5f`.
_ESCAPED = re.compile(r"\\+(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2}))")
# A string, a list or a mapping of them, with its name: `"api_key": "X"`, `{\"api_keys\": [\"X\"]}`, `api_key='X'`. Numbers are no
# secrets there: JSON is full of names such as `num_key_value_heads`.
_NAMED = re.compile(
    rf"(?P<head>(?:(?<!\\)(?P<quote>\\*[\"'])(?P<name>(?:[\w.-]|{_ESCAPED.pattern})+)(?P=quote)\s*:"
    r"|(?<![\w.-])(?P<bare>[\w.-]+)=)\s*)"
    rf"(?P<value>(?P<inside>[\[{{](?:[^\[\]{{}}\n]|[\[{{][^\[\]{{}}\n]*[\]}}])*[\]}}]?)|b?{_STRING})",
    re.MULTILINE,
)
# The same without quotes: `api_key=X` (also in a URL), `api_key: X`, `X-Api-Key: X`, `Authorization: Token X`.
_UNQUOTED = re.compile(
    rf"(?P<head>(?<![\w.-])(?P<name>[\w.-]*(?:{'|'.join((*_SECRET_ENDS, *_SECRET_WORDS, 'tokens'))})[\d_]*)"
    r"(?:=|\s?:[ \t]*(?:(?:bearer|basic|digest|token)[ ]+)?[\"']?))"
    r"(?P<secret>(?!(?:bearer|basic|digest|token)\s|\*)[^\s\"'\\,;&#()\[\]{}]+)",
    re.IGNORECASE,
)
# Words that stand before a colon in a sentence: "missing key: ...", "first pass: ...".
_OF_A_SENTENCE = ("key", "keys", "pass", "pat")
# What no variable or flag has in its name: its `=` stands in a URL, in a list, in JSON or in a command line.
_NO_NAME = re.compile(r"[\s\"':,{}]")
# An option as its name tells: plain words. A key has capitals, digits or no end, or begins as those of well-known services do.
_OPTION = re.compile(
    r"--(?!(?:sk|pk|rk|gsk|ghp|glpat|nvapi)[-_])(?:all2all|[a-z]{1,16}\d{0,2})(?:[-_.][a-z]{1,16}\d{0,2})*(?:=[^=].*)?",
    re.DOTALL,
)
# What is shorter, or a plain number, is too common to be looked for elsewhere ("true", "2048").
_SHORTEST_SECRET = 6
_NUMBER = re.compile(r"[+-]?\d*\.?\d+(?:[eE][+-]?\d+)?")

# What of the caller's environment explains how an engine ran; the rest is nobody's business.
_RELEVANT = re.compile(
    r"^(CUDA|NVIDIA|NCCL|VLLM|TRTLLM|TLLM|TENSORRT|SGLANG|SGL|LLAMA|GGML|TORCH|PYTORCH|TRITON|OMP|KMP|MKL|OPENBLAS|GOMP|HF|"
    r"TRANSFORMERS|TOKENIZERS|RAY|DYNO|LD_PRELOAD$|LD_LIBRARY_PATH$|MALLOC|PYTHON)"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or flag of that name holds a secret."""
    if name in _PLAIN_KEY:
        return False
    words = _words_of(name)
    return not _ABOUT.intersection(words[-1:]) and (
        any(map(_is_secret_word, words)) or bool(_TOKENS_OF_ACCESS.search(name))
    )


def _is_a_secrets_own_name(name: str) -> bool:
    """The same, where names are of all kinds (a log, a mapping): its last word has to say so, as in `api_key`, not `key_dtype`."""
    return is_secret_name(name) and (
        any(map(_is_secret_word, _words_of(name)[-1:])) or bool(_TOKENS_OF_ACCESS.search(name))
    )


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(_NO_SECRET.sub("", name))]


def _is_secret_word(word: str) -> bool:
    return word.endswith(_SECRET_ENDS) or word in _SECRET_WORDS


def known_secrets(env: Mapping[str, str]) -> frozenset[str]:
    """The secret values of an environment, to be hidden wherever else they appear."""
    found = {value for name, value in env.items() if is_secret_name(name)}
    for name, value in env.items():
        if not is_secret_name(name):
            _hide_in_words(value, found)
    return _looked_for(found)


def _looked_for(found: Iterable[str]) -> frozenset[str]:
    """Those hidden values that are to be hidden in other texts too."""
    return frozenset(value for value in found if len(value) >= _SHORTEST_SECRET and not _NUMBER.fullmatch(value))


def public_text(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without those secrets, without user names and passwords inside URLs, and without what bears a secret's name, as in
    JSON, in a header or in a URL's query."""
    return _hide(_without(text, secrets), set())


def public_words(text: str, secrets: Iterable[str] = ()) -> str:
    """A text that may hold a command line, without secrets: also without what `public_argv` hides among its words."""
    return _hide_in_words(_without(text, secrets), set())


def _without(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _hide(text: str, found: set[str]) -> str:
    """The text without what its own words say is secret, which is added to `found`."""

    def hide(match: re.Match[str]) -> str:
        found.add(match["secret"])
        return match["head"] + HIDDEN

    def unquoted(match: re.Match[str]) -> str:
        name = match["name"]
        is_one = name.lower() not in _OF_A_SENTENCE and _is_a_secrets_own_name(name) and _looked_for([match["secret"]])
        return hide(match) if is_one else match[0]

    text = _hide_named(text, found)
    text = _BEARER.sub(hide, text)
    text = _USERINFO.sub(hide, text)
    return _UNQUOTED.sub(unquoted, text)


def _hide_named(text: str, found: set[str]) -> str:
    """The text with strings that bear a secret's name hidden; they are added to `found`. A string may hold such strings itself."""

    def string(match: re.Match[str]) -> str:
        if match.string[match.end() :].lstrip().startswith(":"):
            return match[0]  # the name of something in a mapping
        found.update((match["secret"], _unescaped(match["secret"])))
        begin, end = (at - match.start() for at in match.span("secret"))
        return f"{match[0][:begin]}{HIDDEN if match['secret'] else ''}{match[0][end:]}"

    shown: list[str] = []
    at = 0
    while (named := _NAMED.search(text, at)) is not None:
        is_secret = _is_a_secrets_own_name if (named["inside"] or "").startswith("{") else is_secret_name
        shown.append(text[at : named.end("head")])
        if is_secret(_unescaped(named["name"] or named["bare"])):
            shown.append(_QUOTED.sub(string, named["value"]))
            at = named.end()
        else:  # how long this value is does not matter: what it holds is looked at like what follows it
            at = named.end("head")
    return "".join([*shown, text[at:]])


def _unescaped(text: str) -> str:
    text = _ESCAPED.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _hide_in_words(text: str, found: set[str]) -> str:
    """`_hide` for a text that may hold a command line."""
    text = _hide(text, found)
    try:
        words = shlex.split(text)
    except ValueError:  # no words of a shell: an apostrophe in a sentence, JSON that is cut off
        words = text.split()
    shown = words if words == [text] else _hide_in_argv(words, found)
    return text if shown == words else shlex.join(shown)


def public_environment(env: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """An environment, sorted, with secret values hidden: by name, in a command line, and any value that holds a known secret."""
    hidden = known_secrets(env) | set(secrets)
    return {
        name: HIDDEN if is_secret_name(name) and value else public_words(value, hidden)
        for name, value in sorted(env.items())
    }


def relevant_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain how an engine ran (CUDA_*, VLLM_*, OMP_* and the like), secrets hidden."""
    return {name: value for name, value in public_environment(env).items() if _RELEVANT.match(name)}


def public_argv(argv: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """A command line without secrets: `--api-key X` (also where X begins with dashes, unless it looks like the next option),
    `--api-key=X`, `NAME_KEY=X`, URLs with user names, and what `public_text` hides inside a word; a word may be a command line
    itself (`bash -c "..."`)."""
    hidden = set(secrets)
    shown = _hide_in_argv(argv, set())
    return [_without(word, hidden) for word in shown]


def hidden_words(argv: Sequence[str]) -> frozenset[str]:
    """The values that `public_argv` hides: to be hidden wherever else they turn up (a server's log, an error)."""
    found: set[str] = set()
    _hide_in_argv(argv, found)
    return _looked_for(found)


def _hide_in_argv(argv: Sequence[str], found: set[str]) -> list[str]:
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, value = word.partition("=")
        if hide_next and word != "--" and not _OPTION.fullmatch(word):
            found.add(word)
            shown.append(HIDDEN)
            continue  # a flag may take several keys: hide all up to the next flag
        last = word.rpartition("=")[2]  # `env.ARGS=--api-key`
        hide_next = last.startswith("-") and not any(map(str.isspace, last)) and is_secret_name(last)
        if equals and value and not _NO_NAME.search(name) and is_secret_name(name):
            found.add(value)
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_hide_in_words(word, found) if any(map(str.isspace, word)) else _hide(word, found))
    return shown
