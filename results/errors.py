"""The error hierarchy: what a user can get wrong or meet, each with the exit code the command line ends with.

Messages are one paragraph: what happened, with the numbers, and the next step. The command line prints them without a
traceback; anything that is not a DynoError is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_OK = 0
EXIT_BAD_ANSWER = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_ENVIRONMENT = 4
EXIT_INTERRUPTED = 130
# So many known names are told whole; of more only the nearest: nobody reads a paragraph of names.
_MOST_NAMES, _NEAREST = 16, 6


class DynoError(Exception):
    """Base of every error that is meant for the user."""

    exit_code = EXIT_ENVIRONMENT


class UsageError(DynoError):
    """What was asked cannot be done as asked: a bad flag, an unknown name, lengths that do not fit, a run refused."""

    exit_code = EXIT_USAGE


class UnknownNameError(UsageError):
    """A name that is not in a closed set; lists the known ones and the nearest. `hint` names the command that lists them, where
    they are many."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        message = f"Unknown {kind} {name!r}."
        if near:
            message += f" Did you mean {near[0]!r}?"
        if len(names) > _MOST_NAMES:
            nearest = difflib.get_close_matches(name, names, n=_NEAREST, cutoff=0)
            message += f" The nearest of {len(names)} known: {', '.join(nearest)}."
        else:
            message += f" Known: {', '.join(names) or 'none'}."
        super().__init__(f"{message} {hint}".rstrip())
        self.kind, self.name, self.known, self.nearest = kind, name, names, near[0] if near else None


class StoreError(DynoError):
    """The run folder cannot be read or written (disk full, permissions, damaged file)."""


class EngineError(DynoError):
    """An engine did not start, died, or does not speak the protocol expected of it."""


class EnvironmentProblemError(DynoError):
    """Something the command needs from the machine is missing."""
