"""How the fake `trtllm-serve` reads its command line and file: from NVIDIA's description of the version, and as strictly.

Unknown options end it with 2, keys that the version does not have with 1 and pydantic's words; which of the two wins, and what
of a nested block survives, is the version's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from backends.tensorrt_llm_reference import Flag, Reference

_BLOCK_OF = {
    "free_gpu_memory_fraction": ("kv_cache_config", "free_gpu_memory_fraction"),
    "kv_cache_dtype": ("kv_cache_config", "dtype"),
}
# Options that say something of the server, not of the engine.
_SERVER = frozenset({"host", "port", "log_level", "extra_llm_api_options", "served_model_name", "set", "backend"})


class RefusedError(Exception):
    """It ends with this code after these words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def parse(argv: Sequence[str], known: Reference) -> tuple[str, dict[str, Any]]:
    """(model, options by their own names): only those that were given. Raises RefusedError(2)."""
    words = list(argv)
    if words[:1] == ["serve"]:
        words = words[1:]
    models: list[str] = []
    given: dict[str, Any] = {}
    while words:
        word, equals, value = words.pop(0).partition("=")
        if not word.startswith("-"):
            models.append(word + equals + value)
            continue
        flag = known.flag(word)
        if flag is None:
            _usage(f"No such option: {word}")
        if flag.type == "flag":
            given[flag.name] = not word.startswith("--no-")
            continue
        if not equals:
            if not words:
                _usage(f"Option '{word}' requires an argument.")
            value = words.pop(0)
        if flag.name == "set":
            given.setdefault("set", []).append(value)
        else:
            given[flag.name] = _value(flag, word, value)
    if len(models) != 1:
        _usage("Missing argument 'MODEL'." if not models else f"Got unexpected extra argument ({models[1]})")
    return models[0], given


def _usage(words: str) -> NoReturn:
    raise RefusedError(
        2, f"Usage: trtllm-serve serve [OPTIONS] MODEL\nTry 'trtllm-serve serve --help' for help.\n\nError: {words}"
    )


def _value(flag: Flag, word: str, text: str) -> Any:
    if flag.type in ("int", "float"):
        try:
            return int(text) if flag.type == "int" else float(text)
        except ValueError:
            _usage(
                f"Invalid value for '{word}': {text!r} is not a valid {'integer' if flag.type == 'int' else 'float'}."
            )
    if "|" in flag.type and text not in flag.type.split("|"):
        _usage(f"Invalid value for '{word}': {text!r} is not one of {', '.join(map(repr, flag.type.split('|')))}.")
    return text


def effective(given: dict[str, Any], known: Reference) -> dict[str, Any]:
    """What the engine is set to: the version's defaults, its file and its command line, in its order. Raises RefusedError(1)."""
    file: dict[str, Any] = {}
    if path := given.get("extra_llm_api_options"):
        file = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    defaults = _placed({flag.name: flag.default for flag in known.flags}, known)
    command_line = _placed(given, known)
    _validate(file, known)
    if known.file_wins:
        base = _deep(defaults, command_line)
        config = {**base, **file}
        if known.merge == "kv_cache_config" and "kv_cache_config" in file:
            config["kv_cache_config"] = {**base.get("kv_cache_config", {}), **file["kv_cache_config"]}
    else:
        config = _deep(_deep(defaults, file), command_line)
    for text in given.get("set", ()):
        path, _, value = text.partition("=")
        *blocks, key = path.split(".")
        inner = config
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[key] = yaml.safe_load(value)
    for key in known.from_command_line:
        config[key] = command_line.get(key, defaults.get(key))
    _validate({key: value for key, value in config.items() if value is not None}, known)
    return config


def _placed(options: dict[str, Any], known: Reference) -> dict[str, Any]:
    """Options as keys of the configuration."""
    placed: dict[str, Any] = {}
    for name, value in options.items():
        if name in _SERVER or value is None:
            continue
        if name in _BLOCK_OF:
            block, key = _BLOCK_OF[name]
            placed.setdefault(block, {})[key] = value
        elif name in known.keys:
            placed[name] = value
    return placed


def _deep(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    made = dict(base)
    for key, value in more.items():
        inner = made.get(key)
        made[key] = _deep(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return made


def _validate(config: dict[str, Any], known: Reference) -> None:
    problems = known.problems(config)
    graphs = config.get("cuda_graph_config")
    sizes = graphs.get("batch_sizes") if isinstance(graphs, dict) else None
    if sizes and graphs.get("max_batch_size") not in (None, 0, max(sizes)):
        problems.append("cuda_graph_config: CudaGraphConfig.max_batch_size is incompatible with batch_sizes")
    if problems:
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}"
        lines = "\n".join(f"{where}\n {why}" for where, _, why in (p.partition(":") for p in problems))
        raise RefusedError(1, f"pydantic_core._pydantic_core.ValidationError: {count} for TorchLlmArgs\n{lines}")
