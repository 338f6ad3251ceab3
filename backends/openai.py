"""Attach to a server that already runs and speaks OpenAI's completions protocol. Nothing is launched, nothing stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from backends.base import Backend, Capabilities, EngineSettings, LaunchContext, LaunchPlan, MetricRule, Resolved, Source
from backends.http_probe import ProbeError, Reply, ServerURL, Trouble, get
from backends.prometheus import parse_prometheus
from backends.vllm_metrics import CACHE_CONFIG, VLLM_METRICS, cache_settings
from results.errors import EngineError, UnknownNameError, UsageError

KEY_VARIABLE = "DYNO_API_KEY"
FALLBACK_KEY_VARIABLE = "OPENAI_API_KEY"
MODELS_PATH = "/v1/models"
METRICS_PATH = "/metrics"
HEALTH_PATH = "/health"
_TRY_S = 5.0
_PAUSE_S = 0.2


class OpenAIBackend(Backend):
    """Any OpenAI-compatible server, by URL."""

    name: ClassVar[str] = "openai"
    words: ClassVar[str] = "a server that already runs at a URL (vLLM, SGLang, llama.cpp, a gateway, ...)"
    capabilities: ClassVar[Capabilities] = Capabilities(launches=False)
    ready_path: ClassVar[str] = MODELS_PATH
    metrics: ClassVar[tuple[MetricRule, ...]] = VLLM_METRICS

    def default_command(self) -> tuple[str, ...]:
        raise UsageError("Backend 'openai' attaches to a running server and starts none: give its --url.")

    def launch_plan(self, context: LaunchContext) -> LaunchPlan:
        raise UsageError("Backend 'openai' attaches to a running server and starts none: give its --url.")

    def api_key_env(self) -> str | None:
        """DYNO_API_KEY where it is set (empty: send no key), else OPENAI_API_KEY where that is."""
        if KEY_VARIABLE in os.environ:
            return KEY_VARIABLE if os.environ[KEY_VARIABLE].strip() else None
        return FALLBACK_KEY_VARIABLE if os.environ.get(FALLBACK_KEY_VARIABLE, "").strip() else None

    def settings_paths(self) -> tuple[str, ...]:
        return (MODELS_PATH, METRICS_PATH, "/version")

    def check_attached(self, url: str, timeout_s: float) -> None:
        """Wait until GET /health, else /v1/models, answers 200. Raises UsageError for the URL, EngineError for the rest.

        A server that is there but says 503 is waited for; one that cannot be reached, or wants a key, is told at once.
        """
        target = ServerURL.parse(url)
        key_env = self.api_key_env()
        deadline = time.monotonic() + timeout_s
        while True:
            trouble: ProbeError | None = None
            try:
                reply = self._ready_reply(target, min(_TRY_S, timeout_s), key_env)
            except ProbeError as error:
                if error.trouble is not Trouble.TIMEOUT:
                    raise
                trouble = error
            else:
                if reply.status == 200:
                    return
                if reply.status in (401, 403):
                    raise EngineError(refused_key(target, reply.status, key_env))
                if reply.status != 503:
                    raise EngineError(
                        f"{target} answers {HEALTH_PATH} and {MODELS_PATH} with HTTP {reply.status}: it does not look like the "
                        "root of an OpenAI-compatible server. Leave out what follows the port, or check the path."
                    )
            if time.monotonic() + _PAUSE_S > deadline:
                raise trouble or EngineError(
                    f"The server at {target} answers, but says HTTP 503 (not ready) for {timeout_s:g} s. "
                    "Look into its log, or wait until its model is loaded."
                )
            time.sleep(_PAUSE_S)

    @staticmethod
    def _ready_reply(target: ServerURL, timeout_s: float, key_env: str | None) -> Reply:
        reply = get(target, HEALTH_PATH, timeout_s, key_env)
        # Gateways have no /health, or guard it otherwise than the API; a 503 there is an answer.
        return reply if reply.status in (200, 503) else get(target, MODELS_PATH, timeout_s, key_env)

    def served_name(self, asked: str, documents: Mapping[str, Any]) -> str:
        """The id requests must carry. "" takes the one model that is served."""
        served = served_models(documents.get(MODELS_PATH))
        if not served:
            if asked:
                return asked
            raise EngineError(f"The server does not list its models at {MODELS_PATH}. Name one with --model.")
        if asked in served:
            return asked
        if not asked and len(served) == 1:
            return served[0]
        hint = "Give --model the name by which the server knows it."
        if not asked:
            raise UsageError(f"The server serves several models: {', '.join(sorted(served))}. {hint}")
        raise UnknownNameError("model at that server", asked, served, hint)

    def resolved_settings(self, asked: EngineSettings, documents: Mapping[str, Any], log: str) -> dict[str, Resolved]:
        resolved = {name: Resolved(value, Source.ASKED) for name, value in asked.asked().items()}
        entries = _entries(documents.get(MODELS_PATH))
        lengths = {e["max_model_len"] for e in entries if isinstance(e.get("max_model_len"), int)}
        if len(lengths) == 1:  # several models of different lengths: nothing is known of the one in use
            resolved["max_model_len"] = Resolved(lengths.pop(), Source.ENDPOINT)
        if isinstance(text := documents.get(METRICS_PATH), str):
            found = cache_settings(parse_prometheus(text, {CACHE_CONFIG}))
            resolved |= {name: Resolved(value, Source.ENDPOINT) for name, value in found.items()}
        return resolved

    def versions(self, documents: Mapping[str, Any], log: str) -> dict[str, str]:
        document = documents.get("/version")
        if isinstance(document, dict) and isinstance(document.get("version"), str):
            return {"server": document["version"]}
        return {}


def served_models(document: Any) -> list[str]:
    """Model ids from a decoded GET /v1/models."""
    ids = [entry["id"] for entry in _entries(document) if isinstance(entry.get("id"), str)]
    return [name for name in ids if name and name.isprintable()]  # what cannot be shown cannot be asked for either


def refused_key(target: ServerURL, status: int, key_env: str | None) -> str:
    """What to do about a 401 or 403; never shows the key."""
    if key_env is None:
        return f"{target} wants a key (HTTP {status}). Set the environment variable {KEY_VARIABLE} to it."
    return f"{target} refuses the key in {key_env} (HTTP {status}). Set {KEY_VARIABLE} to the key of this server."


def _entries(document: Any) -> list[dict[str, Any]]:
    data = document.get("data") if isinstance(document, dict) else None
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


BACKEND = OpenAIBackend()
