"""What all tests share: the two models, and how properties are tried."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from harness.models import fetch
from harness.models.cache import cache_root

# No test is timed: a busy machine, or the first import of something large, is no fault of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# Measuring a machine's ceilings takes seconds, and no test of a sweep is about them.
os.environ.setdefault("DYNO_CEILINGS", "skip")
# A script starts what it puts in the background with Ctrl-C ignored, and every child that a test interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
