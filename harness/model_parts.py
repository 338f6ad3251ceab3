"""What a run needs of its model: a folder to launch engines with, a vocabulary to draw prompts from, a config to reckon with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.models import ModelRef, resolve_model
from harness.models.planning import find_config, vocabulary
from results.errors import DynoError, UnknownNameError, UsageError
from workloads.base import Vocabulary


@dataclass(frozen=True, slots=True)
class ModelParts:
    """`model` is None where no engine is launched. `config` is the model's own, {} where only a tokenizer is known."""

    model: ModelRef | None
    vocabulary: Vocabulary
    config: dict[str, Any]

    @property
    def folder(self) -> Path | None:
        return self.model.folder if self.model else None


def model_parts(name: str, tokenizer: str | None, needs_folder: bool) -> ModelParts:
    """Resolve `name` (and `tokenizer`, which wins for the vocabulary). Raises UsageError and what resolving raises."""
    if needs_folder:
        model = resolve_model(name)
        return ModelParts(model, vocabulary(tokenizer or model), model.config)
    if tokenizer is not None:
        return ModelParts(None, vocabulary(tokenizer), {})
    try:
        return ModelParts(None, vocabulary(name), find_config(name).config)
    except DynoError as error:
        # That the name is of no known model was said; what else failed was not.
        why = "" if isinstance(error, UnknownNameError) else f" {error}"
        raise UsageError(
            f"Prompts are random token ids, and the vocabulary of {name!r} is not known here. Say whose it is with --tokenizer: a "
            f"folder, or a known model such as llama-3-8b (`dyno models` lists them).{why}"
        ) from error
