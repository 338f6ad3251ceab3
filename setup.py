"""Compiled parts, all optional: the reference engine's kernels, one C file in up to three forms (without them PyTorch computes),
and the load client's reading and parsing of ordinary tokens (without them Python does it)."""

import platform
import sys

from setuptools import Extension, setup

X86 = platform.machine().lower() in ("x86_64", "amd64")
# -O2 but for AVX-512: with -O3 GCC 12 mixes two halves of AVX2's inner loop, and sums no longer fit its 16 registers.
FORMS = {
    "avx512": ["-O3", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma"] if X86 else None,
    "avx2": ["-O2", "-mavx2", "-mfma"] if X86 else None,
    "plain": ["-O2"],
}
READER = Extension(
    "harness.load._reader",
    ["harness/load/reader.c", "harness/load/run.c"],
    depends=["harness/load/run.h", "harness/load/event.h"],
    extra_compile_args=["-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
    optional=True,
)

setup(
    ext_modules=[
        Extension(
            f"backends.reference._kernels_{form}",
            ["backends/reference/kernels.c"],
            extra_compile_args=["-fopenmp", "-Wno-psabi", *flags],
            extra_link_args=["-fopenmp", "-lm"],
            optional=True,
        )
        for form, flags in FORMS.items()
        if flags is not None and sys.platform == "linux"
    ]
    + ([READER] if sys.platform == "linux" else [])
)
