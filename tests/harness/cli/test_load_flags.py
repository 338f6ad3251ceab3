"""The flags of open loops, durations and how answers are asked for: what they make, and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.values import positive_numbers, seconds
from results.errors import UsageError

SWEEP = ("sweep", "--backend", "reference", "--model", "random-tiny")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rate", "0"), "--rate: '0' is not a number above zero"),
        (("--rate", "-5"), "--rate: '-5'"),
        (("--rate", "nan"), "--rate: 'nan'"),
        (("--rate", "inf"), "--rate: 'inf'.*use --batch"),
        (("--rate", "1,,2"), "--rate: ''"),
        (("--rate", "1e9"), r"--rate: 1e\+09 is beyond"),
        (("--rate", "1", "--burstiness", "0"), "--burstiness: '0'"),
        (("--rate", "1", "--burstiness", "-1"), "--burstiness: '-1'"),
        (("--rate", "inf", "--burstiness", "0.5"), "--rate: 'inf'"),
        (("--rate", "1", "--arrivals", "gamma"), "--arrivals gamma needs --burstiness"),
        (("--rate", "1", "--arrivals", "constant", "--burstiness", "2"), "--burstiness is the shape of gamma.*constant"),
        (("--rate", "1", "--arrivals", "poison"), "kind of arrivals 'poison'.*mean 'poisson'"),
        (("--batch", "1", "--arrivals", "poisson"), "--arrivals goes with --rate or --ramp"),
        (("--batch", "1", "--burstiness", "2"), "--burstiness goes with --rate or --ramp"),
        (("--batch", "1", "--max-in-flight", "2"), "--max-in-flight goes with --rate or --ramp"),
        (("--rate", "1", "--max-in-flight", "0"), "--max-in-flight: '0'"),
        (("--ramp", "5"), "--ramp takes two rates.*given: '5'"),
        (("--ramp", "0:5"), "--ramp: '0'"),
        (("--ramp", "1:5", "--requests", "5", "--duration", "5"), "either requests or duration_s"),
        (("--rate", "1", "--duration", "0"), "--duration: '0'"),
        (("--rate", "1", "--duration", "fast"), "--duration: 'fast'"),
        (("--rate", "1000", "--duration", "24h"), "86,400,000 requests are more than one cell may hold"),
        (("--preset", "quick", "--duration", "5"), "--duration changes the loads of --batch"),
        (("--batch", "1", "--rate", "1"), "--batch wants exact lengths.*--exact-lengths"),
        (("--batch", "1", "--max-tokens", "64"), r"max_tokens \(64\) must be above the longest output \(64\)"),
        (("--batch", "1", "--workers", "0"), "--workers: '0'"),
        (("--batch", "4", "--workers", "2"), "2 workers cannot share a batch.*concurrency or a rate"),
        (("--concurrency", "2", "--workers", "3"), "3 workers are more than the 2 requests"),
        (("--rate", "9", "--max-in-flight", "2", "--workers", "3"), "3 workers are more than the 2 requests"),
        (("--rate", "9", "--requests", "2", "--workers", "3"), "3 workers are more than the 2 requests that rate sends"),
        (("--batch", "1", "--endpoint", "chatt"), "endpoint 'chatt'.*mean 'chat'"),
    ],
)  # fmt: skip
def test_a_load_that_cannot_be_is_refused_by_its_flag(
    dyno: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = dyno(*SWEEP, *words)
    assert result.code == 2, result.err
    assert re.search(message, result.err, re.S), result.err
    assert len(result.err.strip().splitlines()) == 1, result.err
    assert not list(tmp_path.iterdir())


def test_chat_without_a_tokenizer_is_refused_before_anything_is_asked_of_the_server(dyno: Callable[..., Any]) -> None:
    words = ("sweep", "--url", "http://127.0.0.1:9", "--model", "m", "--tokenizer", "llama-7b", "--rate", "1")
    result = dyno(*words, "--endpoint", "chat")
    assert result.code == 2
    assert "Name a folder with its tokenizer.json by --tokenizer" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--url", "http://127.0.0.1:9"),
            "the vocabulary of 'of-nobody' is not known here. Say whose it is with --tokenizer",
        ),
        (
            ("--url", "http://127.0.0.1:9", "--tokenizer", "llama-7b", "--endpoint", "chat"),
            "its tokenizer.json by --tokenizer",
        ),
        (("--backend", "reference"), "Unknown model 'of-nobody'"),
    ],
)
def test_a_plan_is_refused_where_the_run_would_be_for_its_model(
    dyno: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for dry in (("--dry-run",), ()):
        result = dyno("sweep", *words, "--model", "of-nobody", "--rate", "1", *dry)
        assert (result.code, result.out) == (2, ""), result.err
        assert message in result.err
        assert not list(tmp_path.iterdir())
    there = dyno(
        "sweep",
        "--url",
        "http://127.0.0.1:9",
        "--tokenizer",
        "llama-7b",
        "--model",
        "of-nobody",
        "--rate",
        "1",
        "--dry-run",
    )
    assert there.code == 0, there.err


def plan(dyno: Callable[..., Any], *words: str) -> dict[str, Any]:
    result = dyno(*SWEEP, *words, "--dry-run", "--json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def loads(found: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted((cell["load"] for cell in found["order"]), key=lambda load: load.get("rate", 0))


def test_rates_are_poisson_for_a_minute_unless_told_otherwise(dyno: Callable[..., Any]) -> None:
    found = plan(dyno, "--rate", "2,0.5")
    assert loads(found) == [
        {"mode": "rate", "rate": 0.5, "arrival": "poisson", "duration_s": 60.0},
        {"mode": "rate", "rate": 2.0, "arrival": "poisson", "duration_s": 60.0},
    ]
    assert found["requests"] == 30 + 120
    # Like closed loops, open ones spread their lengths.
    assert found["order"][0]["workload"]["output_len"]["dist"] == "uniform"


def test_burstiness_makes_gamma_arrivals(dyno: Callable[..., Any]) -> None:
    (load,) = loads(plan(dyno, "--rate", "2", "--burstiness", "0.5", "--requests", "40", "--max-in-flight", "8"))
    assert load == {
        "mode": "rate", "rate": 2.0, "arrival": "gamma", "burstiness": 0.5, "requests": 40, "max_in_flight": 8,
    }  # fmt: skip


def test_a_ramp_and_a_load_of_unknown_size(dyno: Callable[..., Any]) -> None:
    found = plan(dyno, "--ramp", "1:9", "--concurrency", "4", "--duration", "1.5m")
    ramp, loop = sorted(loads(found), key=lambda load: str(load["mode"]), reverse=True)
    assert ramp == {"mode": "ramp", "from_rate": 1.0, "to_rate": 9.0, "arrival": "poisson", "duration_s": 90.0}
    assert loop == {"mode": "concurrency", "concurrency": 4, "duration_s": 90.0}
    assert (found["requests"], found["output_tokens"]) == (None, None)
    text = dyno(*SWEEP, "--concurrency", "4", "--duration", "9", "--dry-run").out
    assert "as many as fit into the time" in text


def test_answers_the_client_ends_and_how_they_are_asked_for(dyno: Callable[..., Any]) -> None:
    found = plan(dyno, "--batch", "2", "--output-len", "8", "--max-tokens", "100", "--endpoint", "chat", "--no-stream")
    assert found["order"][0]["workload"]["max_tokens"] == 100
    plain = plan(dyno, "--batch", "2", "--output-len", "8", "--max-tokens", "100")
    assert found["order"][0]["id"] != plain["order"][0]["id"]


def test_times_are_read_with_their_units() -> None:
    assert [seconds("--duration", text) for text in ("90", "90s", "1.5m", "0.5H")] == [90, 90, 90, 1800]
    with pytest.raises(UsageError, match="at most"):
        seconds("--duration", "9999h")
    assert positive_numbers("--rate", "2, 0.5,2", "1") == [2.0, 0.5]


@pytest.mark.parametrize(
    ("words", "short"),
    [
        (("--concurrency", "1,8"), "1 of 2 cells"),  # by default four requests a slot, but 16 at the least
        (("--concurrency", "8", "--requests", "96"), ""),
        (("--concurrency", "8", "--requests", "95"), "1 of 1 cell"),
        (("--concurrency", "8", "--duration", "120s"), ""),
        (("--concurrency", "8", "--duration", "30s"), "1 of 1 cell"),
        (("--batch", "8", "--exact-lengths", "--blocks", "2"), "2 of 2 cells"),
        (("--rate", "1", "--duration", "20s"), "1 of 1 cell"),
        (("--rate", "1"), ""),
        (("--rate", "1,4", "--requests", "40"), "1 of 2 cells"),
        (("--ramp", "1:5", "--duration", "20s"), ""),
    ],
)
def test_a_plan_says_which_cells_are_too_short_for_a_steady_window(
    dyno: Callable[..., Any], words: tuple[str, ...], short: str
) -> None:
    said = " ".join(dyno(*SWEEP, *words, "--dry-run").out.split())
    assert f"No steady window is to be expected in {short}: " in said if short else "steady window" not in said
    assert ("--duration 120s" in said) == bool(short)
