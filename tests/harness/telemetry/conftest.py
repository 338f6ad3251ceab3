from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.nvml.stub import Stub


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    """The stand-in of libnvidia-ml, compiled once."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the stand-in of libnvidia-ml with")
    made = Stub(tmp_path_factory.mktemp("nvml"))
    yield made
    made.close()
