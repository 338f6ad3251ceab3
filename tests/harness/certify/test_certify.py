"""Certifying a load tool: a small tool of our own that lies by a known amount, and tools that fail."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from harness.certify.card import Card, error_card
from harness.certify.certify import certify
from harness.certify.reported import Figures, Reported
from harness.certify.tool import ToolRun, run_tool, tool_version
from harness.cli.certify import print_card
from harness.cli.commands import app
from harness.truth.schedule import Schedule
from harness.truth.stamps import Truth
from results.clock import NS_PER_MS
from results.errors import EngineError, UsageError
from tests.waiting import LONG_S, wait_until

# Sends one request to warm up and then four, reads each answer whole, and reports a TTFT of 70 ms and one token too many.
TOOL = """
import json, os, sys, urllib.request
url, model, tokenizer, out = sys.argv[1:5]
assert os.path.exists(tokenizer + "/tokenizer.json")
for _ in range(5):
    body = json.dumps({"model": model, "prompt": [1, 2], "max_tokens": 6, "stream": True}).encode()
    urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", body)).read()
json.dump({"completed": 4, "total_output_tokens": 25, "output_throughput": 300.0, "mean_ttft_ms": 70.0, "median_ttft_ms": 70.0,
           "p99_ttft_ms": 71.0, "mean_tpot_ms": 2.0, "median_tpot_ms": 2.0, "p99_tpot_ms": 2.0}, open(out + "/result.json", "w"))
