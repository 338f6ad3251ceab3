"""Prompts that people wrote: ShareGPT-form conversations (both layouts) and JSONL with a prompt a line.

Texts are sent as the token ids that the model's tokenizer makes of them, with what it puts before a prompt (BOS) once: the
length is exact and no server adds a second one. Without a tokenizer they go as text, and the server counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np
from pydantic import Field

from results.errors import UsageError
from workloads.base import PlannedRequest, Vocabulary
from workloads.from_file import ALIKE, DROPPED, REPEATED, FromFile, shuffled
from workloads.lengths import Length
from workloads.lines import (
    Skipped,
    as_text,
    is_text,
    json_document,
    json_object,
    numbered_lines,
    read_file,
    whole_number,
)

_USER, _MODEL, _SYSTEM = ("human", "user"), ("gpt", "assistant", "chatgpt", "bard", "model"), ("system",)
# Of text nobody has counted, for estimates alone.
_CHARS_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """A conversation (prompt and answer in turn, as text; a last prompt may lack its answer) or one prompt."""

    where: str
    turns: tuple[tuple[str, str | None], ...]
    output_tokens: int | None = None


class _Texts(FromFile):
    """Prompts as text. Output lengths are those of `output_len`, else those of the recorded answers, at most `most_output`.

    With `natural_eos` the model ends its answers itself, and they are asked for at most so many tokens (`most_output` where
    `output_len` is not given).
    """

    output_len: Length | None = None
    most_output: int = Field(1024, gt=0)
    natural_eos: bool = False
    order: Literal["shuffled", "file"] = "shuffled"

    def entries(self) -> tuple[tuple[Entry, ...], Skipped]:
        raise NotImplementedError

    def skipped(self) -> Skipped:
        return self.entries()[1]

    @property
    def longest_input(self) -> int:
        """What is known without a tokenizer: each request is checked again when it is planned."""
        return 1 if self.max_len is None else self.max_len - self.longest_output

    @property
    def longest_output(self) -> int:
        most = self.output_len.longest if self.output_len else 1
        return most if self.max_len is None else min(most, self.max_len - 1)

    @property
    def longest(self) -> int:
        return self.max_len or self.longest_input + self.longest_output

    @property
    def expected_input(self) -> int:
        """By the letters of the prompts."""
        entries = self.entries()[0]
        return max(1, sum(len(e.turns[0][0]) for e in entries) // (_CHARS_A_TOKEN * len(entries)))

    @property
    def expected_output(self) -> int:
        if self.output_len:
            return self.output_len.nominal
        entries = self.entries()[0]
        letters = sum(len(e.turns[0][1] or "") for e in entries) // (_CHARS_A_TOKEN * len(entries))
        return max(1, min(self.most_output, letters))

    @property
    def label(self) -> str:
        return f"{self.name}{', natural ends' if self.natural_eos else ''}"

    def requests(self, n: int, seed: int, vocabulary: Vocabulary) -> list[PlannedRequest]:
        """The first `n` requests of that seed. Raises UsageError where the file has fewer and may not be repeated."""
        found = list(islice(self.stream(n, seed, vocabulary), n))
        self.check_enough(n, len(found))
        return found

    def available(self) -> int | None:
        """The most requests there can be; None where entries may be sent again."""
        return None if self.oversample else sum(len(self._turns(e)) for e in self.entries()[0])

    def stream(self, n: int, seed: int, vocabulary: Vocabulary) -> Iterator[PlannedRequest]:
        """At most `n` requests one by one; fewer where the file ends."""
        entries = list(self.entries()[0])
        entries = shuffled(entries, seed) if self.order == "shuffled" else entries
        rng = np.random.default_rng(seed + 1)
        sent = dropped = chain = 0
        sent_before: set[int] = set()
        marks: tuple[str, ...] = ()
        while sent < n:
            before = sent
            for entry in entries:
                for made in self._planned(entry, vocabulary, rng):
                    if made is None:
                        dropped += 1
                        continue
                    alike = (ALIKE,) if hash(made.prompt) in sent_before and not marks else ()
                    sent_before.add(hash(made.prompt))
                    yield replace(
                        made,
                        marks=made.marks + marks + alike + (DROPPED,) * dropped,
                        chain=chain if len(self._turns(entry)) > 1 else None,
                    )
                    sent, dropped = sent + 1, 0
                    if sent >= n:
                        return
                chain += 1
            if sent == before or not self.oversample:
                return
            marks = (REPEATED,)

    def _turns(self, entry: Entry) -> Sequence[tuple[str, str | None]]:
        return entry.turns[:1]

    def _planned(
        self, entry: Entry, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> Iterator[PlannedRequest | None]:
        said: tuple[int, ...] | str = ()
        for text, answer in self._turns(entry):
            prompt = _joined(said, text, vocabulary)
            request = PlannedRequest(prompt, self._output(entry, answer, vocabulary, rng))
            yield self.fit(request, entry.where, 1 if self.natural_eos else request.output_len)
            said = _joined(prompt, answer or "", vocabulary)

    def _output(self, entry: Entry, answer: str | None, vocabulary: Vocabulary, rng: np.random.Generator) -> int:
        if self.output_len is not None:
            return self.output_len.draw(rng, 1)[0]
        if entry.output_tokens is not None:
            return entry.output_tokens
        if self.natural_eos:
            return self.most_output
        if answer and vocabulary.encode is not None:
            return max(1, min(self.most_output, len(_more_ids(answer, vocabulary))))
        lacks = "no tokenizer is at hand to count its recorded answer" if answer else "it has no recorded answer"
        raise UsageError(
            f"{self.path}, {entry.where}: how many tokens to ask for? {lacks[0].upper()}{lacks[1:]}. Give output_len=128 or "
            "natural_eos=true, or name a folder with a tokenizer.json by --tokenizer."
        )


def _joined(said: tuple[int, ...] | str, text: str, vocabulary: Vocabulary) -> tuple[int, ...] | str:
    """A prompt after what was said before: as ids where there is a tokenizer, else as text."""
    if vocabulary.encode is None:
        return f"{said}\n{text}" if said else text
    if said:
        assert not isinstance(said, str)
        return said + _more_ids(text, vocabulary)
    return prompt_ids(text, vocabulary)


def prompt_ids(text: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids of a prompt with BOS at most once: a text from a chat template brings its own."""
    assert vocabulary.encode is not None
    ids, before = tuple(vocabulary.encode(text)), _before(vocabulary)
    return ids[before:] if before and ids[before : 2 * before] == ids[:before] else ids


