"""The trace formats that are published: one small reader each. All give rows of arrival (ns after the first), prompt and output
tokens, and, where a trace knows them, the ids of the prompt's blocks."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from results.clock import NS_PER_MS, NS_PER_S
from results.errors import UsageError
from workloads.lines import Skipped, as_text, json_object, numbered_lines, read_file, whole_number


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace. `blocks`: ids of the prompt's blocks, equal where prompts begin alike."""

    line: int
    at_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in order of time, equal times in the order of the file; the first arrival is at 0. `unsorted`: rows that stood
    after a later one."""

    rows: tuple[Row, ...]
    skipped: Skipped
    unsorted: int


def azure_time(text: str) -> int | str:
    """`2023-11-16 18:15:46.6805900` (any number of fractional digits, an offset or none) in ns, or what is wrong."""
    whole, _, rest = text.strip().replace("T", " ").partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    if not digits and len(whole) > 19:
        whole, zone = whole[:19], whole[19:]
    try:
        at = datetime.fromisoformat(whole + (zone.replace("Z", "+00:00") if zone else ""))
    except ValueError:
        return "TIMESTAMP is no date and time"
    seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (seconds.days * 86_400 + seconds.seconds) * NS_PER_S + int((digits + "0" * 9)[:9])


def _decimal_ns(text: object, name: str, unit: int) -> int | str:
    """A time of so many ns a unit, exact to the ns where the text is a decimal."""
    if isinstance(text, bool) or not isinstance(text, int | float | str) or text == "":
        return f"no {name}"
    try:
        value = float(text)
    except ValueError:
        return f"{name} is not a number"
    if not 0 <= value < 1e12:
        return f"{name} is negative" if value < 0 else f"{name} is out of range"
    return round(value * unit)


Reader = Callable[[str, str, Skipped], Iterator[Row]]


def _csv_rows(
    path: str, text: str, skipped: Skipped, needs: tuple[str, ...]
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Rows by column name. Raises UsageError where the header lacks a column."""
    lines = list(numbered_lines(path, text))
    header = [name.strip() for name in _fields(lines[0][1])]
    if missing := [name for name in needs if name not in header]:
        raise UsageError(
            f"{path}, line {lines[0][0]}: the header has {', '.join(header[:8])[:200]} and lacks {', '.join(missing)}. Is it another "
            f"format? Say which with --trace-format {'|'.join(FORMATS)}."
        )
    for number, line in lines[1:]:
        skipped.total += 1
        fields = _fields(line)
        if len(fields) != len(header):
            skipped.add(f"line {number}", f"not {len(header)} columns")
        else:
            yield number, dict(zip(header, fields, strict=True))


def _fields(line: str) -> list[str]:
    """Of one CSV line; one alone where it is none."""
    try:
        return next(csv.reader([line]))
    except csv.Error:  # a field of more than 131,072 characters
        return [line]


def _row(
    skipped: Skipped, line: int, at: int | str, given: int | str, output: int | str, blocks: tuple[int, ...] | str = ()
) -> Row | None:
    for value in (at, given, output, blocks):
        if isinstance(value, str):
            skipped.add(f"line {line}", value)
            return None
    assert not isinstance(at, str)
    assert not isinstance(given, str)
    assert not isinstance(output, str)
    assert not isinstance(blocks, str)
    return Row(line, at, given, output, blocks)


def _azure(path: str, text: str, skipped: Skipped) -> Iterator[Row]:
    """Azure's LLM inference traces: TIMESTAMP,ContextTokens,GeneratedTokens."""
    for line, row in _csv_rows(path, text, skipped, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        given, output = (whole_number(row[name].strip(), name, 1) for name in ("ContextTokens", "GeneratedTokens"))
        if (made := _row(skipped, line, azure_time(row["TIMESTAMP"]), given, output)) is not None:
            yield made


def _burstgpt(path: str, text: str, skipped: Skipped) -> Iterator[Row]:
    """BurstGPT: Timestamp (s), Request tokens, Response tokens among other columns. Failed requests have no response."""
    for line, row in _csv_rows(path, text, skipped, ("Timestamp", "Request tokens", "Response tokens")):
        given, output = (whole_number(row[name].strip(), name, 1) for name in ("Request tokens", "Response tokens"))
        at = _decimal_ns(row["Timestamp"].strip(), "Timestamp", NS_PER_S)
        if (made := _row(skipped, line, at, given, output)) is not None:
            yield made


def _mooncake(path: str, text: str, skipped: Skipped) -> Iterator[Row]:
    """Mooncake: a JSON object a line with timestamp (ms), input_length, output_length and hash_ids of blocks of 512 tokens."""
    for line, words in numbered_lines(path, text):
        skipped.total += 1
        item = json_object(words)
        if isinstance(item, str):
            skipped.add(f"line {line}", item)
            continue
        ids = item.get("hash_ids", [])
        good = isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
        made = _row(
            skipped,
            line,
            _decimal_ns(item.get("timestamp"), "timestamp", NS_PER_MS),
            whole_number(item.get("input_length"), "input_length", 1),
            whole_number(item.get("output_length"), "output_length", 1),
            tuple(ids) if good else "hash_ids are not whole numbers",
        )
        if made is not None:
            yield made


FORMATS: dict[str, Reader] = {"azure": _azure, "mooncake": _mooncake, "burstgpt": _burstgpt}


def guess_format(path: str, text: str) -> str:
    """Which format a trace has, by its first line. Raises UsageError."""
    first = next((line for _, line in numbered_lines(path, text)), "")
    if "ContextTokens" in first:
        return "azure"
    if "Request tokens" in first:
        return "burstgpt"
    if first.lstrip().startswith("{") and "input_length" in first:
        return "mooncake"
    raise UsageError(
        f"{path} is no trace of a known format: its first line is {first[:60]!r}. Known are {', '.join(FORMATS)}; say which with "
        "--trace-format."
    )


@lru_cache(maxsize=4)
def read_trace(path: str, sha256: str, format_: str) -> Trace:
    """The trace, its times from the first arrival on. Raises UsageError."""
    skipped = Skipped(path, "rows")
    found = list(FORMATS[format_](path, as_text(path, read_file(path)[0]), skipped))
    late = sum(1 for before, after in itertools.pairwise(found) if after.at_ns < before.at_ns)
    found.sort(key=lambda row: row.at_ns)
    first = found[0].at_ns if found else 0
    rows = tuple(Row(r.line, r.at_ns - first, r.input_tokens, r.output_tokens, r.blocks) for r in found)
    return Trace(rows, skipped, late)
