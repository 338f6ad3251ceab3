"""Reading values of flags: each complaint names the flag, what was given, and what would do."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from results.errors import UnknownNameError, UsageError

# Keys of an engine whose value is words as a shell splits them.
_WORDS = ("options", "command", "container.mounts", "container.args")


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


def positive_numbers(flag: str, text: str, example: str, *, most: float = 1e6) -> list[float]:
    """`0.5,1,2` as numbers above zero, in order, doubles dropped. Raises UsageError naming the flag."""
    values: list[float] = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value <= 0:
            raise UsageError(
                f"{flag}: {part.strip()!r} is not a number above zero (given: {text!r}). Example: {flag} {example}."
                + (" To send all requests at once, use --batch." if value == math.inf else "")
            )
        if value > most:
            raise UsageError(f"{flag}: {value:g} is beyond anything that can be run (at most {most:,.0f}).")
        if value not in values:
            values.append(value)
    return values


def positive_number(flag: str, text: str, example: str, *, most: float = 1e6) -> float:
    """One number above zero."""
    values = positive_numbers(flag, text, example, most=most)
    if len(values) != 1:
        raise UsageError(f"{flag} takes one number (given: {text!r}).")
    return values[0]


def seconds(flag: str, text: str) -> float:
    """`90`, `90s`, `5m`, `1.5h` in seconds. Raises UsageError."""
    word = text.strip()
    factor = {"s": 1, "m": 60, "h": 3600}.get(word[-1:].lower())
    number = word[:-1] if factor else word
    try:
        float(number)
    except ValueError:
        raise UsageError(
            f"{flag}: {text!r} is no time. Times look like 90s, 20m or 3h; a number alone is seconds."
        ) from None
    return positive_number(flag, number, "60", most=7 * 24 * 3600 / (factor or 1)) * (factor or 1)


def positive_int(flag: str, text: str) -> int:
    """One whole number above zero."""
    values = positive_ints(flag, text, example="8")
    if len(values) != 1:
        raise UsageError(f"{flag} takes one number (given: {text!r}).")
    return values[0]


def public_command(words: Sequence[str]) -> list[str]:
    """A `dyno` command line without secrets, those inside `--engine KEY=VALUE,...` and `--vary options=...` included."""
    from backends.redact import public_argv

    inside = {"--engine": _public_engine, "--vary": _public_vary}
    plain = [word.encode("utf-8", "replace").decode() for word in words]
    shown = public_argv(plain)
    for index, word in enumerate(plain):
        flag, equals, rest = word.partition("=")
        if equals and flag in inside:
            shown[index] = f"{flag}={inside[flag](rest)}"
        elif index and plain[index - 1] in inside:
            shown[index] = inside[plain[index - 1]](word)
    return shown


def _public_engine(text: str) -> str:
    from backends.redact import HIDDEN, public_argv

    parts: list[str] = []
    for part in text.replace("\\,", "\0").split(","):
        key, equals, value = part.partition("=")
        if key.strip() in _WORDS:
            parts.append(f"{key}={_public_words(value)}")
        elif not equals and parts and parts[-1].endswith(HIDDEN):
            parts.append(HIDDEN)  # the rest of a secret with a comma in it
        else:
            parts.append(public_argv([part])[0])
    return ",".join(parts).replace("\0", "\\,")


def _public_vary(text: str) -> str:
    from backends.redact import public_argv

    key, equals, values = text.partition("=")
    if key.strip() not in _WORDS:
        return public_argv([text])[0]
    shown = ",".join(_public_words(value) for value in values.replace("\\,", "\0").split(","))
    return f"{key}{equals}{shown}".replace("\0", "\\,")


def _public_words(text: str) -> str:
    from backends.redact import HIDDEN, public_argv

    try:
        return shlex.join(public_argv(shlex.split(text)))
    except ValueError:
        return HIDDEN  # not words of a shell: it will be refused, and it is not known what it holds


def engine_fields(text: str) -> dict[str, Any]:
    """`label=a,backend=vllm,max_num_seqs=8,env.X=1` as the mapping of an engine in an experiment file.

    `options=...` and `command=...` hold words as a shell would split them; a comma inside a value is written `\\,`. Several
    values of a setting are written `max_num_seqs=4/16/64` or `4..64`, and `options=` is given once for each: each combination
    is an engine. Raises UnknownNameError for a key that no engine has, UsageError for a word that is not KEY=VALUE.
    """
    from backends.base import EngineSettings
    from harness.axes import split_words

    plain = ("label", "backend", "url")
    words = ("options", "command")
    settings = set(EngineSettings.model_fields)
    engine: dict[str, Any] = {"settings": {}, "env": {}}
    alternatives: list[list[str]] = []
    for part in text.replace("\\,", "\0").split(","):
        key, separator, value = (piece.strip().replace("\0", ",") for piece in part.partition("="))
        if not separator or not key:
            raise UsageError(f"--engine: {part.strip()!r} is not KEY=VALUE (given: {_public_engine(text)!r}).")
        name = key.replace("-", "_")
        if name in plain:
            engine[name] = value
        elif name in words:
            engine[name] = split_words(f"--engine: {key}", value)
            alternatives += [engine[name]] if name == "options" else []
        elif name.startswith("container."):
            inner = name.removeprefix("container.")
            words_of = split_words(f"--engine: {key}", value) if name in _WORDS else value
            engine.setdefault("container", {})[inner] = words_of
        elif name.startswith("env."):
            engine["env"][key.removeprefix("env.")] = value
        elif name in settings:
            if name in engine["settings"]:
                raise UsageError(
                    f"--engine: {key} stands twice (given: {_public_engine(text)!r}). Several values are written {key}=A/B."
                )
            # A folder is one value, slashes and all.
            several = "/" in value and name != "speculative_model"
            engine["settings"][name] = [v.strip() for v in value.split("/")] if several else value
        else:
            raise UnknownNameError("engine key", key, [*plain, *words, "env.NAME", "container.image", *settings])
    if "backend" not in engine:
        raise UsageError(f"--engine needs backend=NAME (given: {_public_engine(text)!r}).")
    if len(alternatives) > 1:
        engine["options"] = alternatives
    engine.setdefault("label", engine["backend"].strip().lower().replace("-", "_"))
    return engine
