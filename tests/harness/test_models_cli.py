"""`dyno models`: list and fetch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.models import app
from results.errors import UnknownNameError, UsageError


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "dyno" / "models"


def dyno_models(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_fetch_says_what_it_did_and_where_it_lies(own_cache: Path) -> None:
    assert dyno_models("fetch", "random-tiny").splitlines()[-1] == str(own_cache / "random-tiny")
    assert "already there" in dyno_models("fetch", "random-tiny")
    assert "verified" in dyno_models("fetch", "random-tiny", "--verify")


def test_fetch_as_json_is_the_row_of_the_list(own_cache: Path) -> None:
    row = json.loads(dyno_models("fetch", "random-tiny", "--json"))
    assert (row["cached"], row["source"], row["folder"]) == (True, "generated", str(own_cache / "random-tiny"))
    assert row in json.loads(dyno_models("list", "--json"))["models"]


def test_the_list_tells_cached_missing_and_damaged(own_cache: Path) -> None:
    dyno_models("fetch", "random-tiny")
    text = dyno_models()
    assert dyno_models("list") == text
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "KiB" in lines["random-tiny"]
    assert lines["smollm2-135m"].split()[1] == "no"
    assert "llama-7b" in text
    (own_cache / "random-tiny" / "config.json").unlink()
    assert "damaged" in dyno_models()
    row = json.loads(dyno_models("--json"))["models"][1]
    assert (row["cached"], row["damaged"], row["size"]) == (False, "config.json: No such file or directory", None)


def test_mistakes_are_typed_errors() -> None:
    with pytest.raises(UnknownNameError):
        CliRunner().invoke(app, ["fetch", "nope"], catch_exceptions=False)
    with pytest.raises(UsageError, match="--source nope"):
        CliRunner().invoke(app, ["fetch", "smollm2-135m", "--source", "nope"], catch_exceptions=False)
