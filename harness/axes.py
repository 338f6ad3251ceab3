"""Settings of an engine that take several values: each combination is an engine of its own, labelled by what differs.

    max_num_seqs: [4, 16, 64]       in an experiment file: a list,
    max_num_seqs: 4..64             doubling from 4 to 64,
    max_num_batched_tokens: 512..2048+512    or in steps of 512;
    options: [[], [--enforce-eager]]         raw words: a list of lists.

In `--engine`, where a comma ends a setting, the list is written 4/16/64, and `options=` is given once for each.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import ValidationError

from backends.base import EngineSettings, get_backend
from harness.axis_labels import OPTIONS, label_of, public_options
from results.errors import UnknownNameError, UsageError

# More engines than these of one entry are a mistake.
MOST_COMBINATIONS = 256
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\+(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Axes:
    """An engine's entry with single values alone, and the settings (or `options`) that take several."""

    entry: dict[str, Any]
    values: Mapping[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Expanded:
    """Entries without axes, and the combinations that their backend does not take, each as `label: why`. `origin` holds for each
    engine the number of the entry that it was made of."""

    engines: list[Any]
    left_out: list[str]
    origin: list[int]


def value_list(setting: str, value: Any) -> list[Any] | None:
    """The values of an axis as its setting holds them, doubles dropped; None for a single value. What the setting cannot be stays
    as it is, for the validation to complain of. Raises UsageError for a list or range of nothing."""
    if isinstance(value, str) and (found := _RANGE.fullmatch(value.strip())):
        values = _range(setting, value, *found.groups())
    elif isinstance(value, list | tuple):
        values = list(value)
    else:
        return None
    if not values:
        raise UsageError(f"The setting {setting} was given an empty list: name its values, or leave it out.")
    values = [_read(setting, v) for v in values]
    return [v for at, v in enumerate(values) if not any(v == w and type(v) is type(w) for w in values[:at])]


def _read(setting: str, value: Any) -> Any:
    if setting not in EngineSettings.model_fields:
        return value
    try:
        return getattr(EngineSettings.model_validate({setting: value}), setting)
    except ValidationError:
        return value


def _range(setting: str, text: str, first: str, last: str, step: str | None) -> list[int]:
    low, high, by = (_whole(setting, digits) for digits in (first, last, step or "0"))
    if low < 1 or high < low or (step is not None and by < 1):
        raise UsageError(
            f"{setting}: {text!r} is no range. 4..64 doubles from 4 to 64, 512..2048+512 goes in steps of 512."
        )
    if by:
        if (high - low) // by >= MOST_COMBINATIONS:
            raise UsageError(f"{setting}: {text} has {(high - low) // by + 1:,} values, at most {MOST_COMBINATIONS}.")
        return list(range(low, high + 1, by))
    doubled = [low]
    while 2 * doubled[-1] <= high:
        doubled.append(2 * doubled[-1])
    return doubled if doubled[-1] == high else [*doubled, high]


def _whole(setting: str, digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    shown = f"{int(digits):,}" if len(digits) <= 20 else f"a number of {len(digits):,} digits"
    field = EngineSettings.model_fields.get(setting)
    bounds = [int(bound.le) for bound in (field.metadata if field else ()) if hasattr(bound, "le")]
    most = bounds[0] if bounds else (1 << 63) - 1
    if len(digits) > len(str(most)) or int(digits) > most:
        raise UsageError(f"{setting}: {shown} is beyond anything that can be run (at most {most:,}).")
    return int(digits)


def axes_of(entry: Mapping[str, Any]) -> Axes:
    """Split an engine's entry of an experiment file. Raises UsageError for an axis that cannot be read."""
    plain, values = dict(entry), {}
    settings = entry.get("settings")
    if isinstance(settings, Mapping):
        found = {name: many for name, value in settings.items() if (many := value_list(name, value)) is not None}
        plain["settings"] = {name: value for name, value in settings.items() if name not in found}
        values.update(found)
    options = entry.get(OPTIONS)
    if isinstance(options, list | tuple) and any(isinstance(words, list | tuple) for words in options):
        values[OPTIONS] = value_list(OPTIONS, [_words(words) for words in options]) or []
        del plain[OPTIONS]
    return Axes(plain, values)


def _words(words: Any) -> list[str]:
    if isinstance(words, list | tuple):
        return [str(word) for word in words]
    if isinstance(words, str):
        return split_words(OPTIONS, words)
    raise UsageError(
        f"{OPTIONS}: {words!r} is neither a text nor a list of words. Example: options: [[], [--enforce-eager]]."
    )


def split_words(name: str, text: str) -> list[str]:
    """Words as a shell would split them. Raises UsageError, which does not repeat them: they may hold a key."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{name}: its words cannot be split as a shell would: {str(error).lower()}. Close the quote; on the command line a comma "
            "that is part of a value is written \\, (within quotes too)."
        ) from error


def expand(entries: Sequence[Any]) -> Expanded:
    """Every combination of every entry; what is no mapping stays for the validation to complain of.

    Raises UsageError where an entry has too many combinations, or none that its backend takes.
    """
    engines: list[Any] = []
    left_out: list[str] = []
    origin: list[int] = []
    for number, entry in enumerate(entries):
        axes = axes_of(entry) if isinstance(entry, Mapping) else None
        if axes is None or not axes.values:
            engines.append(entry)
            origin.append(number)
            continue
        made, refused = _combinations(axes)
        if not made:
            raise UsageError(f"No combination of engine {entry.get('label')!r} can be had: {refused[0]}")
        engines += made
        origin += [number] * len(made)
        left_out += refused
    return Expanded(engines, left_out, origin)


def _combinations(axes: Axes) -> tuple[list[dict[str, Any]], list[str]]:
    number = math.prod(len(values) for values in axes.values.values())
    if number > MOST_COMBINATIONS:
        raise UsageError(
            f"Engine {axes.entry.get('label')!r} has {number:,} combinations of settings; at most {MOST_COMBINATIONS}. Name "
            "fewer values, or let `dyno tune` choose among them."
        )
    shown = {name: public_options(values) if name == OPTIONS else values for name, values in axes.values.items()}
    differing = [name for name, values in axes.values.items() if len(values) > 1]
    made: list[dict[str, Any]] = []
    refused: list[str] = []
    for chosen, told in zip(product(*axes.values.values()), product(*shown.values()), strict=True):
        entry = _with(axes.entry, dict(zip(axes.values, chosen, strict=True)))
        words = dict(zip(shown, told, strict=True))
        entry["label"] = label_of(str(axes.entry.get("label", "")), {name: words[name] for name in differing})
        if why := _refusal(entry):
            refused.append(f"{entry['label']}: {why}")
        else:
            made.append(entry)
    return made, refused


def _with(entry: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with these settings; words of `options` come after its own."""
    settings = {**(entry.get("settings") or {}), **{k: v for k, v in values.items() if k != OPTIONS}}
    words = [*(entry.get(OPTIONS) or ()), *values.get(OPTIONS, ())]
    return {**entry, "settings": settings, **({OPTIONS: words} if words else {})}


def _refusal(entry: Mapping[str, Any]) -> str | None:
    """Why the backend does not take these settings; None where it does, or where the validation will say what is wrong."""
    try:
        get_backend(str(entry.get("backend"))).refuse_unsupported(EngineSettings.model_validate(entry["settings"]))
    except (UnknownNameError, ValidationError):
        return None
    except UsageError as error:
        return str(error)
    return None
