"""What a terminal of 80 columns shows: no table is wider, whatever engines and runs are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

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
