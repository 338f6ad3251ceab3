"""The scheduler with the block manager and the strategies that the settings name. Knows no tensors: needs no model, no torch."""

from __future__ import annotations

from backends.reference.config import EngineSettings
from backends.reference.kv_cache import BlockManager
from backends.reference.kv_layouts import ContiguousRuns, NoKvCache
from backends.reference.prefix_cache import PrefixCache
from backends.reference.scheduler import Scheduler


def build_scheduler(settings: EngineSettings) -> Scheduler:
    """The scheduler as an engine of these settings runs it."""
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
