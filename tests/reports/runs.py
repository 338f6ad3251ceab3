"""Runs with a hand-made summary.json: known numbers in, so that what comes out can be told in advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from results.records import SessionRecord
from results.store import RunStore, RunWriter
from results.verification import write_verification

Cell = dict[str, Any]
PER_TOKEN = 23_040


def distribution(p50: float, n: int = 40) -> dict[str, Any]:
    """Percentiles in a fixed proportion, withheld by the rule n (1 - p) >= 1."""
    rules = {"p50": (p50, 2), "p90": (p50 * 1.4, 10), "p95": (p50 * 1.6, 20), "p99": (p50 * 2, 100)}
    shown = {k: value if n >= needs else None for k, (value, needs) in rules.items()}
    withheld = {k: f"needs {needs} values, there are {n}" for k, (_, needs) in rules.items() if n < needs}
    return {"n": n, "mean": p50, **shown, "intervals": {}, "withheld": withheld}


def rate(batch: int, input_len: int) -> float:
    """Output tokens/s of the made-up engine: 30 at batch 1 and 128 in, bending as the batch grows."""
    return 1000 / (33 / batch + 2.2 + input_len * 0.004)


def cell(engine: str, batch: int, input_len: int, block: int = 0, speed: float = 1.0, n: int = 40) -> Cell:
    """A VALID cell whose numbers follow from its place in the grid."""
    output, tokens = rate(batch, input_len) * speed, batch * (input_len + 64)
    scope = {
        "start_s": 0.0,
        "duration_s": 64 * n / output,
        "input_tokens": n * input_len,
        "output_tokens": n * 64,
        "output_tokens_per_s": output,
        "total_tokens_per_s": output * (1 + input_len / 64),
        "requests_per_s": output / 64,
        "prefill_tokens_per_s": 900.0 * speed + 2 * batch,
        "decode_tokens_per_s": output * 1.1,
        "ttft_ms": distribution(input_len * 1.1 * batch / speed, n),
        "scheduled_ttft_ms": distribution(input_len * 1.1 * batch / speed, n),
        "tpot_ms": distribution(1000 * batch / output, n),
        "itl_pooled_ms": distribution(1000 * batch / output, n * 63),
        "e2e_ms": distribution(64_000 * batch / output, n),
        "scheduled_e2e_ms": distribution(64_000 * batch / output, n),
        "waves": {
            "n": 3,
            "output_tokens_per_s": {"min": output * 0.97, "max": output * 1.02},
            "ttft_ms_p50": {"min": input_len * batch / speed, "max": input_len * 1.3 * batch / speed},
            "tpot_ms_p50": {"min": 970 * batch / output, "max": 1040 * batch / output},
        },
    }
    return {
        "id": f"{engine}-{batch}-{input_len}-{block}",
        "engine": engine,
        "backend": "reference",
        "model": "smollm2-135m",
        "session": f"000-b{block}-engine",
        "block": block,
        "workload": {
            "type": "random",
            "input_len": {"dist": "fixed", "tokens": input_len},
            "output_len": {"dist": "fixed", "tokens": 64},
        },
        "load": {"mode": "batch", "value": batch, "batch": batch, "waves": 3},
        "verdict": "VALID",
        "reasons": [
            {
                "code": "no_window",
                "severity": "note",
                "words": "No window",
                "evidence": "not looked for",
                "advice": "None needed.",
            }
        ],
        "requests": {"issued": n, "ok": n, "by_outcome": {"ok": n}},
        "whole": scope,
        "window": None,
        "batch": {
            "offered": batch,
            "in_flight": batch * 0.97,
            "running": batch * 0.95,
            "decodes_per_step": batch * 0.93,
            "realised": batch * 0.93,
            "realised_source": "decodes_per_step",
        },
        "client": {"lag_ms_p99": 0.2, "cpu_s": 0.1},
        "device": None,
        "server": {
            "kv_pool_bytes": 2**30,
            "kv_allocated_bytes_max": PER_TOKEN * tokens * 1.04,
            "kv_held_bytes_max": PER_TOKEN * tokens * 0.99,
            "weight_bytes": 269_030_016,
        },
        "arithmetic": {
            "kv_bytes_per_token": PER_TOKEN,
            "kv_bytes_predicted": PER_TOKEN * tokens,
            "kv_bytes_predicted_blocks": PER_TOKEN * tokens,
            "kv_bytes_engine": PER_TOKEN * tokens * 0.99,
        },
    }


def flawed(verdict: str, code: str, evidence: str = "lag p99 12 ms against 5 allowed") -> Callable[[Cell], Cell]:
    """Gives a cell a verdict and the reason for it."""

    def change(given: Cell) -> Cell:
        reason = {
            "code": code,
            "severity": verdict.lower(),
            "words": code.replace("_", " "),
            "evidence": evidence,
            "advice": "Move the client away.",
        }
        return {**given, "verdict": verdict, "reasons": [reason, *given["reasons"]]}

    return change


def grid(
    engines: Sequence[str] = ("reference",),
    batches: Sequence[int] = (1, 4, 16),
    input_lens: Sequence[int] = (128, 512),
    blocks: int = 1,
) -> list[Cell]:
    """All cells of a grid; each further engine is 1.2 times as fast, each further block 10 % faster."""
    return [
        cell(engine, batch, length, block, 1.2**i * (1 + 0.1 * block))
        for block in range(blocks)
        for i, engine in enumerate(engines)
        for length in input_lens
        for batch in batches
    ]


@dataclass(frozen=True)
class Setup:
    """How an engine of a made-up run was asked to be set, and what it told: a value, or (value, source)."""

    told: Mapping[str, Any]
    asked: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: {"torch": "2.13.0"})
    url: str | None = None

    def settings(self) -> dict[str, dict[str, Any]]:
        pairs = {k: v if isinstance(v, tuple) else (v, "endpoint") for k, v in self.told.items()}
        return {name: {"value": value, "source": source} for name, (value, source) in pairs.items()}


VLLM_LIKE = Setup(
    {
        "dtype": ("bfloat16", "log"),
        "kv_dtype": "auto",
        "quantisation": ("none", "log"),
        "max_model_len": 8192,
        "max_num_seqs": (256, "log"),
        "max_num_batched_tokens": (2048, "log"),
        "block_size": 128,
        "kv_cache_tokens": 93_184,
        "prefix_caching": True,
        "chunked_prefill": (True, "log"),
        "cuda_graphs": (False, "asked"),
        "scheduler_policy": ("fcfs", "log"),
        "speculative_decoding": (False, "log"),
        "tensor_parallel": (1, "log"),
        "threads": (2, "asked"),
        "device": ("cpu", "log"),
    },
    asked={"threads": 2},
    options=("--enforce-eager",),
    versions={"vllm": "0.32.0", "torch": "2.13.0+cpu"},
)
REFERENCE_LIKE = Setup(
    {
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "quantisation": ("none", "fixed"),
        "max_model_len": 8192,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "block_size": 16,
        "kv_cache_tokens": 46_592,
        "kv_bytes_per_token": PER_TOKEN,
        "prefix_caching": False,
        "chunked_prefill": True,
        "cuda_graphs": (False, "fixed"),
        "scheduler": "fcfs",
        "sampling_source": ("request", "fixed"),
        "speculative_decoding": (False, "fixed"),
        "tensor_parallel": (1, "fixed"),
        "threads": 2,
        "device": "cpu",
    },
    versions={"reference": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
)


def make_run(
    folder: Path,
    cells: Sequence[Cell],
    model: str = "smollm2-135m",
    planned: int | None = None,
    setups: Mapping[str, Setup] = MappingProxyType({}),
    source: str | None = None,
    verify: Mapping[str, Any] | None = None,
    blocks: int = 1,
) -> RunStore:
    """A run folder holding `cells` in its summary, and a session for each engine and block; `setups` by engine label,
    `verify` for its verify.json, `blocks` how many were asked for."""
    engines = list(dict.fromkeys(c["engine"] for c in cells)) or ["reference"]
    loads = [{"mode": "batch", "batch": i + 1, "waves": 3} for i in range(len(cells) if planned is None else planned)]
    experiment = {
        "schema_version": 1,
        "model": model,
        "engines": [
            {
                "label": e,
                "backend": "reference",
                "options": list(setups[e].options) if e in setups else [],
                "url": setups[e].url if e in setups else None,
            }
            for e in engines
        ],
        "workloads": [{"type": "random"}],
        # Planned cells are the product of the four lists; here it is all put into the loads.
        "loads": loads[: len(loads) // len(engines)],
        "blocks": blocks,
    }
    manifest = {
        "host": {"cpu": "Example CPU 2.4 GHz", "cores_usable": 2, "memory_bytes": 8 * 2**30, "system": "Linux 6.18"},
        "device": {"name": None, "reason": "no NVIDIA driver on this machine"},
        "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "model": {
            "name": model,
            "folder": "/models/x",
            "source": source,
            "config": {"num_hidden_layers": 30, "hidden_size": 576},
        },
        "start": {
            "command": ["dyno", "sweep", "--backend", "reference", "--model", model, "--batch", "1,4,16"],
            "cwd": "/home/someone",
            "monotonic_ns": 0,
            "wall_ns": 1_790_000_000_000_000_000,
        },
    }
    with RunWriter.start(folder, yaml.safe_dump(experiment), manifest) as writer:
        for engine in engines:
            for block in sorted({c.get("block", 0) for c in cells} or {0}):
                session_id, _ = writer.new_session(engine, block)
                writer.write_session(_session(session_id, engine, block, model, setups.get(engine, _PLAIN)))
        writer.write_summary(
            {
                "schema": 1,
                "run": folder.name,
                "engines": [{"label": e, "backend": "reference"} for e in engines],
                "cells": list(cells),
            }
        )
    if verify is not None:
        write_verification(folder, verify)
    return RunStore.open(folder)


_PLAIN = Setup(
    {"block_size": 16, "dtype": "bfloat16", "kv_cache_bytes": (2**30, "log")},
    asked={"block_size": 16, "dtype": "float32"},
)


def _session(session_id: str, engine: str, block: int, model: str, setup: Setup) -> SessionRecord:
    second = 1_000_000_000
    return SessionRecord(
        id=session_id,
        engine=engine,
        backend="reference",
        block=block,
        model=model,
        url="http://127.0.0.1:8000",
        argv=["python", "-m", "backends.reference", "/models/x", "--served-model-name", model],
        env={"OMP_NUM_THREADS": "2", "NOTE": "two words"},
        asked=dict(setup.asked),
        settings=setup.settings(),
        versions=dict(setup.versions),
        timeline={"launched": 5 * second, "ready": 7 * second, "first_cell": 8 * second},
        ended=60 * second,
        exit_code=0,
    )
