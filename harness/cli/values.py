"""Reading values of flags: each complaint names the flag, what was given, and what would do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from results.errors import UnknownNameError, UsageError


def positive_ints(flag: str, text: str, example: str = "1,8,32") -> list[int]:
    """`1,8,32` as whole numbers above zero, in order, doubles dropped. Raises UsageError naming the flag."""
    values: list[int] = []
    for part in text.split(","):
        word = part.strip().replace("_", "")
        if not word.isascii() or not word.isdigit() or not word.strip("0"):
            raise UsageError(
                f"{flag}: {part.strip()!r} is not a whole number above zero (given: {text!r}). Example: {flag} {example}."
            )
        if len(word) > 20 or int(word) > 10_000_000:
            shown = f"{int(word):,}" if len(word) <= 20 else f"a number of {len(word)} digits"
            raise UsageError(f"{flag}: {shown} is beyond anything that can be run (at most 10,000,000).")
        if int(word) not in values:
            values.append(int(word))
    return values


def positive_int(flag: str, text: str) -> int:
    """One whole number above zero."""
    values = positive_ints(flag, text, example="8")
    if len(values) != 1:
        raise UsageError(f"{flag} takes one number (given: {text!r}).")
    return values[0]


def public_command(words: Sequence[str]) -> list[str]:
    """A `dyno` command line without secrets, those inside `--engine KEY=VALUE,...` included."""
    from backends.redact import public_argv

    shown = public_argv([word.encode("utf-8", "replace").decode() for word in words])
    for index, word in enumerate(shown):
        flag, equals, rest = word.partition("=")
        if flag == "--engine" and equals:
            shown[index] = f"--engine={_public_engine(rest)}"
        elif index and shown[index - 1] == "--engine":
            shown[index] = _public_engine(word)
    return shown


def _public_engine(text: str) -> str:
    from backends.redact import HIDDEN, public_argv

    parts = []
    for part in text.replace("\\,", "\0").split(","):
        key, equals, value = part.partition("=")
        if key.strip() in ("options", "command"):
            try:
                value = shlex.join(public_argv(shlex.split(value)))
            except ValueError:
                value = HIDDEN  # not words of a shell: it will be refused, and it is not known what it holds
            parts.append(f"{key}={value}")
        else:
            parts.append(public_argv([part])[0] if equals else part)
    return ",".join(parts).replace("\0", "\\,")


def engine_fields(text: str) -> dict[str, Any]:
    """`label=a,backend=vllm,max_num_seqs=8,env.X=1` as the mapping of an engine in an experiment file.

    `options=...` and `command=...` hold words as a shell would split them; a comma inside a value is written `\\,`.
    Raises UnknownNameError for a key that no engine has, UsageError for a word that is not KEY=VALUE.
    """
    from backends.base import EngineSettings

    plain = ("label", "backend", "url")
    words = ("options", "command")
    settings = set(EngineSettings.model_fields)
    engine: dict[str, Any] = {"settings": {}, "env": {}}
    for part in text.replace("\\,", "\0").split(","):
        key, separator, value = (piece.strip().replace("\0", ",") for piece in part.partition("="))
        if not separator or not key:
            raise UsageError(f"--engine: {part.strip()!r} is not KEY=VALUE (given: {text!r}).")
        name = key.replace("-", "_")
        if name in plain:
            engine[name] = value
        elif name in words:
            try:
                engine[name] = shlex.split(value)
            except ValueError as error:
                raise UsageError(f"--engine: {key}={value!r} cannot be split into words: {error}.") from error
        elif name.startswith("env."):
            engine["env"][key.removeprefix("env.")] = value
        elif name in settings:
            engine["settings"][name] = value
        else:
            raise UnknownNameError("engine key", key, [*plain, *words, "env.NAME", *settings])
    if "backend" not in engine:
        raise UsageError(f"--engine needs backend=NAME (given: {text!r}).")
    engine.setdefault("label", engine["backend"].strip().lower().replace("-", "_"))
    return engine
