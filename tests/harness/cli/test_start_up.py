"""`dyno --help` loads nothing heavy: torch, pandas and pyarrow only where they are used."""

from __future__ import annotations

import subprocess
import sys


def test_the_command_line_loads_nothing_heavy() -> None:
    heavy = ["torch", "pandas", "pyarrow", "numpy", "tokenizers", "scipy", "aiohttp", "pydantic"]
    code = f"import sys, harness.cli.app; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
