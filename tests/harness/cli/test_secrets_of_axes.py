"""Keys among the options that a search or a sweep varies, and in the caller's environment: they start engines, and are written
and shown nowhere."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.axes import expand
from harness.axis_labels import public_options
from harness.experiment import experiment_from
from results.errors import UsageError
from results.store import RunStore
from tests.harness.cli.test_axes import REST
from tests.harness.fake_sessions import FAKE

KEY, BAD = "sk-SECRETSECRET123456", "tk-OTHERSECRET654321"
COMMAND = shlex.join([sys.executable, "-S", "-E", str(FAKE)])
ENGINE = f"label=fake,backend=reference,command={COMMAND}"
ARGS = ("--model", "random-tiny", "--concurrency", "2", "--requests", "16", "--input-len", "8", "--output-len", "8")


def places_of(secret: str, folder: Path) -> list[str]:
    """Where a text stands below a folder: names, and files whatever they are."""
    found = [str(path) for path in folder.rglob("*") if secret[:12] in path.name]
    return found + [str(path) for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_no_file_of_a_search_holds_a_key_and_the_same_command_completes_it(
    dyno: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def words(key: str) -> list[str]:
        # The fake takes the first and stumbles over the second, naming it in its log.
        vary = f"options=--api-key={key},--auth-token={BAD}"
        return ["tune", "--engine", ENGINE, *ARGS, "--vary", vary, "--trials", "3", "--blocks", "1", "--out", "r"]

    plan = dyno(*words(KEY), "--dry-run")
    assert (plan.code, "api-key=*** and auth-token=***" in plan.out) == (0, True), plan
    first = dyno(*words(KEY))
    assert first.code == 3, first.err
    run = RunStore.open(Path("r"))
    assert [s["engine"] for s in run.sessions()] == [
        "fake",
        "fake-options=api-key=***",
        "fake-options=auth-token=***",
    ]
    assert run.sessions()[-1]["failure"]
    answer = json.loads(Path("r/tune.json").read_text())
    assert answer["engines"][0]["best"]["settings"] == {"options": ["--api-key=***"]}
    assert "options='--api-key=***'" in str(run.manifest), "the command is kept, without its key"
    again = dyno(*words("sk-NEWKEYNEWKEY"))
    assert again.code == 3, again.err
    assert len(run.sessions()) == 3, "a new key is no new search"
    for secret in (KEY, BAD, "sk-NEWKEYNEWKEY"):
        assert not places_of(secret, tmp_path)
        assert secret not in "".join((plan.out, plan.err, first.out, first.err, again.out, again.err))


def test_engines_that_only_a_key_tells_apart_have_labels_of_their_own_and_their_own_key() -> None:
    keys = [f"sk-SECRET{n}SECRET" for n in range(3)]
    options = [["--api-key", keys[0]], ["--api-key", keys[1], "--x"], ["--api-key", keys[2]], []]
    entry = {"label": "v", "backend": "vllm", "options": options}
    asked = experiment_from({**REST, "engines": [entry]}, "it")
    labels = [engine.label for engine in asked.engines]
    assert labels == [
        "v-options=api-key+***",
        "v-options=api-key+***+--x",
        "v-options=api-key+***2",
        "v-options=none",
    ]
    assert [list(engine.options) for engine in asked.engines] == options
    assert "SECRET" not in asked.to_yaml()


def test_a_flag_of_the_engine_itself_makes_the_varied_word_a_secret() -> None:
    assert public_options([["sk-a"], ["sk-b"]], ["--seed", "3", "--api-key"]) == [["***"], ["***2"]]
    assert public_options([["--api-key", "sk-123456", "--greeting", "I am sk-123456"]])[0][-1] == "I am ***"
    assert public_options([["--a"], ["--a"]]) == [["--a"], ["--a"]]


def test_a_mistake_is_told_without_the_key_in_it() -> None:
    entry = {"label": "v", "backend": "vllm", "options": f"--x 1 --api-key {KEY}"}
    with pytest.raises(UsageError, match=r"engines.0.options: .*given: '--x 1 --api-key \*\*\*'"):
        experiment_from({**REST, "engines": [entry]}, "it")


@pytest.mark.parametrize("options", [[["--api-key", KEY], []], [f"--api-key={KEY}", "--seed 3"]])
def test_a_sweep_shows_none_of_them(options: list[Any], dyno: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    if not isinstance(options[0], list):
        options = [shlex.split(words) for words in options]
    path.write_text(json.dumps({**REST, "engines": [{"label": "v", "backend": "reference", "options": options}]}))
    result = dyno("sweep", str(path), "--model", "random-tiny", "--dry-run")
    assert result.code == 0, result.err
    assert "v-options=api-key" in result.out
    assert KEY not in result.out + result.err
    assert not [
        label for label in (e["label"] for e in expand(json.loads(path.read_text())["engines"]).engines) if KEY in label
    ]


@pytest.mark.parametrize("fault", ["", " --exit-while-loading 3"])
def test_no_file_of_a_run_holds_a_key_of_the_callers_environment(
    fault: str, dyno: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = f"started with {KEY} and {BAD}"
    monkeypatch.setenv("DYNO_REFERENCE_COMMAND", f"{COMMAND} --api-key {KEY} --message {shlex.quote(said)}{fault}")
    monkeypatch.setenv("HF_TOKEN", BAD)
    monkeypatch.setenv("VLLM_EXTRA", f"--header 'X-Api-Key: {KEY}'")
    done = dyno("sweep", "--engine", "label=fake,backend=reference", *ARGS, "--out", "r")
    assert done.code == (4 if fault else 0), done.err
    (session,) = RunStore.open(Path("r")).sessions()
    assert "--api-key" in session["argv"]
    assert session["env"]["VLLM_EXTRA"].startswith("--header")
    assert any("started with *** and ***" in log.read_text() for log in Path("r").rglob("server.log"))
    for secret in (KEY, BAD):
        assert not places_of(secret, tmp_path)
        assert secret not in done.out + done.err
