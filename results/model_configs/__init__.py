"""The architecture fields of common models' config.json, so that planning needs neither a download nor a device.

Facts as published by the models' makers, reduced to what the arithmetic reads. `special_token_ranges` (inclusive) is an
addition: ids that no plain text gives, which a draw of random prompts should leave out.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def names() -> list[str]:
    """The models shipped, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def load(name: str) -> dict[str, Any]:
    """The config of a shipped model. `name` is one of `names()`; KeyError otherwise."""
    if name not in names():
        raise KeyError(name)
    config: dict[str, Any] = json.loads(resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return config
