"""Puts an engine together from a model folder and settings."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from backends.reference.attention import NoKV, PagedKV
from backends.reference.config import EngineSettings, ModelConfig
from backends.reference.engine import Engine
from backends.reference.kv_cache import BlockManager
from backends.reference.kv_layouts import ContiguousRuns, NoKvCache
from backends.reference.loader import DummyWeights, SafetensorsWeights, WeightSource
from backends.reference.model import Llama
from backends.reference.prefix_cache import PrefixCache
from backends.reference.runner import ModelRunner
from backends.reference.scheduler import Scheduler
from backends.reference.truth import TruthLog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine with its parts, and the seconds they took."""

    engine: Engine
    model: Llama
    kv: PagedKV
    weights_s: float
    kv_s: float


def build_engine(
    folder: Path, config: ModelConfig, settings: EngineSettings, truth: TruthLog | None = None
) -> BuiltEngine:
    """Load the weights and allocate the pool. UsageError for weights that are missing or do not fit the config."""
    torch.set_num_threads(settings.threads)
    device, dtype = torch.device("cpu"), getattr(torch, settings.dtype)
    start = time.monotonic()
    log.info("loading weights (%s) from %s as %s", settings.load_format, folder, settings.dtype)
    source = _weights(folder, settings, dtype, device)
    model = Llama(config, source, dtype, device)
    loaded = time.monotonic()
    log.info(
        "loaded %.1f MiB of weights in %.2f s, products by %s",
        model.num_bytes / 2**20,
        loaded - start,
        model.linear_name,
    )
    log.info(
        "allocating KV: %d blocks of %d = %d tokens, %d bytes a token, %.1f MiB",
        settings.num_blocks,
        settings.block_size,
        settings.kv_cache_tokens,
        config.kv_bytes_per_token(settings.dtype),
        settings.kv_cache_tokens * config.kv_bytes_per_token(settings.dtype) / 2**20,
    )
    off = settings.switches.kv_cache == "off"
    kv = (
        NoKV(config, dtype, device) if off else PagedKV(config, settings.num_blocks, settings.block_size, dtype, device)
    )
    allocated = time.monotonic()
    log.info("allocated KV in %.2f s", allocated - loaded)
    scheduler = build_scheduler(settings)
    engine = Engine(scheduler, ModelRunner(model, kv), truth)
    return BuiltEngine(engine, model, kv, loaded - start, allocated - loaded)


def build_scheduler(settings: EngineSettings) -> Scheduler:
    """The scheduler with the strategies that the switches name; needs no model."""
    return Scheduler(
        _blocks(settings),
        settings.max_model_len,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        settings.switches.policies(),
    )


def _blocks(settings: EngineSettings) -> BlockManager:
    switches, size = settings.switches, settings.block_size
    if switches.kv_cache == "off":
        return NoKvCache()
    if switches.kv_layout == "contiguous":
        return ContiguousRuns(settings.num_blocks, size, settings.max_model_len)
    return BlockManager(settings.num_blocks, size, PrefixCache(size) if switches.prefix_caching else None)


def _weights(folder: Path, settings: EngineSettings, dtype: torch.dtype, device: torch.device) -> WeightSource:
    if settings.load_format == "dummy":
        return DummyWeights(dtype, device, settings.seed)
    return SafetensorsWeights(folder, dtype, device)
