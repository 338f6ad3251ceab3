"""What all tests share: the two models."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.models import fetch
from harness.models.cache import cache_root

# Read before any test changes the environment: the real model's cache is the user's own and is kept between runs.
_USER_CACHE = cache_root()


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder, built into the user's cache when it is missing."""
    return fetch("smollm2-135m", root=_USER_CACHE).folder


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random 2-layer Llama: hidden 64, 4 query and 2 KV heads, vocabulary 512, 2,048 positions, bf16."""
    return fetch("random-tiny", root=tmp_path_factory.mktemp("models")).folder
