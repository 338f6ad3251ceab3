"""The model on the compiled kernels: the same weights and answers as `model.Llama`, a whole step in one call.

For bfloat16 on the CPU. What the kernels do not do (`why_not`) stays with PyTorch. A token's result depends on its own
context alone, so greedy tokens are the same whatever the batch, the chunks and the preemptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from backends.reference.config import EngineSettings, ModelConfig
from backends.reference.kernels import (
    CELL,
    COLUMNS,
    HALF,
    QUERY_ROWS,
    CLayer,
    CModel,
    CStep,
    Kernels,
    Panels,
)
from backends.reference.linear import Linear
from backends.reference.loader import WeightSource
from backends.reference.model import Llama, rotary_tables
from backends.reference.request import Scheduled

_ITEM = np.dtype([("first", "i8"), ("start", "i8"), ("count", "i8"), ("cells", "u8")])


def why_not(config: ModelConfig, settings: EngineSettings) -> str | None:
    """The first thing about model or settings that the kernels do not do; None when they do all."""
    facts = (
        (settings.device != "cpu", f"the device is {settings.device}"),
        (settings.dtype != "bfloat16", f"weights are {settings.dtype}, not bfloat16"),
        (settings.switches.kv_cache == "off", "there is no KV cache"),
        (settings.block_size % CELL != 0, f"a block of {settings.block_size} tokens is no multiple of {CELL}"),
        (config.hidden_size % COLUMNS != 0, f"hidden size {config.hidden_size} is no multiple of {COLUMNS}"),
        (config.intermediate_size % HALF != 0, f"MLP size {config.intermediate_size} is no multiple of {HALF}"),
        (config.head_dim % COLUMNS != 0, f"head_dim {config.head_dim} is no multiple of {COLUMNS}"),
        (config.queries_per_kv > QUERY_ROWS, f"{config.queries_per_kv} query heads share a KV head"),
    )
    return next((why for is_so, why in facts if is_so), None)


@dataclass(frozen=True, slots=True)
class NativeIndex:
    """One step's tokens and where they live; arrays are kept because the kernels read them."""

    positions: np.ndarray  # of each row
    slots: np.ndarray  # of each row: cell * 16 + offset
    items: np.ndarray  # of _ITEM
    units: np.ndarray  # [pieces of attention, 2]: item, first token
    cells: np.ndarray


