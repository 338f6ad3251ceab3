"""The engine's tests compute in this process, often beside something else: short OpenMP spins, as the server sets."""

from __future__ import annotations

import os

from backends.reference.__main__ import SPIN_COUNT

os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when torch is first imported
