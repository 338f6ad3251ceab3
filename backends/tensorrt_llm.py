"""TensorRT-LLM 1.0 and newer, started by its script (`trtllm-serve`), as a rule in a container.

What is peculiar to it lives beside: `tensorrt_llm_reference` (what each version takes, from NVIDIA's own files),
`tensorrt_llm_config` (settings to its YAML), `tensorrt_llm_log` and `tensorrt_llm_metrics` (settings and statistics read back),
`tensorrt_llm_steps` (its steps), `tensorrt_llm_failures`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import yaml

from backends import tensorrt_llm_log as told_by_log
from backends import tensorrt_llm_steps
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
from backends.installed import Version, image_version, installed_version, parse_version, python_of, show_version
from backends.tensorrt_llm_config import SETTINGS, checkpoint_quantisation, is_engine, translate
from backends.tensorrt_llm_failures import TENSORRT_LLM_FAILURES
from backends.tensorrt_llm_metrics import TENSORRT_LLM_METRICS, capacity
from backends.tensorrt_llm_reference import OLDEST, Era, era_of, reference
from results.errors import EngineError, UsageError
from results.logged_steps import LoggedSteps

SCRIPT = "trtllm-serve"
MODELS_PATH, VERSION_PATH, STATS_PATH = "/v1/models", "/version", "/metrics"
CONFIG_FILE = "trtllm.yaml"
# The flag that names a served model; before, the id is the name of the model's folder.
_NAMES_MODEL: Version = (1, 4, 0)
_ENGINES_UNTIL: Version = (1, 4, 0)
_ENV = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TRTLLM_NO_USAGE_STATS": "1"}
# What nobody can set otherwise: what a request leaves open is its own neutral value, blocks are paged, slots refill.
_ALWAYS = {"sampling_source": "request"}


class TensorRTLLMBackend(Backend):
    """`trtllm-serve MODEL --extra_llm_api_options FILE ...`"""

    name: ClassVar[str] = "tensorrt_llm"
    words: ClassVar[str] = "TensorRT-LLM (1.0 and newer), on NVIDIA GPUs"
    capabilities: ClassVar[Capabilities] = Capabilities(
        continuous_usage=True, own_api_process=True, api_in_main_thread=True, step_log=True
    )
    settings: ClassVar[frozenset[str]] = SETTINGS
    fixed: ClassVar[Mapping[str, Any]] = {"batching": "continuous", "kv_layout": "paged", "kv_cache": True}
    metrics: ClassVar[tuple[MetricRule, ...]] = TENSORRT_LLM_METRICS
    metrics_reader: ClassVar[str | None] = "backends.tensorrt_llm_metrics:IterationReader"
    failures: ClassVar[tuple[FailurePattern, ...]] = TENSORRT_LLM_FAILURES
    in_container: ClassVar[InContainer | None] = InContainer((SCRIPT,))

    def default_command(self) -> tuple[str, ...]:
        """The script on PATH. Raises EngineError where it is not there."""
        if shutil.which(SCRIPT) is not None:
            return (SCRIPT,)
        raise EngineError(
            f"TensorRT-LLM is not installed: no `{SCRIPT}` on PATH. Run it in its container (`container: image=...` of the "
            "engine, see docs/tensorrt-llm.md), or name a command: export DYNO_TENSORRT_LLM_COMMAND=/path/to/trtllm-serve."
        )

    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        self.refuse_unsupported(context.settings)
        text, version = _version(context)
        known = reference(Era.V1_2 if version is None else era_of(version))
        notes = _remarks(text, version)
        engine = is_engine(context.model)
        if engine and version is not None and version >= _ENGINES_UNTIL:
            raise UsageError(
                f"{context.model} holds a built TensorRT engine, which TensorRT-LLM {text} does not serve any more: give the "
                "folder of the model's weights, or a version up to 1.3."
            )
        _check_quantisation(context)
        made = translate(context.settings, context.options, known, version is not None, context.model)
        config = context.session_dir / CONFIG_FILE
        argv = (
            *context.command,
            str(context.model),
            *("--host", context.host, "--port", str(context.port), "--log_level", "info"),
            *(("--backend", "tensorrt") if engine else ()),
            *(("--served_model_name", context.served_name) if version and version >= _NAMES_MODEL else ()),
            *("--extra_llm_api_options", str(config)),
            *made.words,
        )
        files = {config: yaml.safe_dump(made.config, sort_keys=True)}
        notes = [*notes, *made.notes]
        return LaunchPlan(argv, {**_ENV, **context.env}, files, tuple(notes), measuring=frozenset(made.measuring))

    def settings_paths(self) -> tuple[str, ...]:
        return (MODELS_PATH, VERSION_PATH, STATS_PATH)

    def resolved_settings(self, asked: EngineSettings, documents: Mapping[str, Any], log: str) -> dict[str, Resolved]:
        resolved = {name: Resolved(value, Source.ASKED) for name, value in asked.asked().items()}
        resolved |= {name: Resolved(value, Source.FIXED) for name, value in {**self.fixed, **_ALWAYS}.items()}
        told = told_by_log.settings_of(log)
        resolved |= {name: Resolved(value, Source.LOG) for name, value in told.items()}
        resolved |= {
            name: Resolved(value, Source.ENDPOINT) for name, value in capacity(documents.get(STATS_PATH)).items()
        }
        if "kv_cache_bytes" in resolved and "kv_cache_bytes" not in asked.asked() and asked.kv_cache_tokens is not None:
            del resolved["kv_cache_bytes"]
        _longest_prompt(resolved)
        return resolved

    def versions(self, documents: Mapping[str, Any], log: str) -> dict[str, str]:
        document = documents.get(VERSION_PATH)
        version = document.get("version") if isinstance(document, dict) else None
        found = version if isinstance(version, str) else told_by_log.version_of(log)
        return {} if found is None else {"tensorrt_llm": found}

    def startup_phases(self, log: str, now_wall_ns: int) -> dict[str, int]:
        return told_by_log.startup_phases(log, now_wall_ns)

    def logged_steps(self, lines: Iterable[str], now_wall_ns: int) -> LoggedSteps | str:
        return tensorrt_llm_steps.logged_steps(lines, now_wall_ns)

    def served_name(self, asked: str, documents: Mapping[str, Any]) -> str:
        """What the server lists: up to 1.3 that is the name of the model's folder, whatever was asked."""
        document = documents.get(MODELS_PATH)
        entries = document.get("data") if isinstance(document, dict) else None
        names = [str(entry["id"]) for entry in entries or () if isinstance(entry, dict) and "id" in entry]
        return asked if asked in names or not names else names[0]


