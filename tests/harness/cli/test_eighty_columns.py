"""What a terminal of 80 columns shows: no table is wider, whatever engines and runs are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len

from harness.cli.commands import app
from tests.harness.cli.conftest import Result
from tests.results.builders import synthetic_run

Dyno = Callable[..., Result]
LONG = "vllm-with-a-label-that-goes-on-and-on-for-eighty-characters-as-one-may-be-given"
ENGINES = (f"{LONG}-a"[-80:], f"{LONG}-b"[-80:])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of long names."""
    folder = tmp_path_factory.mktemp("narrow")
    synthetic_run(
        folder / "runs", ENGINES, (1, 16), blocks=2, name="a-run-of-a-quite-long-name-too", mode="concurrency"
    )
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("report", "RUN"),
        ("report", "RUN", "--cells"),
        ("compare", "RUN"),
        ("regress", f"RUN:{ENGINES[0]}", f"RUN:{ENGINES[1]}"),
        ("runs",),
        ("presets",),
        ("models",),
        ("backends",),
        ("studies", "--list"),
        ("doctor",),
        ("kv", "llama-3.1-405b", "--batch", "64"),
        ("roofline", "deepseek-v3", "--device", "h200"),
    ],
    ids=lambda words: words[0],
)
def test_nothing_is_wider_than_the_terminal(
    words: tuple[str, ...], place: Path, dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    found = dyno(*(word.replace("RUN", "runs/a-run-of-a-quite-long-name-too") for word in words), columns=80)
    assert found.code in (0, 3), found.err
    wide = [line for line in found.out.splitlines() if cell_len(line) > 80]
    # A path or a command that is to be copied stays whole.
    assert [line for line in wide if len(line.split()) > 3 and not line.strip().startswith(("export ", "Cells "))] == []


def test_every_cell_is_listed_by_its_id_with_what_it_is(tmp_path: Path, dyno: Dyno) -> None:
    run = synthetic_run(tmp_path, ("a", "b"), mode="concurrency").path
    lines = dyno("report", str(run), "--cells", columns=80).out.splitlines()
    ids = [line.split()[0] for line in lines if line[:1].strip()]
    assert sorted(ids[1:]) == sorted(path.parent.name for path in run.glob("cells/*/cell.json"))
    assert all(word in "\n".join(lines) for word in ("in flight", "128 in / 16 out", "VALID"))


def commands() -> dict[str, Any]:
    """Every command by its words."""
    found: dict[str, Any] = {}
    nodes = [("", typer.main.get_command(app))]
    while nodes:
        name, node = nodes.pop()
        found[name] = node
        nodes += [(f"{name} {word}".strip(), inner) for word, inner in getattr(node, "commands", {}).items()]
    return found


def test_the_usage_of_no_command_has_brackets_in_brackets_and_all_name_arguments_alike() -> None:
    for name, node in commands().items():
        usage = " ".join(node.collect_usage_pieces(typer.Context(node)))
        assert "[[" not in usage, name
        shown = [p.metavar for p in node.params if isinstance(p, typer.core.TyperArgument)]
        assert all(metavar and metavar.split(".")[0].isupper() for metavar in shown), (name, shown)


def test_the_help_of_many_options_is_in_panels_and_leaves_room_for_words(dyno: Dyno) -> None:
    many = [name for name, node in commands().items() if len(node.params) > 12]
    assert {"sweep", "tune", "regress"} <= set(many)
    for name in many:
        lines = dyno(*name.split(), "--help", columns=80).out.splitlines()
        assert max(map(cell_len, lines)) <= 80
        assert sum(line.startswith("╭") for line in lines) >= 4
        shown = [p for p in commands()[name].params if isinstance(p, typer.core.TyperOption)]
        assert sum(p.rich_help_panel is None for p in shown) <= 4
        # A column is as wide as its longest entry, and descriptions get what is left.
        assert [p.metavar for p in shown if len(p.metavar or "") > 12] == []
