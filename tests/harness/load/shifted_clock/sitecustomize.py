"""A machine whose clock is ahead of this one's: everything in Python that is started with this folder on PYTHONPATH."""

from __future__ import annotations

import os
import time

_real, _ahead = time.monotonic_ns, int(os.environ["CLOCK_AHEAD_NS"])
time.monotonic_ns = lambda: _real() + _ahead
# What is compiled reads the machine's own clock.
os.environ["DYNO_LOAD_CLIENT"] = "python"
