"""`dyno serve`: the reference engine as an OpenAI-compatible server."""

from __future__ import annotations

import typer

# The engine's own parser knows its flags; they are passed on unread, `--help` too, so that they are written once.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def serve(context: typer.Context) -> None:
    """Serve MODEL with the reference engine (`dyno serve --help` lists the engine's flags).

    Example: `dyno serve smollm2-135m --port 8000 --max-num-seqs 16`
    """
    from backends.reference.__main__ import main as engine_main

    words = list(context.args)
    if words and not words[0].startswith("-"):
        from harness.models import resolve_model

        model = resolve_model(words[0])
        words[0] = str(model.folder)
        if not any(w.startswith("--served-model-name") for w in words):
            words += ["--served-model-name", model.name]
    raise typer.Exit(engine_main(words, prog="dyno serve"))