class NativeKV:
    """The pool of KV blocks in the kernels' layout: cells of 16 tokens, `block_size` being a multiple of that.

    `pool` [layers, keys and values, cells, KV heads, head_dim x 16].
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, kernels: Kernels) -> None:
        self.name = f"paged-{kernels.form}"
        self.device = torch.device("cpu")
        self.cells_per_block = block_size // CELL
        self._tokens_a_piece = QUERY_ROWS // config.queries_per_kv
        cells = num_blocks * self.cells_per_block
        shape = (config.num_layers, 2, cells, config.num_kv_heads, config.head_dim * CELL)
        self.pool = torch.zeros(shape, dtype=torch.bfloat16)

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool."""
        return self.pool.nbytes

    def index(self, items: list[Scheduled]) -> NativeIndex:
        """Where one step's tokens live."""
        starts, counts = (np.array([getattr(item, name) for item in items]) for name in ("start", "count"))
        num_cells = -(-(starts + counts) // CELL)
        firsts, offsets = (np.cumsum(sizes) - sizes for sizes in (counts, num_cells))
        cells = np.concatenate([self._cells(item, used) for item, used in zip(items, num_cells, strict=True)])
        positions = np.repeat(starts - firsts, counts) + np.arange(counts.sum())
        slots = cells[np.repeat(offsets, counts) + positions // CELL].astype(np.int64) * CELL + positions % CELL
        described = np.empty(len(items), _ITEM)
        described["first"], described["start"], described["count"] = firsts, starts, counts
        described["cells"] = cells.ctypes.data + offsets * cells.itemsize
        return NativeIndex(positions, slots, described, self._units(counts), cells)

    def _cells(self, item: Scheduled, count: int) -> np.ndarray:
        per_block = self.cells_per_block
        blocks = np.array(item.request.block_table[: -(-count // per_block)], dtype=np.int32)
        if per_block == 1:
            return blocks
        return (blocks[:, None] * per_block + np.arange(per_block, dtype=np.int32)).ravel()[:count]

    def _units(self, counts: np.ndarray) -> np.ndarray:
        """Pieces of attention, the last of a prompt first: they see the most."""
        pieces = -(-counts // self._tokens_a_piece)
        number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        units = np.stack([np.repeat(np.arange(len(counts)), pieces), number * self._tokens_a_piece], axis=1)
        return np.ascontiguousarray(units[::-1], dtype=np.int32)


class NativeLlama(Llama):
    """Llama whose layers are one call."""

    def __init__(self, config: ModelConfig, source: WeightSource, kernels: Kernels, kv: NativeKV) -> None:
        self._kernels = kernels
        super().__init__(config, source, torch.bfloat16, torch.device("cpu"), self._panels)
        self.linear_name = f"panels-{kernels.form}"
        self.cos, self.sin = rotary_tables(config, torch.float32, torch.device("cpu"))
        self._norms: list[torch.Tensor] = []  # float32 copies, which the kernels read
        self._layers = (CLayer * config.num_layers)(*(self._c_layer(i, kv.pool[i]) for i in range(config.num_layers)))
        self._c_model = CModel(
            *(config.num_layers, config.hidden_size, config.intermediate_size),
            *(config.num_heads, config.num_kv_heads, config.head_dim, kernels.threads, config.rms_norm_eps),
            *(tensor.data_ptr() for tensor in (self.embedding, self.cos, self.sin)),
            self._layers,
        )
        self._space = _Workspace(config, self.layers[0].qkv, 0)

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, kv: Any, index: Any) -> torch.Tensor:
        """See Llama; float32, valid until the next step."""
        rows = len(token_ids)
        if rows > self._space.rows:
            self._space = _Workspace(self.config, self.layers[0].qkv, max(rows, 2 * self._space.rows))
        arrays = (index.positions, index.slots, index.items, index.units)
        step = CStep(
            *(rows, len(index.items), len(index.units), token_ids.data_ptr()),
            *(array.ctypes.data for array in arrays),
            *(buffer.data_ptr() for buffer in self._space.buffers),
        )
        if not self._kernels.step(self._c_model, step):
            raise MemoryError(f"no memory for a step of {rows} tokens on {self._kernels.threads} threads")
        return self._space.buffers[0][:rows]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Llama; float32."""
        return self.head(self._norm(hidden, self.norm.float()).bfloat16())

    def _panels(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Panels:
        return Panels(self._kernels, weight, bias)

    def _fused(self, rows_of: dict[str, int], columns: int, has_bias: bool) -> Linear:
        weight, bias = self._joined(rows_of, columns, has_bias)
        return Panels(self._kernels, weight, bias, halves=any(name.endswith("gate_proj") for name in rows_of))

    def _c_layer(self, number: int, pool: torch.Tensor) -> CLayer:
        layer = self.layers[number]
        norms = (layer.attention_norm, layer.mlp_norm, layer.qk_norm)
        products: list[Any] = [layer.qkv, layer.out, layer.gate_up, layer.down]
        return CLayer(
            *(None if norm is None else self._float(norm) for norm in norms),
            *(panels.matrix for panels in products),
            *(part.data_ptr() for part in pool),
        )

    def _float(self, tensor: torch.Tensor) -> int:
        self._norms.append(tensor.float().contiguous())
        return self._norms[-1].data_ptr()


class _Workspace:
    """What passes between the phases of a step, for up to `rows` tokens. Zero at first: padding is never written."""

    def __init__(self, config: ModelConfig, qkv: Any, rows: int) -> None:
        self.rows = rows
        width = config.num_heads * config.head_dim
        inner = -(-config.intermediate_size // COLUMNS) * COLUMNS
        self.buffers = [
            torch.zeros(rows, config.hidden_size),
            torch.zeros(rows, config.hidden_size, dtype=torch.bfloat16),
            torch.zeros(rows, qkv.matrix.columns),
            *(torch.zeros(rows, size, dtype=torch.bfloat16) for size in (width, width, inner)),
        ]
