"""How a command of the documentation is tried: every one is parsed by the real command line, most are run on small runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from harness.cli.commands import app
from tests.results.builders import synthetic_run

# Run as they stand (or with --dry-run, where they have it): exit codes that answer the question that was asked.
RUN: dict[str, tuple[int, ...]] = {
    "backends": (0,),
    "baseline make": (0,),
    "baseline update": (0, 1),
    "compare": (0, 1, 3),
    "doctor": (0, 4),
    "export": (0,),
    "kv": (0,),
    "models": (0,),
    "presets": (0,),
    "regress": (0, 1, 3),
    "report": (0,),
    "roofline": (0,),
    "runs": (0,),
    "sweep": (0,),
    "tune": (0,),
    "why": (0,),
}
# Only parsed, and why.
PARSED = {
    "backends check": "starts a server for a minute; tests/harness/test_conformance.py runs it",
    "baseline": "a group of commands",
    "calibrate": "measures for minutes; tests/harness/calibration runs it",
    "certify": "runs a load tool; tests/harness/certify runs it",
    "history": "reads commits; tests/harness/cli/test_regress.py runs it",
    "import": "reads a file of another tool; tests/harness/cli/test_import.py runs it",
    "models fetch": "may download; tests/harness/test_models_cli.py runs it",
    "profile": "starts a server; tests/harness/test_profile.py runs it",
    "serve": "serves until it is stopped; tests/backends/reference/test_server.py runs it",
    "twin": "asks a run's steps of real time; tests/harness/twin runs it",
    "studies": "takes minutes; tests/harness/studies runs them",
    "verify": "starts engines; tests/harness/verify runs it",
}
_SERVER = re.compile(r"http://[\d.]+:\d+")
_RUN_NAME = re.compile(r"\bruns/([\w.-]+)(?::([\w.-]+))?")


def find_command(words: list[str]) -> tuple[str, Any, list[str]]:
    """`dyno` and what follows as the command's name, the command, and its own words. AssertionError for one there is not."""
    assert words[0] == "dyno", words
    node: Any = typer.main.get_command(app)
    name, rest = "", words[1:]
    while rest and not rest[0].startswith("-") and isinstance(node, typer.core.TyperGroup):
        assert rest[0] in node.commands, f"there is no `dyno {name} {rest[0]}`"
        node, name, rest = node.commands[rest[0]], f"{name} {rest[0]}".strip(), rest[1:]
    return name, node, rest


def parse(words: list[str]) -> tuple[str, Any]:
    """Have the real command line read the words; its complaint is the error. The command's name and itself."""
    name, node, rest = find_command(words)
    if "--help" not in rest:
        node.make_context(name, list(rest))
    return name, node


def flags_of(node: Any) -> set[str]:
    """Every flag of a command."""
    return {flag for parameter in node.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def make_runs(folder: Path, commands: Iterable[list[str]]) -> dict[str, str]:
    """A synthetic run of five blocks for every run that the commands read, with the engines that they name. The id of a cell of
    each, by the run's name."""
    engines: dict[str, set[str]] = {}
    for words in commands:
        name = find_command(words)[0]
        if name in RUN and name not in ("sweep", "tune"):
            for run, engine in _RUN_NAME.findall(" ".join(words)):
                engines.setdefault(run, set()).update({engine} if engine else ())
    cells = {}
    for run, labels in engines.items():
        names = sorted(labels) if labels else ["large", "small"]
        cells[run] = synthetic_run(folder, names, (1,), blocks=5, name=run).cells()[0].id
    return cells


def filled_in(words: list[str], cells: dict[str, str], url: str) -> list[str]:
    """The same with CELL put in, of the run that the words name, and a server that is there for the page's. What would measure anew
    is left out."""
    found = _RUN_NAME.search(" ".join(words))
    known = [cells.get(found[1], word) if word == "CELL" and found else word for word in words]
    return [_SERVER.sub(url, word) for word in known if word != "--confirm"]
