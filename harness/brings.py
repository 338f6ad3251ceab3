"""Whether engines are at hand, and what brings one that is not: the one knowledge of `dyno doctor`, `dyno backends` and sweeps."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable

from backends.base import get_backend
from backends.container import find_image, inner_command
from backends.installed import python_without
from harness.experiment import EngineSpec
from harness.models import cache
from results.errors import EngineError, EnvironmentProblemError

_BRINGS = {
    "vllm": "make vllm-venv makes an environment for it (CPU build); on a GPU: pip install vllm, in an environment of its own",
    "tensorrt_llm": "pip install tensorrt-llm, in an environment of its own on a machine with an NVIDIA GPU, or an image",
    "sglang": "pip install sglang, in an environment of its own on a machine with an NVIDIA GPU, or an image",
    "llamacpp": "pip install xllamacpp, or build llama.cpp's llama-server and put it on PATH",
}


def brings(backend: str) -> str | None:
    """The next step for a backend whose engine was not found; None where none is known. Of vLLM the environment that
    `make vllm-venv` made, where it is there, by the line that names it."""
    folder = cache.cache_root().parent / "vllm-venv"
    if backend == "vllm" and any(folder.glob("lib/python3*/site-packages/vllm*.dist-info")):
        command = f"{folder / 'bin' / 'python'} -m vllm.entrypoints.openai.api_server"
        return f"export DYNO_VLLM_COMMAND={shlex.quote(command)}"
    return _BRINGS.get(backend)


def command_fault(backend: str, command: tuple[str, ...]) -> tuple[str, str | None] | None:
    """Why a command cannot start that backend's server, and what mends it; None where nothing speaks against it."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} cannot be executed", f"correct DYNO_{backend.upper()}_COMMAND"
    if (python := python_without(command, backend, {})) is not None:
        return f"{shlex.join(command)}: {lacks(backend, python)}", brings(backend)
    return None


def check_commands(engines: Iterable[EngineSpec]) -> None:
    """Refuse the first engine whose server could not be started for want of its command, or of its image or who runs that;
    nothing is started for it. What is attached by URL needs none. Raises EnvironmentProblemError with what brings the engine, and
    UsageError for a container of which nobody says what to start in it."""
    for engine in engines:
        backend = get_backend(engine.backend)
        if not backend.capabilities.launches:
            continue
        if engine.container is not None:
            inner_command(backend, engine.container, engine.command)
            try:
                find_image(engine.container)
            except EngineError as error:
                raise EnvironmentProblemError(f"Engine {engine.label!r} cannot be started. {error}") from None
            continue
        try:
            command = backend.command(engine.command)
        except EngineError as error:
            how = brings(engine.backend)
            words = f"{error} `dyno doctor` says: {how}" if how else str(error)
            raise EnvironmentProblemError(f"Engine {engine.label!r} cannot be started. {words}") from None
        if shutil.which(command[0], path=engine.env.get("PATH")) is None:
            raise EnvironmentProblemError(
                f"Engine {engine.label!r} cannot be started: its command {command[0]!r} is not there or cannot be executed. "
                f"Correct `command` of the engine, or DYNO_{backend.name.upper()}_COMMAND."
            )
        if (python := python_without(command, backend.name, engine.env)) is not None:
            raise EnvironmentProblemError(
                f"Engine {engine.label!r} cannot be started: {lacks(backend.name, python)}. Name the Python of an environment "
                f"that has it, by `command` of the engine or DYNO_{backend.name.upper()}_COMMAND. `dyno doctor` says: "
                f"{brings(backend.name)}"
            )


def lacks(backend: str, python: str) -> str:
    """That a command names a Python without the engine, in words."""
    return f"there is no package `{backend}` in {python}, the Python of its command"
