"""What workloads that come from a file have in common: which file it was, what may be skipped, and what is too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from results.errors import UsageError
from workloads.base import PlannedRequest
from workloads.lines import Skipped, read_file

DROPPED, TRUNCATED, REPEATED, ALIKE = "dropped", "truncated", "repeated", "alike"
_T = TypeVar("_T")


class FromFile(BaseModel):
    """A workload read from `path`. Its SHA-256 is part of what was asked, so a file that has changed is another workload.

    `max_skipped` is the share of entries that may be unusable. What does not fit into `max_len` (prompt and output, tokens) is
    refused, dropped and counted, or its prompt cut at the end (`too_long`): the same for every engine of a run. Without
    `max_len` the model's own limit refuses. `oversample` sends entries again when the file has fewer than asked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    path: str = Field(min_length=1)
    sha256: str = ""
    max_skipped: float = Field(0.05, ge=0, le=1)
    max_len: int | None = Field(None, gt=1)
    too_long: Literal["refuse", "drop", "truncate"] = "refuse"
    oversample: bool = False

    @model_validator(mode="before")
    @classmethod
    def _hash(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("path"), str) or not values["path"]:
            return values
        found = read_file(values["path"])[1]
        if values.get("sha256") not in (None, "", found):
            raise UsageError(
                f"{values['path']} is not the file that this was asked with: its SHA-256 is {found[:12]}..., not "
                f"{str(values['sha256'])[:12]}... Bring the file back, or ask anew under another --out."
            )
        return {**values, "sha256": found}

    @model_validator(mode="after")
    def _policy(self) -> FromFile:
        if self.too_long != "refuse" and self.max_len is None:
            raise ValueError(
                f"too_long={self.too_long} needs max_len: the length that prompt and output are to fit into"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_nulls(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """An option that is not given leaves no trace, so that a later one renames no cell."""
        return {name: value for name, value in handler(self).items() if value is not None}

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.rsplit("/", 1)[-1]

    def skipped(self) -> Skipped:
        """What of the file could not be used."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """What else of the file the result has to tell."""
        return []

    def check_enough(self, n: int, usable: int) -> None:
        """Raise UsageError where the file has too few entries for `n` requests and none may be sent again."""
        if n > usable and not self.oversample:
            words = self.skipped().words
            raise UsageError(
                f"{self.path} has {usable:,} usable entries, and {n:,} requests are asked for{f' ({words})' if words else ''}. "
                "Ask for fewer (--requests), or allow entries to be sent again with oversample=true; a prefix cache then "
                "flatters them."
            )

    def fit(self, request: PlannedRequest, where: str, least_output: int) -> PlannedRequest | None:
        """The request as it fits into `max_len`; None where it is dropped. `least_output`: the answer may be as short as that."""
        given = request.input_tokens
        if self.max_len is None:
            return request
        if given is None:
            raise UsageError(
                f"{self.path}: max_len={self.max_len} needs the lengths of texts in tokens, and no tokenizer is at hand. Name a "
                "folder with its tokenizer.json by --tokenizer."
            )
        output = min(request.output_len, max(least_output, self.max_len - given))
        if given + output <= self.max_len:
            return replace(request, output_len=output)
        if self.too_long == "refuse":
            raise UsageError(
                f"{self.path}, {where}: {given:,} prompt and {output:,} output tokens make {given + output:,}, more than "
                f"max_len={self.max_len:,}. Raise it, or say too_long=drop (leave such out, counted) or too_long=truncate (cut "
                "their prompts)."
            )
        room = self.max_len - output
        if self.too_long == "drop" or room < 1:
            return None
        return replace(request, prompt=request.prompt[:room], output_len=output, marks=(*request.marks, TRUNCATED))


def shuffled(items: Sequence[_T], seed: int) -> list[_T]:
    """The items in an order of that seed."""
    return [items[i] for i in np.random.default_rng(seed).permutation(len(items))]


_DONE = {DROPPED: "left out as too long", TRUNCATED: "prompts cut to max_len", REPEATED: "sent again (oversample)"}


def file_words(workload: object, marks: Mapping[str, int]) -> str:
    """Where what was sent is not the file as it is: entries skipped, prompts cut, dropped or sent again. Empty where it is."""
    if not isinstance(workload, FromFile):
        return ""
    done = [f"{marks[mark]:,} {words}" for mark, words in _DONE.items() if marks.get(mark)]
    return "; ".join([words for words in [workload.skipped().words, *workload.notes()] if words] + done)


def prompts_repeated(marks: Mapping[str, int]) -> int:
    """Requests whose prompt had been sent before in the cell: since the file has it twice, or was gone through again."""
    return marks.get(REPEATED, 0) + marks.get(ALIKE, 0)