"""
PLACES = ["{url}", "{model}", "{tokenizer}", "{out}"]
SCHEDULE = Schedule(ttft_ms=20, gap_ms=2)


def _tool(code: str = TOOL) -> list[str]:
    return [sys.executable, "-c", code, *PLACES]


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    return certify(_tool(), tmp_path_factory.mktemp("certify"), SCHEDULE)


def test_the_card_holds_the_tool_against_the_truth(card: Card) -> None:
    ttft = card.row("TTFT p50")
    assert ttft.true is not None
    assert ttft.true >= 20
    assert ttft.error == pytest.approx(70 - ttft.true)
    tokens = card.row("output tokens")
    assert (tokens.true, tokens.reported, tokens.error) == (24, 25, 1)
    assert card.row("requests").error == 0
    assert card.others == 1
    tpot = card.row("TPOT mean")
    assert tpot.true is not None
    assert tpot.true > 0
    assert tpot.error == pytest.approx(2 - tpot.true)
    assert 0 < card.tool.cpu_s < 60
    assert card.cpu_us_per_token == pytest.approx(card.tool.cpu_s * 1e6 / 24)


def test_the_card_is_printed_as_a_table(card: Card, capsys: pytest.CaptureFixture[str]) -> None:
    print_card(card)
    shown = capsys.readouterr().out
    assert "TTFT p50" in shown
    assert "+1 (+4.2%)" in shown
    assert "(warm-up): 1." in shown


def test_a_version_of_odd_characters_is_printed_as_it_stands(card: Card, capsys: pytest.CaptureFixture[str]) -> None:
    print_card(replace(card, version="[/bold]\x1b[31m1"))
    assert "[/bold]\ufffd[31m1" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1"])
def test_a_timeout_that_is_no_time_is_refused(seconds: str) -> None:
    ran = CliRunner().invoke(app, ["certify", "--timeout", seconds, "--", *_tool()])
    assert isinstance(ran.exception, UsageError)
    assert "--timeout" in str(ran.exception)


def test_the_command_answers_in_json() -> None:
    ran = CliRunner().invoke(app, ["certify", "--ttft-ms", "20", "--gap-ms", "2", "--json", "--", *_tool()])
    assert ran.exit_code == 0, ran.output
    answer = json.loads(ran.stdout)
    assert answer["tool"] == "vllm"
    assert answer["figures"]["output tokens"] == {
        "name": "output tokens",
        "unit": "tokens",
        "true": 24,
        "reported": 25,
        "error": 1,
    }
    assert answer["schedule"]["gap_ms"] == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; print('out of luck'); sys.exit(3)", "ended with status 3(.|\n)*out of luck"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9"),
        ("print('did nothing')", "answered no request in full"),
    ],
)
def test_a_tool_that_fails_is_an_engine_error_with_its_last_words(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(EngineError, match=words) as raised:
        certify(_tool(code), tmp_path, SCHEDULE)
    assert raised.value.exit_code == 4


def test_a_tool_that_does_not_end_is_killed_with_all_below_it(tmp_path: Path) -> None:
    below = "[sys.executable, '-c', 'import time; time.sleep(600)', 'straggler']"
    child = f"import subprocess, sys, time; subprocess.Popen({below}); time.sleep(600)"
    with pytest.raises(EngineError, match=r"did not end within 0\.5 s"):
        run_tool([sys.executable, "-c", child], tmp_path / "log", 0.5)
    me = psutil.Process()
    wait_until(
        lambda: not any("straggler" in _words(p) for p in me.children(recursive=True)), "the end of all below it"
    )


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_cpu_time_holds_that_of_processes_below(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], check=True)"
    assert run_tool([sys.executable, "-c", below], tmp_path / "log", LONG_S).cpu_s >= 0.3


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["tool", "--out", "{out}"], "none of {url}"),
        (["tool", "{url}"], "does not hold {out}"),
        (["no-such-tool-at-all", "{url}", "{out}"], "no program 'no-such-tool-at-all'"),
    ],
)
def test_a_command_that_cannot_work_is_refused(tmp_path: Path, command: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        certify(command, tmp_path, SCHEDULE)
    assert raised.value.exit_code == 2


def test_a_tool_without_a_known_result_is_refused(tmp_path: Path) -> None:
    silent = TOOL.replace("/result.json", "/result.txt")
    with pytest.raises(UsageError, match="No result of a known load tool"):
        certify(_tool(silent), tmp_path / "a", SCHEDULE)
    # Named, it is read wherever it is; a file that was there before is not taken for a result.
    elsewhere = tmp_path / "elsewhere.json"
    moved = TOOL.replace('out + "/result.json"', repr(str(elsewhere)))
    assert certify(_tool(moved), tmp_path / "b", SCHEDULE, result=elsewhere).reported.tool == "vllm"


def test_dyno_itself_is_certified(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "harness.cli",
        "sweep",
        "--backend",
        "openai",
        "--url",
        "{url}",
        "--concurrency",
        "4",
    ]
    command += [
        "--requests",
        "16",
        "--input-len",
        "16",
        "--output-len",
        "8",
        "--tokenizer",
        "{tokenizer}",
        "--out",
        "{out}/run",
    ]
    card = certify(command, tmp_path, SCHEDULE)
    assert card.reported.tool == "dyno"
    assert card.row("requests").error == 0
    assert card.row("output tokens").error == 0
    assert card.others >= 4
    # How large the errors are is for benchmarks/client.py: on a busy machine they are the machine's.
    assert None not in (card.row("TTFT p50").error, card.row("TPOT p50").error)


def _truth(ttfts: list[int]) -> Truth:
    n = len(ttfts)
    received = np.arange(n) * 1000 * NS_PER_MS
    first = received + np.array(ttfts) * NS_PER_MS
    sent = np.column_stack([first, first + 10 * NS_PER_MS]).ravel()
    return Truth(
        request_id=np.array([None] * n, dtype=object),
        index=np.arange(n),
        received=received,
        input_tokens=np.ones(n, dtype=np.int64),
        output_tokens=np.full(n, 2),
        outcome=np.array(["done"] * n, dtype=object),
        start=np.arange(n + 1) * 2,
        due=sent,
        sent=sent,
        tokens=np.ones(2 * n, dtype=np.int64),
    )


def _reported(**changes: Any) -> Reported:
    none = Figures(None, None, None)
    fields: dict[str, Any] = {"requests": 2, "output_tokens": None, "output_tokens_per_s": None, "ttft_ms": none}
    return Reported(**{"tool": "t", "version": None, "tpot_ms": none, "tpot_called": "TPOT", **fields, **changes})


def test_requests_before_the_measured_ones_are_no_part_of_the_truth() -> None:
    card = error_card(_truth([500, 20, 40]), _reported(ttft_ms=Figures(33.0, None, None)), ToolRun([], 1, 1), "7")
    assert card.others == 1
    assert card.row("TTFT mean").true == pytest.approx(30)
    assert card.row("TTFT mean").error == pytest.approx(3)
    assert card.row("TPOT p50").true == pytest.approx(10)
    assert card.row("TTFT p99").error is None
    assert card.row("output tokens").error is None
    assert card.version == "7"


def test_requests_are_known_by_their_ids_where_a_tool_tells_them() -> None:
    truth = _truth([20, 40, 500])
    truth.request_id[:] = ["c-load-0", "c-load-1", "c-check-0"]
    card = error_card(truth, _reported(id_prefix="c-load-"), ToolRun([], 1, 1), None)
    assert card.row("TTFT mean").true == pytest.approx(30)
    assert card.others == 1


def test_a_tool_that_reports_more_requests_than_came_is_shown_so() -> None:
    card = error_card(_truth([20, 40]), _reported(requests=5), ToolRun([], 1, 1), None)
    assert card.row("requests").error == 3
    assert card.others == 0


def test_the_version_is_asked_of_the_python_that_the_tool_runs_in(tmp_path: Path) -> None:
    assert tool_version([sys.executable, "x"], ("no-such-package", "numpy")) == np.__version__
    script = tmp_path / "tool"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    assert tool_version([str(script)], ("numpy",)) == np.__version__
    assert tool_version(["/bin/sh"], ("numpy",)) is None
    assert tool_version([sys.executable], ("no-such-package",)) is None
    assert tool_version(["no-such-tool-at-all"], ("numpy",)) is None
