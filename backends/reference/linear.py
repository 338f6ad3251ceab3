"""Matrix products with weights that never change: plain, or packed once for the CPU's bfloat16 units.

oneDNN's packed layout is 1.5 to 2 times faster than `F.linear` at the few rows of a decode step. The two operators are
private to PyTorch (they are what its compiler emits for frozen weights), so a self-test decides whether to use them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn import functional


class Linear(Protocol):
    """x [rows, in] -> [rows, out]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class LinearMaker(Protocol):
    """Makes one of a weight [out, in] and a bias [out]; a class or a method, so it has a name."""

    __name__: str

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, /) -> Linear: ...


class PlainLinear:
    """`F.linear` over an ordinary tensor."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


class PackedLinear:
    """oneDNN product over a weight reordered once. The reordered copy replaces the original."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        ops: Any = torch.ops.mkldnn
        self._apply = ops._linear_pointwise.default
        self.weight = ops._reorder_linear_weight(weight.contiguous(), 1)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._apply(x, self.weight, self.bias, "none", [], "")
        return result


def packing_works() -> bool:
    """True when packed bfloat16 products exist here and agree with plain ones at one and at many rows."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).to(torch.bfloat16)
    try:
        packed = PackedLinear(weight)
        for rows in (1, 33):
            x = torch.randn(rows, 64, generator=generator).to(torch.bfloat16)
            expected = x.float() @ weight.float().T
            if not torch.allclose(packed(x).float(), expected, rtol=0.02, atol=0.2):
                return False
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return True


def linear_class(dtype: torch.dtype, device: torch.device) -> LinearMaker:
    """The fastest class that is right for this dtype and device."""
    if dtype is torch.bfloat16 and device.type == "cpu" and packing_works():
        return PackedLinear
    return PlainLinear
