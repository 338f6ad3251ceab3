"""vLLM, GPU and CPU builds from 0.10 on, started by its script (`vllm serve`) or its module (`python -m ...api_server`).

What is peculiar to it lives beside: `vllm_version` (which one is it), `vllm_flags` (settings to flags), `vllm_info` and
`vllm_log` (settings read back), `vllm_steps` (its steps), `vllm_metrics`, `vllm_failures`.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from backends import vllm_info, vllm_log, vllm_steps
from backends.base import (
    Backend,
    Capabilities,
    EngineSettings,
    FailurePattern,
    InContainer,
    LaunchContext,
    LaunchPlan,
    MetricRule,
    Resolved,
    Source,
)
from backends.installed import image_version, parse_version
from backends.vllm_failures import VLLM_FAILURES
from backends.vllm_flags import SETTINGS, STEP_LOG, translate, with_step_log
from backends.vllm_metrics import VLLM_ENGINE_METRICS
from backends.vllm_steps import STAMP_FORMAT, STAMP_VARIABLE
from backends.vllm_version import MODULE, Build, find_build, interpreter_of, with_model
from results.errors import EngineError
from results.logged_steps import LoggedSteps

TARGET_DEVICE, DEV_MODE = "VLLM_TARGET_DEVICE", "VLLM_SERVER_DEV_MODE"
# No traffic but ours: the model is a folder, and nobody is told that it runs. A folder of the user's that happens to be
# named like a package of the engine's is not one.
_ENV = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


class VLLMBackend(Backend):
    """`vllm serve MODEL ...` or `python -m vllm.entrypoints.openai.api_server --model MODEL ...`"""

    name: ClassVar[str] = "vllm"
    words: ClassVar[str] = "vLLM (0.10 and newer), on GPUs or its CPU build"
    capabilities: ClassVar[Capabilities] = Capabilities(
        continuous_usage=True, return_token_ids=True, own_api_process=True, api_in_main_thread=True, step_log=True
    )
    settings: ClassVar[frozenset[str]] = SETTINGS
    fixed: ClassVar[Mapping[str, Any]] = {
        "admission": "on-demand",
        "batching": "continuous",
        "kv_layout": "paged",
        "kv_cache": True,
    }
    metrics: ClassVar[tuple[MetricRule, ...]] = VLLM_ENGINE_METRICS
    failures: ClassVar[tuple[FailurePattern, ...]] = VLLM_FAILURES
    in_container: ClassVar[InContainer | None] = InContainer(("vllm", "serve"), replaces_entrypoint=True)

    def default_command(self) -> tuple[str, ...]:
        """The script on PATH, else the module of this Python. Raises EngineError where neither is there.

        The script of a build that is not called `vllm` fails (it asks for its own version by that name): there the module
        of the script's Python is taken.
        """
        if (script := shutil.which("vllm")) is not None:
            python = interpreter_of(script)
            renamed = bool(python) and find_build((script, "serve")).distribution != "vllm"
            return (*python, "-m", MODULE) if renamed else ("vllm", "serve")
        if importlib.util.find_spec("vllm") is not None:
            return (sys.executable, "-m", MODULE)
        raise EngineError(
            f"vLLM is not installed: no `vllm` on PATH, no package `vllm` in {sys.executable}. Install it into an environment "
            f'of its own and name that one: export DYNO_VLLM_COMMAND="/path/to/venv/bin/python -m {MODULE}".'
        )

    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        self.refuse_unsupported(context.settings)
        if context.image is None:
            build = find_build(context.command)
        else:
            build = Build(parse_version(image_version(context.image)), image_version(context.image))
        inherited = {**os.environ, **context.env}
        cpu = build.is_cpu or inherited.get(TARGET_DEVICE, "") == "cpu"
        settings = with_step_log(context.settings, build)
        measuring = {STAMP_VARIABLE, DEV_MODE}
        own = translate(settings, build, inherited, cpu, context.cpus)
        env = dict(_ENV)
        if settings.step_log:
            env[STAMP_VARIABLE] = os.environ.get(STAMP_VARIABLE, STAMP_FORMAT)
            if context.settings.step_log is None:
                measuring.add(STEP_LOG)
                own.notes.append(
                    "it logs a line a step, from which the report tells what each held; step_log=false leaves that out"
                )
        if cpu:
            env[TARGET_DEVICE] = "cpu"
        if _is_loopback(context.host):
            env[DEV_MODE] = "1"  # Opens /server_info: every setting from the engine's own mouth.
        argv = (
            *with_model(context.command, str(context.model)),
            *("--host", context.host, "--port", str(context.port), "--served-model-name", context.served_name),
            # Sampling is what the requests say, the same for every engine; a line a request would cost the API process.
            *("--generation-config", "vllm", "--disable-uvicorn-access-log"),
            *own.flags,
            *context.options,
        )
        return LaunchPlan(
            argv, {**env, **own.env, **context.env}, notes=tuple(own.notes), measuring=frozenset(measuring)
        )

    def settings_paths(self) -> tuple[str, ...]:
        return vllm_info.PATHS

    def resolved_settings(self, asked: EngineSettings, documents: Mapping[str, Any], log: str) -> dict[str, Resolved]:
        resolved = {name: Resolved(value, Source.ASKED) for name, value in asked.asked().items()}
        resolved |= {name: Resolved(value, Source.FIXED) for name, value in self.fixed.items()}
        resolved |= {name: Resolved(value, Source.LOG) for name, value in vllm_log.settings_of(log).items()}
        resolved |= {
            name: Resolved(value, Source.ENDPOINT) for name, value in vllm_info.settings_from(documents).items()
        }
        device = resolved.get("device")
        on_cpu = device is not None and device.value == "cpu"
        if on_cpu:
            resolved["cuda_graphs"] = Resolved(False, Source.FIXED)
        if asked.memory_fraction is None and (on_cpu or asked.kv_cache_bytes is not None):
            resolved.pop("memory_fraction", None)  # The cache's size is given in bytes: the share has no say.
        if "kv_cache_tokens" in asked.asked() and resolved["kv_cache_tokens"].source is not Source.ASKED:
            resolved.pop("kv_cache_bytes", None)  # The log tells the memory that was free, not what was taken.
        kv, dtype = resolved.get("kv_dtype"), resolved.get("dtype")
        quantised = resolved.get("quantisation")
        if (
            kv is not None
            and kv.value == "auto"
            and dtype is not None
            and quantised is not None
            and quantised.value == "none"
        ):
            resolved["kv_dtype"] = Resolved(
                dtype.value, kv.source
            )  # `auto` of an unquantised model is the model's own.
        return resolved

    def versions(self, documents: Mapping[str, Any], log: str) -> dict[str, str]:
        found = vllm_info.versions_from(documents)
        if "vllm" not in found and (version := vllm_log.version_of(log)) is not None:
            found["vllm"] = version
        return found

    def startup_phases(self, log: str, now_wall_ns: int) -> dict[str, int]:
        return vllm_log.startup_phases(log, now_wall_ns)

    def logged_steps(self, lines: Iterable[str], now_wall_ns: int) -> LoggedSteps | str:
        return vllm_steps.logged_steps(lines)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


BACKEND = VLLMBackend()
