"""What must be the same for a difference in speed to be one of the code: machine, device, model and settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# Of an engine's settings, those with which the same tokens cost something else. How an engine computes (its attention, its
# kernels) is what a change of the code changes, and no condition of a comparison.
_SETTINGS = (
    "dtype",
    "kv_dtype",
    "quantisation",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "prefix_caching",
    "chunked_prefill",
    "cuda_graphs",
    "scheduler",
    "tensor_parallel",
    "load_format",
    "threads",
)
_MACHINE = ("cpu", "cores", "memory_gib", "device", "driver")
_GIB = 2**30

Fingerprint = dict[str, Any]


def fingerprint_of(
    manifest: Mapping[str, Any], engine: Mapping[str, Any], experiment: Mapping[str, Any]
) -> Fingerprint:
    """Flat: machine, device, model, and the settings that the engine told. What is not known is None."""
    host, device = (told if isinstance(told := manifest.get(name), Mapping) else {} for name in ("host", "device"))
    model = manifest.get("model") or {}
    memory = host.get("memory_bytes")
    found: Fingerprint = {
        "cpu": host.get("cpu"),
        "cores": host.get("cores_usable", host.get("cores")),
        # A kernel keeps a little more or less of it for itself.
        "memory_gib": round(memory / _GIB) if isinstance(memory, int) else None,
        "device": device.get("name"),
        "driver": device.get("driver"),
        "model": model.get("name") if isinstance(model, Mapping) else model,
        "backend": engine.get("backend"),
        "endpoint": experiment.get("endpoint") or "completions",
    }
    settings = engine.get("settings") or {}
    for name in _SETTINGS:
        told = settings.get(name)
        value = told.get("value") if isinstance(told, Mapping) else told
        if value is not None:
            found[f"setting {name}"] = value
    return found


def unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What differs, `field: one / other`. A setting that one side does not tell is not known to differ."""
    found = []
    for name in dict.fromkeys([*a, *b]):
        if name.startswith("setting ") and not (name in a and name in b):
            continue
        one, other = a.get(name), b.get(name)
        if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
            found.append(f"{name.removeprefix('setting ')}: {_shown(one)} / {_shown(other)}")
    return found


def machine_of(fingerprint: Mapping[str, Any]) -> str:
    """The hardware in one word, the key of a baseline: `amd-epyc-2-cores-24-gib`, `nvidia-h200-amd-epyc-16-cores-128-gib`. The driver is
    part of the fingerprint and not of the key: a new one is a reason to refuse, not another machine."""
    parts = [fingerprint.get("device"), fingerprint.get("cpu")]
    parts += [f"{fingerprint.get('cores')} cores", f"{fingerprint.get('memory_gib')} GiB"]
    text = " ".join(str(p) for p in parts if p)
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def machine_words(fingerprint: Mapping[str, Any]) -> str:
    """`cpu AMD EPYC, cores 2, memory_gib 24`."""
    return ", ".join(f"{name} {fingerprint[name]}" for name in _MACHINE if fingerprint.get(name) is not None)


def _shown(value: Any) -> str:
    return "not known" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
