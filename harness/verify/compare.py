"""Ask engines one after the other, each behind a server of its own, and judge what they said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from backends.base import get_backend
from harness.experiment import EngineSpec, Timeouts
from harness.launch import fetch_documents
from harness.model_parts import ModelParts
from harness.models import find_config
from harness.open_server import OpenServer, open_server
from harness.session import hide_secrets
from harness.session_checks import fingerprint
from harness.verify.arm import ServerArm
from harness.verify.judge import judge
from harness.verify.observe import Observed, observe
from harness.verify.prompts import Prompt, fixed_prompts, load_tokenizer
from results.errors import DynoError, UnknownNameError, UsageError
from results.records import SessionRecord

Texts = list[list[int]]
# Hears which engine is asked, and what for.
Say = Callable[[str, str], None]
ALONE = "there was no other engine left to compare it with"


@dataclass(frozen=True, slots=True)
class Questions:
    """What every engine is asked: so many prompts, output tokens for each, and the seed of the random ones."""

    prompts: int = 12
    output_len: int = 32
    seed: int = 0


@dataclass(slots=True)
class Comparison:
    """A comparison under way; servers' logs go below `folder`. Use `compare_engines`, or `compare_what_can_be`."""

    parts: ModelParts
    model: str
    questions: Questions
    folder: Path
    timeouts: Timeouts
    say: Say
    prompts: list[Prompt]
    encode: Callable[[str], list[int]] | None
    texts: Texts | None = None

    def ask(self, number: int, spec: EngineSpec) -> Observed:
        """Start the engine's server (or attach to it) and ask it everything. Raises what either raises."""
        slug = "".join(c if c.isalnum() or c in "-_." else "-" for c in spec.label)
        where = self.folder / f"{number}-{slug}"
        # Causes are looked for in the whole log: an earlier try's would be taken for this one's.
        (where / "server.log").unlink(missing_ok=True)
        self.say(spec.label, "starting")
        try:
            served = _served_name(spec, self.parts, self.model)
            with open_server(spec, self.parts.model, served, where, self.timeouts) as server:
                self._refuse_too_short(spec, server)
                arm = ServerArm(spec.label, server, self.encode)
                said, self.texts = observe(
                    arm, self.prompts, self.questions.output_len, self.texts, partial(self.say, spec.label)
                )
                said.about = {**said.about, "fingerprint": _fingerprint(spec, server, self.model)}
        except BaseException as error:
            hide_secrets(error, spec, where / "server.log")
            raise
        hide_secrets(None, spec, where / "server.log")
        return said

    def _refuse_too_short(self, spec: EngineSpec, server: OpenServer) -> None:
        length = self.questions.output_len
        needed = max(len(p.ids) for p in self.prompts) + length + 1
        if server.max_model_len is not None and server.max_model_len < needed:
            raise UsageError(
                f"The longest prompt with its output has {needed} tokens, more than the {server.max_model_len} that "
                f"engine {spec.label!r} takes. Lower --output-len (now {length}), or raise max_model_len."
            )


def compare_engines(specs: Sequence[EngineSpec], comparison: Comparison) -> dict[str, Any]:
    """One server after the other, so that none shares the machine with another. The first failure ends it."""
    said = [comparison.ask(number, spec) for number, spec in enumerate(specs)]
    return _document(comparison, said, {})


def compare_what_can_be(
    specs: Sequence[EngineSpec], comparison: Comparison, failed: dict[str, str], tell: Callable[[str, str], None]
) -> dict[str, Any]:
    """The same, and an engine that cannot be asked is an answer: its pairs have no class, and say why.

    `failed` are those that need not be tried, with the reason; `tell` hears of each further one.
    """
    absent = dict(failed)
    said: list[Observed] = []
    for number, spec in enumerate(specs):
        if spec.label in absent:
            continue
        if len(specs) - len(absent) < 2:
            # One of them alone: the wait for it would answer nothing.
            absent[spec.label] = ALONE
            continue
        try:
            said.append(comparison.ask(number, spec))
        except DynoError as error:
            absent[spec.label] = str(error).splitlines()[0]
            tell(spec.label, str(error))
    return _document(comparison, said, absent)


def comparison_of(
    parts: ModelParts, model: str, questions: Questions, folder: Path, timeouts: Timeouts, say: Say
) -> Comparison:
    """Draw the prompts. Raises UsageError where there is nothing to draw them from."""
    home = parts.folder or _folder_of(model)
    prompts = fixed_prompts(questions.prompts, questions.seed, parts.vocabulary, home)
    encoder = load_tokenizer(home)
    encode = None if encoder is None else partial(encoder, special=False)
    return Comparison(parts, model, questions, folder, timeouts, say, prompts, encode)


def _document(comparison: Comparison, said: Sequence[Observed], absent: dict[str, str]) -> dict[str, Any]:
    asked = comparison.questions
    return {"model": comparison.model, "seed": asked.seed} | judge(said, comparison.prompts, asked.output_len, absent)


def _fingerprint(spec: EngineSpec, server: OpenServer, model: str) -> dict[str, Any]:
    """As a session's: whether it is the engine that a run's cells were measured on can be told from it."""
    record = SessionRecord(
        id="",
        engine=spec.label,
        backend=server.backend.name,
        block=0,
        model=model,
        url=server.url,
        asked=spec.settings.asked(),
        versions=server.versions,
    )
    return fingerprint(record, server.settings)


def _folder_of(model: str) -> Path | None:
    """The model's folder where it is at hand, for its tokenizer; nothing is fetched for it."""
    try:
        return find_config(model).folder
    except DynoError:
        return None


def _served_name(spec: EngineSpec, parts: ModelParts, model: str) -> str:
    """The name to ask for. A server that is there may know the model by another one: then the one it serves."""
    name = parts.model.name if parts.model else model
    if spec.url is None:
        return name
    backend = get_backend(spec.backend)
    try:
        return backend.served_name(name, fetch_documents(backend, spec.url))
    except UnknownNameError as error:
        if len(error.known) != 1:
            raise
        return ""
