"""Puts an engine together from a model folder and settings."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from backends.reference.attention import NoKV, PagedKV
from backends.reference.build_scheduler import build_scheduler
from backends.reference.config import EngineSettings, ModelConfig
from backends.reference.engine import Engine
from backends.reference.kernels import Kernels, load_kernels
from backends.reference.loader import DummyWeights, SafetensorsWeights, WeightSource
from backends.reference.model import Llama
from backends.reference.native import NativeKV, NativeLlama, why_not
from backends.reference.native_check import agrees
from backends.reference.runner import KVCache, ModelRunner
from backends.reference.truth import TruthLog
from results.errors import UsageError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine with its parts, and the seconds they took. `kernels` is the form of the compiled ones, or "off"."""

    engine: Engine
    model: Llama
    kv: KVCache
    kernels: str
    weights_s: float
    kv_s: float


def build_engine(
    folder: Path,
    config: ModelConfig,
    settings: EngineSettings,
    truth: TruthLog | None = None,
    shared: Llama | None = None,
) -> BuiltEngine:
    """Load the weights and allocate the pool. UsageError for weights that are missing or do not fit the config.

    `shared`: a model that PyTorch computes, of the same config, dtype, device and weights, which another engine has already.
    """
    torch.set_num_threads(settings.threads)
    device, dtype = _device(settings.device), getattr(torch, settings.dtype)
    kernels = _kernels(config, settings)
    start = time.monotonic()
    log.info("loading weights (%s) from %s as %s", settings.load_format, folder, settings.dtype)
    log.info(
        "allocating KV: %d blocks of %d = %d tokens, %d bytes a token, %.1f MiB",
        settings.num_blocks,
        settings.block_size,
        settings.kv_cache_tokens,
        config.kv_bytes_per_token(settings.dtype),
        settings.kv_cache_tokens * config.kv_bytes_per_token(settings.dtype) / 2**20,
    )
    model: Llama
    kv: KVCache
    if kernels is not None:
        kv = NativeKV(config, settings.num_blocks, settings.block_size, kernels)
    elif settings.switches.kv_cache == "off":
        kv = NoKV(config, dtype, device)
    else:
        kv = PagedKV(config, settings.num_blocks, settings.block_size, dtype, device)
    allocated = time.monotonic()
    log.info("allocated KV in %.2f s", allocated - start)
    if isinstance(kv, NativeKV) and kernels is not None:
        model = NativeLlama(config, _weights(folder, settings, dtype, device), kernels, kv)
    else:
        model = shared or Llama(config, _weights(folder, settings, dtype, device), dtype, device)
    loaded = time.monotonic()
    log.info(
        "loaded %.1f MiB of weights in %.2f s, products by %s, attention by %s",
        model.num_bytes / 2**20,
        loaded - allocated,
        model.linear_name,
        kv.name,
    )
    engine = Engine(build_scheduler(settings), ModelRunner(model, kv), truth)
    form = kernels.form if kernels else "off"
    return BuiltEngine(engine, model, kv, form, loaded - allocated, allocated - start)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"--device cuda needs a CUDA device, but PyTorch {torch.__version__} sees none. Install a CUDA build of PyTorch and "
            "look with nvidia-smi, or leave --device out to compute on the CPU."
        )
    return torch.device(name)


def _kernels(config: ModelConfig, settings: EngineSettings) -> Kernels | None:
    """The compiled kernels that these settings can use, once they have agreed with PyTorch; else the reason is logged."""
    if settings.kernels == "off":
        return None
    reason = why_not(config, settings)
    if reason is not None:
        log.info("the compiled kernels do not do this (%s): PyTorch computes", reason)
        return None
    kernels = load_kernels(settings.kernels, settings.threads)
    if kernels is None or agrees(kernels):
        return kernels
    log.warning("the compiled kernels (%s) disagree with PyTorch on a small model, and are not used", kernels.form)
    return None


def _weights(folder: Path, settings: EngineSettings, dtype: torch.dtype, device: torch.device) -> WeightSource:
    if settings.load_format == "dummy":
        return DummyWeights(dtype, device, settings.seed)
    return SafetensorsWeights(folder, dtype, device)
