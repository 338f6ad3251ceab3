"""The reference engine with a delay in every step: `python -P benchmarks/slow_reference.py MODEL_DIR ... --step-delay-ms 2`.

A regression of a known size for `benchmarks/gate.py`: what a change to the engine would do that costs so much a step.
"""

from __future__ import annotations

import sys
import time

from backends.reference.__main__ import main
from backends.reference.runner import ModelRunner

FLAG = "--step-delay-ms"


def slowed(delay_s: float) -> None:
    """Make each step of this process's engine take so much longer, by work and not by sleep: CPU time grows with it."""
    run = ModelRunner.run

    def later(self: ModelRunner, *args: object, **more: object) -> object:
        end = time.perf_counter() + delay_s
        while time.perf_counter() < end:
            pass
        return run(self, *args, **more)  # type: ignore[arg-type]  # the arguments of `run`, passed on

    ModelRunner.run = later  # type: ignore[method-assign, assignment]  # to slow the engine down is what this is for


if __name__ == "__main__":
    words = sys.argv[1:]
    at = words.index(FLAG)
    slowed(float(words[at + 1]) / 1000)
    sys.exit(main([*words[:at], *words[at + 2 :]]))
