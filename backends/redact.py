"""Command lines and environments as they may be written to a file or shown: without keys, tokens and passwords."""

from __future__ import annotations

import re
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
_WORD = re.compile(r"[A-Za-z]+")
_BEARER = re.compile(r"\b(?P<scheme>bearer|basic)\s+(?P<secret>[A-Za-z0-9._~+/=-]{6,})", re.IGNORECASE)
_USERINFO = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<secret>[^/\s@]+)@")
# Values of this length or less are too common to look for elsewhere ("1", "true").
_SHORTEST_SECRET = 6

# What of the caller's environment explains how an engine ran; the rest is nobody's business.
_RELEVANT = re.compile(
    r"^(CUDA|NVIDIA|NCCL|VLLM|TRTLLM|TLLM|TENSORRT|SGLANG|SGL|LLAMA|GGML|TORCH|PYTORCH|TRITON|OMP|KMP|MKL|OPENBLAS|GOMP|HF|"
    r"TRANSFORMERS|TOKENIZERS|RAY|DYNO|LD_PRELOAD$|LD_LIBRARY_PATH$|MALLOC|PYTHON)"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or flag of that name holds a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    return any(word.endswith(_SECRET_ENDS) or word in _SECRET_WORDS for word in words)


def known_secrets(env: Mapping[str, str]) -> frozenset[str]:
    """The secret values of an environment, to be hidden wherever else they appear."""
    return frozenset(value for name, value in env.items() if is_secret_name(name) and len(value) >= _SHORTEST_SECRET)


def public_text(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without those secrets and without user names and passwords inside URLs."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _BEARER.sub(rf"\g<scheme> {HIDDEN}", text)
    return _USERINFO.sub(rf"\g<scheme>{HIDDEN}@", text)


def public_environment(env: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """An environment, sorted, with secret values hidden: by name, and any value that holds a known secret."""
    hidden = known_secrets(env) | set(secrets)
    return {
        name: HIDDEN if is_secret_name(name) and value else public_text(value, hidden)
        for name, value in sorted(env.items())
    }


def relevant_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain how an engine ran (CUDA_*, VLLM_*, OMP_* and the like), secrets hidden."""
    return {name: value for name, value in public_environment(env).items() if _RELEVANT.match(name)}


def public_argv(argv: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """A command line without secrets: `--api-key X`, `--api-key=X`, `NAME_KEY=X`, URLs with user names."""
    hidden = set(secrets)
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, value = word.partition("=")
        if hide_next and not word.startswith("--"):
            shown.append(HIDDEN)
            continue  # a flag may take several keys: hide all up to the next flag
        hide_next = word.startswith("-") and not equals and is_secret_name(word)
        if equals and value and "://" not in name and is_secret_name(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(public_text(word, hidden))
    return shown


def hidden_words(argv: Sequence[str]) -> frozenset[str]:
    """The values that `public_argv` hides: to be hidden wherever else they turn up (a server's log, an error)."""
    found: set[str] = set()
    for word, shown in zip(argv, public_argv(argv), strict=True):
        if shown == HIDDEN:
            found.add(word)
        elif shown.endswith(f"={HIDDEN}"):
            found.add(word.partition("=")[2])
        else:
            found |= {match["secret"] for pattern in (_BEARER, _USERINFO) for match in pattern.finditer(word)}
    return frozenset(value for value in found if len(value) >= _SHORTEST_SECRET)
