"""Weights by name: from the safetensors files of a Hugging Face folder, or drawn at random."""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch

from backends.reference.config import read_json
from results.errors import UsageError

DUMMY_STD = 0.02


class WeightSource(Protocol):
    """Gives one tensor a name, in the asked shape and in the source's dtype and device."""

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor: ...


class DummyWeights:
    """N(0, 0.02) for matrices and biases, ones for norms; the same values for a name and seed whatever else is drawn."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self.dtype, self.device, self.seed = dtype, device, seed

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A random tensor; norms are ones, since their spread would change every activation's size."""
        if len(shape) == 1 and not name.endswith("bias"):
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode(), self.seed & 0xFFFFFFFF))
        return torch.empty(shape).normal_(0.0, DUMMY_STD, generator=generator).to(self.device, self.dtype)


class SafetensorsWeights:
    """Reads `model.safetensors` or the shards that `model.safetensors.index.json` lists."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        from safetensors import SafetensorError, safe_open

        self.folder, self.dtype, self.device = folder, dtype, device
        self._file_of: dict[str, Any] = {}
        self._files = ExitStack()
        for path in self._paths():
            try:
                file = self._files.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise UsageError(f"Weights {path} cannot be read: {error}.") from error
            self._file_of.update(dict.fromkeys(file.keys(), file))

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor of the checkpoint; UsageError when it is missing or shaped otherwise than config.json says."""
        if name not in self._file_of:
            raise UsageError(f"The weights in {self.folder} have no tensor {name}, which config.json calls for.")
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise UsageError(
                f"Tensor {name} in {self.folder} has shape {tuple(tensor.shape)}, but config.json makes it {shape}."
            )
        return tensor.to(self.device, self.dtype)

    def _paths(self) -> list[Path]:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            names = sorted(set(read_json(index).get("weight_map", {}).values()))
            paths = [self.folder / name for name in names]
        else:
            paths = [self.folder / "model.safetensors"]
        missing = [path for path in paths if not path.is_file()]
        if missing or not paths:
            raise UsageError(
                f"Model folder {self.folder} has no {missing[0].name if missing else 'weights'}; give a folder with "
                "safetensors weights, or --load-format dummy for random ones."
            )
        return paths