def _more_ids(text: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids of a text that goes on: nothing is put before it."""
    assert vocabulary.encode is not None
    return tuple(vocabulary.encode(text))[_before(vocabulary) :]


def _before(vocabulary: Vocabulary) -> int:
    """How many ids the tokenizer puts before a text."""
    assert vocabulary.encode is not None
    return len(vocabulary.encode(""))


class ShareGPTWorkload(_Texts):
    """Conversations in a JSON list (or one a line), `conversations` of from/value or role/content turns.

    The first prompt of each is sent, or, with `multi_turn`, every one after what was said before it, recorded answers included.
    """

    type: Literal["sharegpt"] = "sharegpt"
    max_skipped: float = Field(0.5, ge=0, le=1)
    multi_turn: bool = False

    def entries(self) -> tuple[tuple[Entry, ...], Skipped]:
        found = _sharegpt(self.path, self.sha256)
        found[1].check(self.max_skipped)
        return found

    def _turns(self, entry: Entry) -> Sequence[tuple[str, str | None]]:
        return entry.turns if self.multi_turn else entry.turns[:1]


class JsonlWorkload(_Texts):
    """A prompt a line: `prompt` (or `text`, or the last user message of `messages`), and, where a line has it, `output_tokens`
    (or `max_tokens`) or the recorded `completion`."""

    type: Literal["jsonl"] = "jsonl"

    def entries(self) -> tuple[tuple[Entry, ...], Skipped]:
        found = _jsonl(self.path, self.sha256)
        found[1].check(self.max_skipped)
        return found


@lru_cache(maxsize=4)
def _sharegpt(path: str, sha256: str) -> tuple[tuple[Entry, ...], Skipped]:
    text = as_text(path, read_file(path)[0])
    skipped = Skipped(path, "conversations")
    entries = []
    for where, item in _items(path, text):
        skipped.total += 1
        turns = item if isinstance(item, str) else conversation_turns(item)
        if isinstance(turns, str):
            skipped.add(where, turns)
        else:
            entries.append(Entry(where, turns))
    return tuple(entries), skipped


def _items(path: str, text: str) -> Iterator[tuple[str, Any]]:
    """The conversations of a JSON list, or of one object a line; a text in an item's place says what is wrong with it."""
    if text.lstrip().startswith("["):
        for number, item in enumerate(json_document(path, text), 1):
            yield f"conversation {number}", item
        return
    for number, line in numbered_lines(path, text):
        yield f"line {number}", json_object(line)


def conversation_turns(item: Any) -> tuple[tuple[str, str | None], ...] | str:
    """A conversation as (prompt, answer) pairs, or why it cannot be used. A system turn joins the first prompt."""
    if not isinstance(item, dict):
        return "not an object"
    listed = item.get("conversations", item.get("messages"))
    if not isinstance(listed, list):
        return "no conversations"
    if not listed:
        return "no turns"
    turns: list[tuple[str, str | None]] = []
    system = ""
    for at, turn in enumerate(listed):
        if not isinstance(turn, dict):
            return "a turn is not an object"
        who, said = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if not is_text(said):
            return "a turn of halves of characters" if isinstance(said, str) else "a turn without text"
        if who in _SYSTEM and at == 0:
            system = said + "\n\n"
        elif who in _USER:
            if not said.strip():
                return "an empty prompt"
            if turns and turns[-1][1] is None:
                return "two prompts after each other"
            turns.append((system + said, None))
            system = ""
        elif who in _MODEL:
            if not turns:
                return "it starts with an answer"
            if turns[-1][1] is not None:
                return "two answers after each other"
            turns[-1] = (turns[-1][0], said)
        else:
            return "a turn of an unknown speaker"
    return tuple(turns) if turns else "no prompt"


@lru_cache(maxsize=4)
def _jsonl(path: str, sha256: str) -> tuple[tuple[Entry, ...], Skipped]:
    skipped = Skipped(path, "lines")
    entries = []
    for number, line in numbered_lines(path, as_text(path, read_file(path)[0])):
        skipped.total += 1
        found = _jsonl_entry(f"line {number}", line)
        if isinstance(found, str):
            skipped.add(f"line {number}", found)
        else:
            entries.append(found)
    return tuple(entries), skipped


def _jsonl_entry(where: str, line: str) -> Entry | str:
    item = json_object(line)
    if isinstance(item, str):
        return item
    prompt = item.get("prompt", item.get("text"))
    if prompt is None and isinstance(messages := item.get("messages"), list):
        asked = [m.get("content") for m in messages if isinstance(m, dict) and m.get("role") == "user"]
        prompt = asked[-1] if asked else None
    if not is_text(prompt) or not prompt:
        return "no text in prompt, text or messages" if prompt is None or prompt == "" else "prompt is not text"
    tokens = item.get("output_tokens", item.get("max_tokens"))
    if tokens is not None and isinstance(tokens := whole_number(tokens, "output_tokens", 1), str):
        return tokens
    answer = item.get("completion")
    return Entry(where, ((prompt, answer if is_text(answer) else None),), tokens)
