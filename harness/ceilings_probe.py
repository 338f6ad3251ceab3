"""Run as a child: measures what this machine's memory and arithmetic give at most, and prints it as JSON.

    python -m harness.ceilings_probe [SECONDS]

Random data throughout: zeros draw less power and flatter a GEMM by a tenth and more. Arrays are well beyond the last cache.
Each figure is the best of as many tries as fit its share of the time, and their median. On a CPU the tries are spread over rounds,
so that work of others that comes and goes does not cover all of one figure.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# float32 elements: 128 MiB an array, several times the last cache of most CPUs.
_ELEMENTS = 32 << 20
_GEMM_CPU, _GEMM_CUDA = 1024, 8192
_SMALLEST = 128
# Of the least tries of one product in one round: 34 GFLOP/s are enough for the largest square.
_PATIENCE_S = 0.25
# Side of the square by device, dtype and threads, found once, so that all rounds measure the same.
_sides: dict[tuple[str, str, int | None], int] = {}
_CUDA_BYTES = 2 << 30
_LEAST_TRIES = 3
_ROUNDS = 3
# The first compute capability with fp8 products (Ada, Hopper).
_FP8_CAPABILITY = (8, 9)


def tries(work: float, once: Callable[[], None], seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """`work` a second: best and median over as many tries as fit `seconds`, three at least; the first is not counted."""
    once()
    times: list[float] = []
    end = clock() + seconds
    while len(times) < _LEAST_TRIES or (clock() < end and len(times) < 1000):
        start = clock()
        once()
        times.append(clock() - start)
    times.sort()
    return {"best": work / times[0], "median": work / times[len(times) // 2], "n": len(times)}


def together(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One figure of several rounds: the best of all tries, the median of the rounds' medians."""
    return {
        **rounds[0],
        "best": max(r["best"] for r in rounds),
        "median": median(r["median"] for r in rounds),
        "n": sum(r["n"] for r in rounds),
    }


def cpu(seconds: float) -> list[dict[str, Any]]:
    """With one thread, and with all this process may use."""
    import numpy as np

    source = np.random.default_rng(0).random(_ELEMENTS, dtype=np.float32)
    target = source.copy()
    rounds = [_cpu_round(seconds / _ROUNDS, source, target) for _ in range(_ROUNDS)]
    return [
        {
            **rows[0],
            **{name: together([row[name] for row in rows]) for name in ("read", "copy")},
            "gemm": {name: together([row["gemm"][name] for row in rows]) for name in rows[0]["gemm"]},
        }
        for rows in zip(*rounds, strict=True)
    ]


def _cpu_round(seconds: float, source: Any, target: Any) -> list[dict[str, Any]]:
    import numpy as np
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = sorted({1, cores})
    share = seconds / (4 * len(counts))
    rows: list[dict[str, Any]] = []
    for threads in counts:
        parts = [slice(i * _ELEMENTS // threads, (i + 1) * _ELEMENTS // threads) for i in range(threads)]
        with ThreadPoolExecutor(threads) as pool:

            def read(pool: ThreadPoolExecutor = pool, parts: list[slice] = parts) -> None:
                list(pool.map(lambda part: source[part].max(), parts))

            def copy(pool: ThreadPoolExecutor = pool, parts: list[slice] = parts) -> None:
                list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))

            rows.append(
                {
                    "device": "cpu",
                    "name": "this CPU",
                    "threads": threads,
                    "read": tries(source.nbytes, read, share, time.perf_counter),
                    "copy": tries(2 * source.nbytes, copy, share, time.perf_counter),
                    "memory_bytes": psutil.virtual_memory().total,
                }
            )
    for row in rows:
        row["gemm"] = _gemms("cpu", _GEMM_CPU, 2 * share, row["threads"])
    return rows


def cuda(seconds: float) -> list[dict[str, Any]]:
    """The first CUDA device; [] where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        return []
    source = torch.randn(_CUDA_BYTES // 4, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    def read() -> None:
        source.amax()
        torch.cuda.synchronize()

    size = source.nbytes
    row = {
        "device": "cuda",
        "name": torch.cuda.get_device_name(0),
        "threads": None,
        "read": tries(size, read, seconds / 4, time.perf_counter),
        "copy": tries(2 * size, copy, seconds / 4, time.perf_counter),
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory,
    }
    gemm = _gemms("cuda", _GEMM_CUDA, seconds / 3, None)
    if torch.cuda.get_device_capability(0) >= _FP8_CAPABILITY:
        gemm |= fp8_gemm("cuda", _GEMM_CUDA, seconds / 6)
    return [{**row, "gemm": gemm}]


def _gemms(device: str, size: int, seconds: float, threads: int | None) -> dict[str, Any]:
    """FLOP/s of a square GEMM on random data, by dtype."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    found = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        product = partial(_product, device, dtype)
        key = (device, name, threads)
        if key not in _sides:
            _sides[key] = fitting(size, product, time.perf_counter)
        side = _sides[key]
        found[name] = {**tries(2.0 * side**3, product(side), seconds / 2, time.perf_counter), "side": side}
    return found


def _product(device: str, dtype: torch.dtype, side: int) -> Callable[[], None]:
    """One product of two random squares, as a call."""
    import torch

    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))

    def multiply() -> None:
        torch.mm(a, b)
        if device == "cuda":
            torch.cuda.synchronize()

    return multiply


def fitting(largest: int, product: Callable[[int], Callable[[], None]], clock: Callable[[], float]) -> int:
    """The side of the square to multiply: `largest`, or where the least tries of that would take longer than `_PATIENCE_S`, by
    what a smaller one took, that one. A processor without bfloat16 instructions is a hundred times slower than others."""
    side = min(_SMALLEST, largest)
    while side < largest:
        once, taken = product(side), []
        for _ in range(_LEAST_TRIES):  # the shortest of which nobody disturbed
            start = clock()
            once()
            taken.append(clock() - start)
        larger = min(2 * side, largest)
        if min(taken) * (larger / side) ** 3 * (_LEAST_TRIES + 1) > _PATIENCE_S:
            break
        side = larger
    return side


def fp8_gemm(device: str, size: int, seconds: float) -> dict[str, Any]:
    """The same in fp8 (e4m3) with one scale a matrix; {} where this build of torch has no such product here."""
    import torch

    a, b = (torch.randn(size, size, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device=device)

    def multiply() -> None:
        torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
        if device == "cuda":
            torch.cuda.synchronize()

    try:
        return {"fp8": tries(2.0 * size**3, multiply, seconds, time.perf_counter)}
    except (RuntimeError, AttributeError):
        return {}


def main() -> None:
    """Print {"devices": [...]}: a CUDA device where there is one, and the CPU, on which an engine may run there too."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    print(json.dumps({"devices": [*cuda(seconds), *cpu(seconds)]}))


if __name__ == "__main__":
    main()
