"""What differs between a CPU and a GPU for a study: the model of its own, and from where arithmetic takes the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """`shape` is what is timed and `counted` what is counted where nothing else is asked (None: what is timed).

    `few` and `most` tokens a step both lie where arithmetic takes the time. `batches` end there too. The keys and values of `decodes`
    requests of 2,048 tokens are about as many bytes as the weights, or more. `threads` are the arms of more
    arithmetic at the same bandwidth, the largest last; where there is one, nothing is told of that. `paths` are the attentions that
    can be chosen: value of `kernels`, and its name."""

    shape: str
    counted: str | None
    few: int
    most: int
    batches: tuple[int, ...]
    decodes: int
    threads: tuple[int, ...]
    paths: Mapping[str, str]


MACHINES: Mapping[str, Machine] = {
    "cpu": Machine(
        "smollm2-135m", "random-tiny", 64, 1024, tuple(2**e for e in range(6)), 8, (1, 2),
        {"auto": "compiled kernels", "off": "PyTorch"},
    ),
    # A GPU does some hundreds of operations in the time of reading a byte: its sizes begin where the CPU's end.
    "cuda": Machine("llama-3.1-8b", None, 1024, 8192, tuple(2**e for e in range(11)), 64, (2,), {"off": "PyTorch"}),
}  # fmt: skip
