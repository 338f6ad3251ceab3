"""Finds the compiled kernels (`kernels.c`) and binds them. Without them, or where they do not fit, PyTorch computes.

The package is built with up to three forms of the one C file; each is a library beside this module, or missing where no
compiler was at hand. `auto` takes the best that this processor runs. The plain form is for tests: PyTorch is quicker.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

import torch

log = logging.getLogger(__name__)

FORMS = ("avx512", "avx2", "plain")  # best first
AUTOMATIC = ("avx512", "avx2")
COLUMNS, HALF, CELL, QUERY_ROWS = 32, 16, 16, 96  # as in kernels.c


class CMatrix(Structure):
    """See kernels.c, here and below."""

    _fields_: ClassVar = [("panels", c_void_p), ("bias", c_void_p), ("inputs", c_int64), ("columns", c_int64)]


class CLayer(Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "qk_norm")),
        *((name, CMatrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, c_void_p) for name in ("keys", "values")),
    ]


class CModel(Structure):
    _fields_: ClassVar = [
        *((name, c_int64) for name in ("layers", "hidden", "inner", "heads", "kv_heads", "head_dim", "threads")),
        ("epsilon", c_float),
        *((name, c_void_p) for name in ("embedding", "cosines", "sines")),
        ("layer", POINTER(CLayer)),
    ]


class CStep(Structure):
    _fields_: ClassVar = [
        *((name, c_int64) for name in ("rows", "items", "units")),
        *((name, c_void_p) for name in ("tokens", "positions", "slots", "item", "unit")),
        *((name, c_void_p) for name in ("stream", "normed", "qkv", "queries", "attended", "mlp")),
    ]


class Kernels:
    """One form of the library. Calls release the interpreter lock."""

    def __init__(self, form: str, path: Path, threads: int) -> None:
        self.form, self.threads = form, threads
        library = ctypes.CDLL(str(path))
        self.runs_here: Any = library.dyno_runs_here
        self.step: Any = library.dyno_step
        self.step.argtypes, self.step.restype = (POINTER(CModel), POINTER(CStep)), c_int
        self._product: Any = library.dyno_product
        self._product.argtypes = (c_void_p, c_int64, POINTER(CMatrix), c_void_p, c_int64)
        self._product.restype = None

    def product(self, x: torch.Tensor, matrix: CMatrix) -> torch.Tensor:
        """x [rows, matrix.inputs] bfloat16, contiguous -> [rows, matrix.columns] float32."""
        out = torch.empty(len(x), matrix.columns)
        self._product(x.data_ptr(), len(x), matrix, out.data_ptr(), self.threads)
        return out


class Panels:
    """A weight [out, in] as the kernels read it: 32 columns of outputs at a time, pairs of inputs together.

    `halves` lays two matrices that lie one above the other (gate and up) side by side, 16 columns of each in a panel.
    """

    def __init__(self, kernels: Kernels, weight: torch.Tensor, bias: torch.Tensor | None, halves: bool = False) -> None:
        self._kernels = kernels
        self.num_outputs, inputs = weight.shape
        weight, bias = _padded(weight, 0), None if bias is None else _padded(bias.float(), 0)
        if halves:
            weight, bias = _side_by_side(weight), None if bias is None else _side_by_side(bias)
        panels = weight.view(-1, COLUMNS, inputs // 2, 2).permute(0, 2, 1, 3)
        self.weight = panels.contiguous()
        self.bias = bias
        self.matrix = CMatrix(self.weight.data_ptr(), None if bias is None else bias.data_ptr(), inputs, len(weight))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] bfloat16 -> [rows, out] float32."""
        return self._kernels.product(x.contiguous(), self.matrix)[:, : self.num_outputs]


def _padded(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """With zeros after it, up to a multiple of COLUMNS."""
    missing = -tensor.shape[dim] % COLUMNS
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor


def _side_by_side(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(2, -1, HALF, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)


def load_kernels(wanted: str, threads: int) -> Kernels | None:
    """The wanted form, or for `auto` the best that is compiled and runs here; None where there is none, which is logged."""
    if wanted == "off":
        return None
    for form, path in _compiled():
        if wanted == form or (wanted == "auto" and form in AUTOMATIC):
            try:
                kernels = Kernels(form, path, threads)
            except (OSError, AttributeError) as error:
                log.warning("the compiled kernels %s cannot be loaded: %s", path.name, error)
                continue
            if kernels.runs_here():
                return kernels
    log.info("no compiled kernels (%s) for this processor: PyTorch computes", wanted)
    return None


def _compiled() -> Iterator[tuple[str, Path]]:
    for form in FORMS:
        for path in sorted(Path(__file__).parent.glob(f"_kernels_{form}.*")):
            yield form, path
