"""`--workload` and `--trace` of `dyno sweep`: a file, or `KIND:KEY=VALUE,...`, as a workload of an experiment file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.cli.amounts import share
from harness.cli.values import positive_int, positive_ints
from results.errors import UnknownNameError, UsageError
from workloads.lines import as_text, json_object, numbered_lines, read_file
from workloads.trace_files import FORMATS, guess_format

KINDS = ("random", "prefix", "conversations", "sharegpt", "jsonl", "trace")
_LENGTHS = ("input_len", "output_len", "turn_len", "turns")
_INTS = ("prefix_len", "groups", "max_len", "max_tokens", "most_output", "rows")
_SHARES = ("hit_share", "max_skipped")
_FLAGS = ("oversample", "natural_eos", "multi_turn")
_TEXTS = ("too_long", "order", "format", "equal_times", "path")
# Of the distributions, what follows their name, in order: normal:512:100, uniform:100:200.
_DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "fixed": ("tokens",),
    "uniform": ("low", "high"),
    "normal": ("mean", "std", "low", "high"),
    "lognormal": ("mean", "std", "low", "high"),
    "exponential": ("mean", "low", "high"),
}
_EXAMPLE = "--workload prefix:prefix_len=1024,groups=4,hit_share=90%,input_len=64,output_len=32"


def workload_of(text: str) -> dict[str, Any]:
    """`FILE[,KEY=VALUE...]` or `KIND:[FILE,]KEY=VALUE,...` as fields. Raises UsageError."""
    kind, colon, rest = text.partition(":")
    known = bool(colon) and kind in KINDS
    if colon and not known and not Path(text.split(",")[0]).exists() and "/" not in kind and "." not in kind:
        raise UnknownNameError("workload", kind, list(KINDS), f"Example: {_EXAMPLE}.")
    words = [word for word in (rest if known else text).split(",") if word]
    fields: dict[str, Any] = {"type": kind} if known else {}
    for at, word in enumerate(words):
        key, equals, value = word.partition("=")
        if not equals and at == 0:
            fields["path"] = word
        elif not equals:
            raise UsageError(f"--workload: {word!r} is not KEY=VALUE (given: {text!r}). Example: {_EXAMPLE}.")
        else:
            fields[key.replace("-", "_")] = _value(key.replace("-", "_"), value)
    if "type" not in fields:
        fields["type"] = guess_type(str(fields.get("path", "")))
    return fields


def _value(key: str, value: str) -> Any:
    if key in _LENGTHS:
        return length_of(key, value)
    if key in _INTS:
        return positive_int(f"--workload {key}", value)
    if key in _SHARES:
        return 0.0 if value in ("0", "0%") else 1.0 if value in ("1", "100%") else share(f"--workload {key}", value)
    if key in _FLAGS:
        if value not in ("true", "false", "yes", "no", "1", "0"):
            raise UsageError(f"--workload {key} is true or false (given: {value!r}).")
        return value in ("true", "yes", "1")
    if key in _TEXTS:
        return value
    raise UnknownNameError("key of a workload", key, [*_LENGTHS, *_INTS, *_SHARES, *_FLAGS, *_TEXTS])


def length_of(flag: str, text: str) -> dict[str, Any]:
    """`128`, `uniform:100:200`, `normal:512:100`, `lognormal:512:400`, `exponential:256` as a length. Raises UsageError."""
    dist, *numbers = text.split(":")
    if not numbers:
        return {"dist": "fixed", "tokens": positive_int(f"--workload {flag}", text)}
    if dist not in _DISTRIBUTIONS:
        raise UnknownNameError("distribution of lengths", dist, list(_DISTRIBUTIONS))
    names = _DISTRIBUTIONS[dist]
    if len(numbers) > len(names):
        raise UsageError(f"--workload {flag}: {dist} takes {':'.join(names)} (given: {text!r}).")
    return {
        "dist": dist,
        **{name: positive_ints(f"--workload {flag}", n)[0] for name, n in zip(names, numbers, strict=False)},
    }


def guess_type(path: str) -> str:
    """sharegpt, jsonl or trace, by what is in the file. Raises UsageError."""
    text = as_text(path, read_file(path)[0])
    start = text.lstrip()
    if start.startswith("["):
        return "sharegpt"
    if start.startswith("{"):
        first = json_object(next(line for _, line in numbered_lines(path, text)))
        if isinstance(first, dict) and "conversations" in first:
            return "sharegpt"
        return "trace" if isinstance(first, dict) and "input_length" in first else "jsonl"
    guess_format(path, text)
    return "trace"


def trace_of(text: str, format_: str | None) -> dict[str, Any]:
    """`--trace FILE[,KEY=VALUE...] --trace-format F` as a workload. Raises UsageError."""
    if format_ is not None and format_ not in FORMATS:
        raise UnknownNameError("trace format", format_, list(FORMATS))
    return {**workload_of(f"trace:{text}"), **({"format": format_} if format_ else {})}
