"""The client's compiled parts: there where a C compiler was at hand when the package was installed.

Each does what Python beside it does, and leaves to it what is not ordinary. DYNO_LOAD_CLIENT=python leaves them out.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

SWITCH = "DYNO_LOAD_CLIENT"
PARTS = ("reader",)
# What Python sees of them, counted up with each change; one that was compiled from other sources is not used.
FORM = 3
# Parts that are there and could not be loaded, and why: Python does their work then, at a higher price, and it has to be told.
not_loaded: dict[str, str] = {}


def compiled(name: str) -> Any | None:
    """The compiled part of this name (of `PARTS`), or None where it is not to be used, not there, or cannot be loaded."""
    if os.environ.get(SWITCH) == "python":
        return None
    try:
        part = import_module(f"harness.load._{name}")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        not_loaded[name] = str(error)
        return None
    if getattr(part, "form", None) != FORM:
        not_loaded[name] = "it was compiled from other sources than these"
        return None
    return part
