"""Neutral settings as vLLM's own flags and environment, for the version and build that is there.

Most settings are a row of `FLAGS`. Four are more than a row: the KV cache's size in tokens or bytes, CUDA graphs, threads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.base import EngineSettings, SettingNotSupportedError
from backends.speculation import NGRAM, Method, Speculation, asked_speculation
from backends.vllm_version import Build, Version, show_version
from results.errors import UsageError

GIB = 1 << 30
OLDEST: Version = (0, 10, 0)
# Where a version is not told, the newest one this table was checked against is assumed.
NEWEST: Version = (0, 32, 0)
# The engine's own block sizes where none is asked (some attention backends on a GPU take a larger one).
GPU_BLOCK, CPU_BLOCK = 16, 128
KV_SPACE, OMP_BIND = "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"
STEP_LOG = "--enable-logging-iteration-details"
# What the CPU build gets where no size is asked: its own default is most of the machine's memory.
CPU_KV_GIB = 4


@dataclass(frozen=True, slots=True)
class Flag:
    """A neutral setting as a flag. `switch`: --x for True, --no-x for False, instead of --x VALUE.

    `cpu_since` is the first version whose CPU build honours it (None: none does); `until` the first that no longer does.
    """

    setting: str
    flag: str
    switch: bool = False
    since: Version = OLDEST
    cpu_since: Version | None = OLDEST
    until: Version | None = None

    def words(self, value: Any) -> tuple[str, ...]:
        if self.switch:
            return (self.flag if value else self.flag.replace("--", "--no-", 1),)
        return (self.flag, str(value))


FLAGS = (
    Flag("dtype", "--dtype"),
    Flag("kv_dtype", "--kv-cache-dtype"),
    Flag("max_model_len", "--max-model-len"),
    Flag("max_num_seqs", "--max-num-seqs"),
    Flag("max_num_batched_tokens", "--max-num-batched-tokens"),
    Flag("kv_cache_bytes", "--kv-cache-memory-bytes", since=(0, 11, 0), cpu_since=(0, 32, 0)),
    Flag("memory_fraction", "--gpu-memory-utilization", cpu_since=(0, 32, 0)),
    Flag("block_size", "--block-size"),
    Flag("prefix_caching", "--enable-prefix-caching", switch=True),
    Flag("chunked_prefill", "--enable-chunked-prefill", switch=True),
    Flag("scheduler_policy", "--scheduling-policy"),
    Flag("tensor_parallel", "--tensor-parallel-size"),
    Flag("quantisation", "--quantization"),
    Flag("seed", "--seed"),
    Flag("load_format", "--load-format"),
    Flag("step_log", STEP_LOG, switch=True, since=(0, 16, 0), cpu_since=(0, 16, 0)),
)
# Turning off graphs alone; before, only the eager mode (which also turns off the compiler) does.
_GRAPHS_ALONE: Version = (0, 11, 0)
_QUIET_BY_DEFAULT: Version = (0, 10, 1)
SETTINGS = frozenset(flag.setting for flag in FLAGS) | {
    "kv_cache_tokens",
    "cuda_graphs",
    "threads",
    "speculative",
    "speculative_tokens",
    "speculative_model",
}
_KV_SIZES = ("kv_cache_tokens", "kv_cache_bytes", "memory_fraction")


@dataclass(slots=True)
class Translation:
    """What the settings become. `notes` say what differs from what was asked, or was chosen here."""

    flags: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def translate(
    settings: EngineSettings, build: Build, environ: Mapping[str, str], cpu: bool, cpus: Sequence[int] = ()
) -> Translation:
    """Flags and environment for these settings. `environ` is what the server would inherit.

    Raises SettingNotSupportedError for a setting this version or build has no way to take, UsageError for settings that
    contradict each other.
    """
    out, asked = Translation(), settings.asked()
    version = build.version or NEWEST
    if build.version is None:
        out.notes.append(f"the command does not tell its version; flags are those of vLLM {show_version(NEWEST)}")
    elif build.version < OLDEST:
        raise UsageError(f"{build} is too old: this adapter drives vLLM {show_version(OLDEST)} and newer.")
    sizes = [name for name in _KV_SIZES if name in asked]
    if len(sizes) > 1:
        raise UsageError(f"The KV cache's size was asked more than once: {', '.join(sizes)}. Leave all but one out.")
    if cpu:
        _cpu_memory(asked, version, environ, out)
    for flag in FLAGS:
        if flag.setting == "step_log" and settings.step_log is False and version < flag.since:
            continue  # this version has no such line to leave out
        if flag.setting in asked:
            _require(flag, version, cpu)
            out.flags += flag.words(asked[flag.setting])
    if "kv_cache_tokens" in settings.asked():
        _kv_tokens(settings, cpu, out)
    if settings.cuda_graphs is not None:
        _graphs(settings.cuda_graphs, version, cpu, out)
    if settings.threads is not None:
        _threads(settings.threads, settings.tensor_parallel or 1, cpu, cpus, out)
    if (wanted := asked_speculation(settings)) is not None:
        out.flags += ["--speculative-config", json.dumps(_speculation(wanted))]
    if version < _QUIET_BY_DEFAULT:
        out.flags.append("--disable-log-requests")
    return out


def with_step_log(settings: EngineSettings, build: Build) -> EngineSettings:
    """The settings with a line a step in the log, where nothing else was asked and the version is known to have it."""
    (row,) = (flag for flag in FLAGS if flag.setting == "step_log")
    if settings.step_log is not None or build.version is None or build.version < row.since:
        return settings
    return settings.model_copy(update={"step_log": True})


def _speculation(wanted: Speculation) -> dict[str, Any]:
    config: dict[str, Any] = {"num_speculative_tokens": wanted.tokens}
    if wanted.method is not Method.DRAFT:  # a model alone is told as one that drafts
        config["method"] = str(wanted.method)
    if wanted.method is Method.NGRAM:
        config |= {"prompt_lookup_max": NGRAM, "prompt_lookup_min": NGRAM}
    if wanted.model is not None:
        config["model"] = wanted.model
    return config


def _require(flag: Flag, version: Version, cpu: bool) -> None:
    since = flag.cpu_since if cpu else flag.since
    which = f"vllm {show_version(version)}{' (CPU build)' if cpu else ''}"
    if since is None or version < since or (flag.until is not None and version >= flag.until):
        has = [f.setting for f in FLAGS if (s := f.cpu_since if cpu else f.since) is not None and version >= s]
        raise SettingNotSupportedError(which, flag.setting, has)


def _cpu_memory(asked: dict[str, Any], version: Version, environ: Mapping[str, str], out: Translation) -> None:
    """The CPU build's KV memory: whole GiB go into its variable, which every version reads and which wins over flags."""
    wanted = asked.get("kv_cache_bytes")
    if wanted is not None and wanted % GIB == 0:
        out.env[KV_SPACE] = str(wanted // GIB)
        del asked["kv_cache_bytes"]
    elif environ.get(KV_SPACE):
        if wanted is not None or "memory_fraction" in asked:
            name = "kv_cache_bytes" if wanted is not None else "memory_fraction"
            raise UsageError(f"{KV_SPACE}={environ[KV_SPACE]} is set and would win over {name}: unset it.")
    elif wanted is None and "memory_fraction" not in asked:
        out.env[KV_SPACE] = str(CPU_KV_GIB)
        out.notes.append(
            f"{KV_SPACE}={CPU_KV_GIB} (GiB): no size of the KV cache was asked in bytes, and this build's own default takes most of "
            "the machine's memory (0.92 of it in vLLM 0.32)"
        )


def _kv_tokens(settings: EngineSettings, cpu: bool, out: Translation) -> None:
    """Tokens are given as blocks. What comes of it is read back: a hybrid model or another block size gives another number."""
    tokens, block = settings.kv_cache_tokens or 0, settings.block_size or (CPU_BLOCK if cpu else GPU_BLOCK)
    blocks = -(-tokens // block)
    out.flags += ["--num-gpu-blocks-override", str(blocks)]
    out.notes.append(
        f"kv_cache_tokens={tokens} was asked as {blocks} blocks of {block} tokens, one of which the engine keeps empty; where "
        "it takes another block size, the number of tokens it tells differs"
    )


def _graphs(wanted: bool, version: Version, cpu: bool, out: Translation) -> None:
    if cpu:
        if wanted:
            raise SettingNotSupportedError(f"vllm {show_version(version)} (CPU build)", "cuda_graphs", [], False)
    elif wanted:
        out.flags.append("--no-enforce-eager")
    elif version >= _GRAPHS_ALONE:
        out.flags += ["--compilation-config", '{"cudagraph_mode": "NONE"}']
    else:
        out.flags.append("--enforce-eager")
        out.notes.append("cuda_graphs=False turns off this version's compiler as well (--enforce-eager)")


def _threads(threads: int, ranks: int, cpu: bool, cpus: Sequence[int], out: Translation) -> None:
    """The first `threads` of those CPUs (of all that this process may use), in equal shares for the ranks."""
    if not cpu:
        raise SettingNotSupportedError("vllm (GPU build)", "threads", [f.setting for f in FLAGS])
    cpus = sorted(cpus or os.sched_getaffinity(0))
    if threads > len(cpus) or threads % ranks:
        raise UsageError(
            f"threads={threads} cannot be had: {len(cpus)} CPUs may be used here, and each of {ranks} tensor-parallel ranks "
            "needs the same number. Ask for fewer threads, or a multiple of the ranks."
        )
    share = threads // ranks
    groups = [cpus[rank * share : (rank + 1) * share] for rank in range(ranks)]
    out.env[OMP_BIND] = "|".join(",".join(map(str, group)) for group in groups)
