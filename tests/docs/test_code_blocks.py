"""Every fenced block of the documentation holds: commands are parsed and run, files are read by the code that reads them.

A block that cannot be tried says why in its info string (```sh not run: it needs Docker), and is counted here, so that a page cannot
be emptied of what is tried without anybody seeing it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.experiment import experiment_from
from tests.docs.blocks import BLOCKS, PAGES, ROOT, SHELL, Block, inline_commands
from tests.docs.commands import PARSED, RUN, filled_in, find_command, flags_of, make_runs, parse
from tests.harness.cli.conftest import Result
from tests.harness.cli.conftest import dyno as dyno  # the fixture
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_tokens import TokenSchedule

Dyno = Callable[..., Result]
# Pages with blocks that are not run, and how many. One more, or one less, is said here.
NOT_RUN = {"docs/compare-on-your-gpu.md": 1, "docs/tensorrt-llm.md": 2, "docs/workloads.md": 1}
# Programs whose lines are for the reader's machine: nothing of them is ours to try.
ELSEWHERE = frozenset({"docker", "git", "nvidia-smi", "pip", "ray", "source", "sudo", ".", "cd"})
# At least so many commands of dyno stand in blocks that are tried.
LEAST_COMMANDS = 50

TRIED = [block for block in BLOCKS if not block.reason]
SHELL_BLOCKS = [block for block in TRIED if block.is_shell]
COMMANDS = [words for block in SHELL_BLOCKS for words in block.commands() if words[0] == "dyno"]


def of(*languages: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in TRIED if block.language in languages]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str], str]]:
    """A folder as the documentation's reader has it: runs/, and the YAML files that pages name in their first line; the id of a cell
    of each run; and a server."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "runs").mkdir()
    for block in TRIED:
        if block.language == "yaml" and (named := re.match(r"# ([\w.-]+\.yaml)\n", block.text)):
            (folder / named[1]).write_text(block.text, encoding="utf-8")
    with FakeServer(TokenSchedule(model="smollm2-135m")) as server:
        yield folder, make_runs(folder / "runs", COMMANDS), server.url


def test_every_block_is_of_a_kind_that_is_tried_or_says_why_not() -> None:
    known = SHELL | {"yaml", "json", "python", "toml", "sql"}
    assert [str(block) for block in TRIED if block.language not in known] == []
    assert [str(block) for block in BLOCKS if block.reason and len(block.reason) < 10] == []


def test_as_many_blocks_are_left_out_as_were_counted() -> None:
    assert Counter(block.page for block in BLOCKS if block.reason) == NOT_RUN
    assert len(COMMANDS) >= LEAST_COMMANDS


def test_each_command_of_dyno_is_either_run_or_has_a_reason() -> None:
    assert not RUN.keys() & PARSED.keys()
    for words in COMMANDS:
        name, node = parse(words)
        assert name in RUN or name in PARSED or "--help" in words, f"say in tests/docs how `dyno {name}` is tried"
        assert node is not None


@pytest.mark.parametrize("words", [pytest.param(w, id=" ".join(w)[:70]) for w in COMMANDS if find_command(w)[0] in RUN])
def test_commands_do_what_they_are_there_for(
    words: list[str], place: tuple[Path, dict[str, str], str], dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cells, url = place
    monkeypatch.chdir(folder)
    # A plan starts no engine, so any interpreter does.
    monkeypatch.setenv("DYNO_VLLM_COMMAND", f"{sys.executable} -m vllm.entrypoints.openai.api_server")
    # Which engines are installed here says nothing of the page; tests/harness/cli/test_missing_engines.py tries that.
    monkeypatch.setattr("harness.brings.check_commands", lambda engines: None)
    name, node, _ = find_command(words)
    dry = ["--dry-run"] if "--dry-run" in flags_of(node) and "--dry-run" not in words else []
    found = dyno(*filled_in(words, cells, url)[1:], *dry)
    assert found.code in RUN[name], found.err or found.out
    assert found.out.strip() or "--out" in words


@pytest.mark.parametrize("block", [pytest.param(b, id=str(b)) for b in SHELL_BLOCKS])
def test_other_commands_are_there(block: Block) -> None:
    for words in block.commands():
        if words[0] == "make":
            done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        elif words[0] == "python":
            file = words[2].replace(".", "/") if words[1] == "-m" else words[1]
            assert any((ROOT / place).exists() for place in (file, f"{file}.py", f"{file}/__main__.py")), words
        else:
            assert words[0] == "dyno" or words[0] in ELSEWHERE, f"what is `{words[0]}`?"


@pytest.mark.parametrize("block", of("yaml"))
def test_experiments_and_their_parts_are_valid(block: Block) -> None:
    given = yaml.safe_load(block.text)
    assert isinstance(given, dict)
    whole = {
        "model": "random-tiny",
        "engines": [{"label": "reference", "backend": "reference"}],
        "workloads": [
            {
                "type": "random",
                "input_len": {"dist": "fixed", "tokens": 32},
                "output_len": {"dist": "fixed", "tokens": 8},
            }
        ],
        "loads": [{"mode": "batch", "batch": 1, "waves": 1}],
    }
    experiment_from({**whole, **given}, str(block))


@pytest.mark.parametrize("block", of("json", "toml"))
def test_data_can_be_read(block: Block) -> None:
    assert {"json": json.loads, "toml": tomllib.loads}[block.language](block.text)


@pytest.mark.parametrize("block", of("python"))
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "page"})


def _inline() -> Iterator[Any]:
    for page in PAGES:
        for command in inline_commands(page):
            yield pytest.param(command, id=f"{page.name}: {command[:60]}")


@pytest.mark.parametrize("command", list(_inline()))
def test_commands_in_the_text_name_what_there_is(command: str) -> None:
    words = command.split()
    if words[1] == "COMMAND":
        return
    _, node, rest = find_command(words)
    named = {
        word.partition("=")[0] for word in rest[: rest.index("--") if "--" in rest else None] if word.startswith("--")
    }
    assert named <= flags_of(node), f"{command}: no such flag"
