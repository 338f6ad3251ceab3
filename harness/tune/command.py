"""The command that starts an engine as tuned, to be pasted; and, from the same plan, why settings cannot be started at all."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from backends.base import LaunchContext, LaunchPlan, get_backend
from backends.redact import public_argv, public_environment, public_text
from harness.experiment import EngineSpec
from harness.launch import HOST
from harness.models import ModelRef
from results.errors import UsageError

PORT = 8000
# Stands for a session's folder.
_FOLDER = Path("/dyno-session")


def plan_of(engine: EngineSpec, model: ModelRef, name: str) -> LaunchPlan:
    """How the engine would be started on this machine. Raises UsageError for settings it cannot be started with, EngineError
    where it is not installed."""
    backend = get_backend(engine.backend)
    command = () if engine.container is not None else backend.command(engine.command)
    image = engine.container.image if engine.container is not None else None
    context = LaunchContext(
        model=model.folder, served_name=name, settings=engine.settings, session_dir=_FOLDER, host=HOST, port=PORT,
        command=command, options=engine.options, env=engine.env, image=image,
    )  # fmt: skip
    return backend.launch_plan(context)


def refusal(
    engine: EngineSpec, model: ModelRef, name: str, base: EngineSpec | None = None, longest: int = 0
) -> str | None:
    """Why an engine with these settings cannot be started, would not take a request of `longest` tokens, or would be no other than
    `base`; None where nothing speaks against it."""
    asked = engine.settings
    own = model.config.get("max_position_embeddings")
    context = asked.max_model_len or (own if isinstance(own, int) else None)
    if asked.max_model_len is not None and asked.max_model_len < longest:
        return f"the longest request has {longest:,} tokens, and it takes {asked.max_model_len:,}"
    budget = asked.max_num_batched_tokens
    if budget is not None and asked.chunked_prefill is False and context is not None and budget < context:
        return f"without chunked prefill a step must take the longest request, {context:,} tokens, and it takes fewer"
    if budget is not None and asked.max_num_seqs is not None and budget < asked.max_num_seqs:
        return "a step takes fewer tokens than there may be requests to decode"
    try:
        plan = plan_of(engine, model, name)
    except UsageError as error:
        return str(error)
    if base is not None and replace(plan, notes=()) == replace(plan_of(base, model, name), notes=()):
        return "the command that starts it is that of the defaults"
    return None


def launch_words(engine: EngineSpec, model: ModelRef, name: str) -> str:
    """The lines to paste into a shell: files that the engine needs, then the command with its environment. Secrets are not in
    it, nor what only serves the measuring."""
    plan = plan_of(engine, model, name).to_serve(_own(engine))
    secrets = engine.secrets()
    lines = []
    argv = list(plan.argv)
    for path, text in plan.files.items():
        here = path.name
        lines.append(f"cat > {shlex.quote(here)} <<'END'\n{public_text(text.rstrip(), secrets)}\nEND")
        argv = [word.replace(str(path), here) for word in argv]
    env = public_environment(plan.env)
    words = [f"{key}={value}" for key, value in env.items()]
    command = shlex.join(public_argv(argv, secrets))
    if engine.container is not None:
        lines.append(f"# in a container of {engine.container.image}:")
    lines.append(" ".join([*(_assigned(word) for word in words), command]))
    return "\n".join(lines)


def measuring_words(engine: EngineSpec, model: ModelRef, name: str) -> list[str]:
    """What `launch_words` leaves out of the engine as it was measured: flags, variables, keys of its files."""
    return sorted(plan_of(engine, model, name).measuring - _own(engine) - {str(_FOLDER)})


def _own(engine: EngineSpec) -> set[str]:
    """The user's own words for the engine: what he asks for stays."""
    return {*engine.options, *engine.env}


def _assigned(word: str) -> str:
    name, _, value = word.partition("=")
    return f"{name}={shlex.quote(value)}"
