"""Speculative decoding in neutral words: which method, how many tokens ahead, drafted by what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backends.base import EngineSettings
from results.errors import UnknownNameError, UsageError

# How long a repeated piece of the text has to be for the n-gram method to guess what follows it.
NGRAM = 3


class Method(StrEnum):
    """How tokens are guessed."""

    # What followed the last few tokens earlier in the same text.
    NGRAM = "ngram"
    # A smaller model of the same vocabulary.
    DRAFT = "draft"
    # A small head that reads the target's hidden states, from a folder of its own.
    EAGLE3 = "eagle3"
    # Prediction layers that are part of the checkpoint.
    MTP = "mtp"


_NEED_A_MODEL = (Method.DRAFT, Method.EAGLE3)


@dataclass(frozen=True, slots=True)
class Speculation:
    """What was asked."""

    method: Method
    tokens: int
    model: str | None


def asked_speculation(settings: EngineSettings) -> Speculation | None:
    """None where none was asked. Raises UsageError for what does not go together, UnknownNameError for a method."""
    if settings.speculative is None:
        if settings.speculative_tokens is not None or settings.speculative_model is not None:
            raise UsageError(
                "speculative_tokens and speculative_model need a method: add speculative=ngram (or draft, eagle3, mtp)."
            )
        return None
    if settings.speculative not in list(Method):
        raise UnknownNameError("speculative method", settings.speculative, list(Method))
    method = Method(settings.speculative)
    if method in _NEED_A_MODEL and settings.speculative_model is None:
        raise UsageError(f"speculative={method} drafts with a model of its own: name its folder in speculative_model.")
    return Speculation(method, settings.speculative_tokens or 3, settings.speculative_model)
