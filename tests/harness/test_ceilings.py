"""Measured ceilings: what the child measures, what is kept in the manifest, and what happens when it cannot."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import ceilings
from harness.ceilings_probe import fitting, fp8_gemm, together, tries
from results.ceilings import Ceilings, ceilings_of
from results.errors import EnvironmentProblemError
from results.store import RunWriter
from tests.waiting import LONG_S


def test_the_best_and_the_median_of_as_many_tries_as_fit() -> None:
    now, lasts = [0.0], [9.0, 0.5, 0.1, 0.2, 0.4]

    def once() -> None:
        now[0] += lasts.pop(0)

    found = tries(10.0, once, 0.5, lambda: now[0])
    # The first is not counted; the time is up after the next, but three are the least.
    assert found == {"best": pytest.approx(100.0), "median": pytest.approx(50.0), "n": 3}


@pytest.mark.parametrize(
    ("flop_per_s", "largest", "side"),
    [(1e8, 1024, 128), (1e9, 1024, 256), (1e10, 1024, 512), (4e10, 1024, 1024), (1e14, 1000, 1000), (1e14, 64, 64)],
)
def test_a_slow_product_is_measured_on_smaller_squares(flop_per_s: float, largest: int, side: int) -> None:
    now, calls = [0.0], [0]

    def product(of: int) -> Callable[[], None]:
        def once() -> None:
            calls[0] += 1
            stalled = 0.1 if calls[0] == 2 else 0.0  # another process had the core
            now[0] += 2.0 * of**3 / flop_per_s + stalled

        return once

    assert fitting(largest, product, lambda: now[0]) == side


def test_bf16_is_held_against_fp32_where_that_is_faster() -> None:
    rate = {"best": 20e9, "median": 20e9, "n": 3}
    row = {"device": "cpu", "name": "this CPU", "threads": 2, "read": rate, "copy": rate}

    def measured(bf16: float, fp32: float) -> Ceilings:
        gemm = {name: {"best": best, "median": best, "n": 3} for name, best in (("bf16", bf16), ("fp32", fp32))}
        found = ceilings_of({"ceilings": {"devices": [{**row, "gemm": gemm}]}})
        assert found is not None
        return found

    without = measured(bf16=1e9, fp32=9e10)
    assert without.flops == {"bf16": 9e10, "fp32": 9e10}
    assert "bf16 widened to fp32" in without.words_for("bfloat16")
    assert "widened" not in without.words_for("float32")
    # fp8 weights of an engine on a CPU are computed in 16 bit, and so in fp32 too.
    assert "bf16 widened to fp32" in without.words_for("fp8")
    assert len(without.products) == 1
    for bf16 in (3e11, 8.5e10):  # one that has the instructions, and one whose tries were disturbed
        having = measured(bf16=bf16, fp32=9e10)
        assert having.flops == {"bf16": bf16, "fp32": 9e10}
        assert "widened" not in having.words_for("bfloat16")
        assert len(having.products) == 2


def test_rounds_are_one_figure_with_the_best_of_all_tries() -> None:
    rounds = [{"best": best, "median": best / 2, "n": 3} for best in (134.0, 214.0, 90.0)]
    assert together(rounds) == {"best": 214.0, "median": 67.0, "n": 9}


def test_an_fp8_product_is_measured_where_torch_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fp8_gemm("cpu", 64, 0.01)
    assert 0 < found["fp8"]["median"] <= found["fp8"]["best"]

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("not on this device")

    monkeypatch.setattr("torch._scaled_mm", refuse)
    assert fp8_gemm("cpu", 64, 0.01) == {}


def test_this_machine_has_ceilings_with_one_thread_and_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_LIMIT_S", LONG_S)
    found = ceilings.measure_ceilings(0.02)
    one = ceilings_of({"ceilings": found}, 1, "cpu")
    assert one is not None
    assert one.threads == 1
    # Any machine reads more than 0.1 GB/s and does more than a GFLOP/s; none reads 100 TB/s.
    assert 1e8 < one.read.median <= one.read.best < 1e14
    assert one.flops["fp32"] > 1e9
    assert one.bytes_per_s >= one.read.best
    assert "1 thread" in one.words
    # The child that measures is no other work.
    assert 0 <= found["others_cpu"] <= 1


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (subprocess.TimeoutExpired("x", 32.0), "took more than 32 s"),
        (subprocess.CalledProcessError(1, "x", stderr="Traceback\nMemoryError: too little"), "MemoryError: too little"),
        (subprocess.CalledProcessError(-9, "x", stderr=""), "exit code -9"),
        (OSError("no such file"), "could not be measured"),
    ],
)
def test_a_child_that_fails_is_told_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, words: str
) -> None:
    def fail(*given: Any, **options: Any) -> Any:
        raise failure

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(EnvironmentProblemError, match=words):
        ceilings.measure_ceilings()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with RunWriter.start(tmp_path / "run", "{}", {"start": {}}) as writer:
        yield writer


def test_they_are_measured_once_a_run_and_the_switch_leaves_them_out(
    monkeypatch: pytest.MonkeyPatch, store: RunWriter
) -> None:
    calls: list[int] = []

    def measured() -> dict[str, Any]:
        calls.append(1)
        return {"devices": []}

    monkeypatch.setattr(ceilings, "measure_ceilings", measured)
    monkeypatch.setenv(ceilings.SWITCH, "skip")
    ceilings.keep_ceilings(store)
    assert "ceilings" not in store.manifest
    monkeypatch.delenv(ceilings.SWITCH)
    ceilings.keep_ceilings(store)
    ceilings.keep_ceilings(store)
    assert len(calls) == 1
    assert store.manifest["ceilings"]["devices"] == []


def test_a_run_goes_on_without_them_and_says_why(monkeypatch: pytest.MonkeyPatch, store: RunWriter) -> None:
    def fail() -> dict[str, Any]:
        raise EnvironmentProblemError("no memory")

    monkeypatch.setattr(ceilings, "measure_ceilings", fail)
    monkeypatch.delenv(ceilings.SWITCH, raising=False)
    ceilings.keep_ceilings(store)
    assert store.manifest["ceilings"]["reason"] == "no memory"
    assert ceilings_of(store.manifest) is None