def _version(context: LaunchContext) -> tuple[str, Version | None]:
    if context.image is not None:
        text = image_version(context.image)
    else:
        text = installed_version(python_of(context.command, SCRIPT), ("tensorrt_llm", "tensorrt-llm"))[1]
    return text, parse_version(text)


def _remarks(text: str, version: Version | None) -> list[str]:
    if version is None:
        return ["the command does not tell its version; only what every version takes is written"]
    if version < OLDEST:
        oldest = show_version(OLDEST)
        return [
            f"TensorRT-LLM {text} is older than {oldest} and untested: options are those of {oldest}, and it may refuse some"
        ]
    if (1, 3, 0) <= version < (1, 4, 0):
        return [f"TensorRT-LLM {text}: options are checked against those of 1.4.0rc, the nearest description at hand"]
    return []


def _check_quantisation(context: LaunchContext) -> None:
    """Weights are quantised in the checkpoint or not at all. Raises UsageError where that is not what was asked."""
    asked = context.settings.quantisation
    if asked is None:
        return
    own = checkpoint_quantisation(context.model)
    if asked.lower() != own:
        raise UsageError(
            f"quantisation={asked!r} was asked, and the weights in {context.model} are {'not quantised' if own == 'none' else own}. "
            "TensorRT-LLM serves what the checkpoint holds: give the folder of a checkpoint quantised so (NVIDIA publishes many "
            "in FP8 and NVFP4), or leave quantisation out."
        )


def _longest_prompt(resolved: dict[str, Resolved]) -> None:
    """Without chunked prefill a prompt has to fit into one step, and is refused where it does not."""
    chunked, tokens = resolved.get("chunked_prefill"), resolved.get("max_num_batched_tokens")
    if tokens is not None and chunked is not None and chunked.value is False:
        resolved["max_prompt_len"] = Resolved(tokens.value, tokens.source)


BACKEND = TensorRTLLMBackend()
