"""Studies: quick runs count what they claim on the tiny model, not where the switch does nothing; the clock needs a quiet machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.reference.config import EngineSettings, read_model_config
from backends.reference.switches import Switches
from harness.studies import batch, chunks, memory, paging, phases
from harness.studies.arm import Arm, Arrival, Step
from harness.studies.clock import in_rounds
from harness.studies.kept import how_words
from harness.studies.lab import Lab
from harness.studies.runner import Done, write
from harness.studies.study import HOLDS, MISSED, OPEN, Clock, Curve, Finding, Outcome, over_steps
from harness.studies.table import STUDIES
from reports.study_page import bounds_words
from results.errors import UsageError

# The settings that are a study's switch, as an engine has them that ignores it.
IGNORED: dict[str, dict[str, Any]] = {
    **{name: {"switches": Switches()} for name in ("batching", "memory", "paging", "prefixes", "recompute")},
    "chunks": {"max_num_batched_tokens": 2048},
}


def stuck(lab: Lab, ignored: dict[str, Any]) -> Lab:
    """The same lab with engines that ignore a switch."""

    class StuckLab(Lab):
        def settings(self, max_model_len: int, **asked: Any) -> EngineSettings:
            return super().settings(max_model_len, **{**asked, **ignored})

    return StuckLab(lab.name, lab.folder, lab.config)


@pytest.fixture
def lab(tiny_dir: Path) -> Lab:
    return Lab("random-tiny", tiny_dir, read_model_config(tiny_dir))


@pytest.fixture
def two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is believed here that is timed."""
    for module in (batch, chunks, memory, paging, phases):
        monkeypatch.setattr(module, "QUICK_ROUNDS", 2)


@pytest.mark.usefixtures("two_rounds")
@pytest.mark.parametrize("name", STUDIES)
def test_a_quick_study_counts_what_it_claims_on_the_tiny_model(lab: Lab, name: str) -> None:
    outcome = STUDIES[name].run(lab, True)
    missed = [f for f in outcome.findings if f.clock is None and not f.holds]
    assert not missed  # what is timed depends on the machine, and on a tiny model says little
    assert outcome.verdict == HOLDS or any(f.clock for f in outcome.findings)
    assert outcome.curves
    assert all(curve.points for curve in outcome.curves)


@pytest.mark.usefixtures("two_rounds")
@pytest.mark.parametrize("name", IGNORED)
def test_a_study_whose_switch_does_nothing_does_not_hold_by_what_it_counts(lab: Lab, name: str) -> None:
    outcome = STUDIES[name].run(stuck(lab, IGNORED[name]), True)
    assert outcome.verdict == MISSED
    assert any(f.clock is None and not f.holds for f in outcome.findings)


def test_every_study_with_a_switch_of_the_engine_is_tried_with_one_that_is_stuck() -> None:
    assert {name for name, study in STUDIES.items() if "--" in study.switch} - {"phases"} == set(IGNORED)


@pytest.mark.parametrize("name", ["batching", "prefixes", "recompute"])
def test_what_is_counted_does_not_depend_on_dtype_and_weights(lab: Lab, name: str) -> None:
    drawn = Lab(lab.name, lab.folder, lab.config, dtype="bfloat16", load_format="dummy")
    assert STUDIES[name].run(drawn, True).verdict == HOLDS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("two_rounds")
@pytest.mark.parametrize("name", ["batching", "paging", "prefixes", "recompute"])
def test_a_study_counts_the_same_on_a_gpu(lab: Lab, name: str) -> None:
    there = Lab(lab.name, lab.folder, lab.config, dtype="bfloat16", load_format="dummy", device="cuda")
    assert not [f for f in STUDIES[name].run(there, True).findings if f.clock is None and not f.holds]


def test_engines_that_pytorch_computes_share_their_weights(lab: Lab) -> None:
    lab.rig(64, kv_cache_tokens=256)
    first = lab.weights["float32"]
    lab.rig(64, kv_cache_tokens=512)
    assert lab.weights["float32"] is first


def test_a_device_is_in_every_setting_and_in_words(lab: Lab) -> None:
    there = Lab(lab.name, lab.folder, lab.config, dtype="bfloat16", device="cuda")
    assert (there.settings(64).device, there.words) == ("cuda", "random-tiny, bfloat16, cuda")
    assert there.machine.most > lab.machine.most


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_a_line_over_steps_says_what_every_step_does(running: list[int]) -> None:
    steps = [Step(i, 0, 1, 0, 1, 0, n, *[0] * 9) for i, n in enumerate(running)]
    curve = over_steps(Arm("arm", [], steps, [], 1, 1, 1, 1))
    at, values = zip(*curve.points, strict=True)
    assert np.interp(np.arange(1, len(running) + 1), at, values).tolist() == running
    assert len(at) <= 2 * (1 + sum(a != b for a, b in pairwise(running)))


@pytest.mark.parametrize(
    ("positions", "quick", "contexts"),
    [
        (8192, False, (128, 512, 1024, 2048)),
        (8192, True, (128, 1024)),
        (2048, False, (128, 512, 1024)),
        (1024, False, (128, 512)),
        (1024, True, (128, 512)),
    ],
)
def test_contexts_are_timed_that_the_model_has_positions_for(
    lab: Lab, positions: int, quick: bool, contexts: tuple[int, ...]
) -> None:
    assert memory._contexts(_of_positions(lab, positions), quick) == contexts


def test_a_study_whose_requests_do_not_fit_a_model_is_refused_with_both_numbers(lab: Lab) -> None:
    short = _of_positions(lab, 512)
    with pytest.raises(UsageError, match=r"take 600 positions, and random-tiny has 512: .*--shape"):
        short.rig(1024, max_num_seqs=1, kv_cache_tokens=1024).begin([[5] * 593], 8)


@pytest.mark.parametrize("positions", [200, 512])
def test_a_model_too_short_for_two_contexts_is_refused_before_anything_runs(lab: Lab, positions: int) -> None:
    with pytest.raises(UsageError, match=rf"takes 600 positions, and random-tiny has {positions}: .*--shape"):
        STUDIES["memory"].run(_of_positions(lab, positions), True)


@pytest.mark.usefixtures("two_rounds")
def test_a_steps_growth_is_judged_by_the_bytes_at_the_contexts_that_were_timed(lab: Lab) -> None:
    short = _of_positions(lab, 1024)
    found = next(f for f in STUDIES["memory"].run(short, True).findings if f.clock)
    assert found.words.endswith("context 512 / 128, same weights")
    kept = lab.machine.decodes * lab.config.kv_bytes_per_token("float32")
    weights = short.rig(64, kv_cache_tokens=256).weight_bytes
    assert found.low == pytest.approx(0.9 * (weights + 512 * kept) / (weights + 128 * kept), abs=0.05)


# SmolLM2-135M in bfloat16, whose steps at these contexts were measured (docs/studies/memory.md): 1.23, 1.59 and 2.39 of that at 128.
@pytest.mark.parametrize(("longest", "times"), [(512, 1.24), (1024, 1.56), (2048, 2.21)])
def test_bytes_tell_how_much_longer_a_step_is(longest: int, times: float) -> None:
    assert memory.bytes_ratio(269_030_016, 8 * 23_040, 128, longest) == pytest.approx(times, abs=0.005)


def _of_positions(lab: Lab, positions: int) -> Lab:
    return Lab(lab.name, lab.folder, replace(lab.config, max_position=positions))


def test_an_arm_counts_what_its_steps_say(lab: Lab) -> None:
    settings = EngineSettings("float32", 64, max_num_seqs=2, kv_cache_tokens=256)
    arm = lab.run("two", settings, [Arrival(0, [1] * 8, 4), Arrival(0, [2] * 8, 4), Arrival(0, [3] * 8, 4)])
    assert arm.computed == 3 * (8 + 3)  # a request's last token is never computed on
    assert arm.in_flight == 2
    assert arm.made(2)[0].step > arm.made(0)[-1].step
    assert arm.gaps(0) == [2, 2, 2]
    assert arm.preemptions == 0


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(None, None, True), (3, None, True), (3.1, None, False), (None, 2.9, False), (3, 3, True)],
)
def test_a_finding_holds_inside_its_bounds(low: float | None, high: float | None, holds: bool) -> None:
    assert Finding("three", 3, low, high).holds is holds


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (4, 4, "4"),
        (20, 45, "20 to 45"),
        (0.95, 1.1, "0.95 to 1.1"),
        (3, None, "at least 3"),
        (None, 0, "at most 0"),
        (None, None, "any"),
    ],
)
def test_bounds_are_told_in_words(low: float | None, high: float | None, words: str) -> None:
    assert bounds_words(low, high) == words


def test_a_study_holds_when_all_its_findings_do_and_there_are_some() -> None:
    good, bad = Finding("a", 1, 0, 2), Finding("b", 3, 0, 2)
    assert Outcome([good], []).verdict == HOLDS
    assert Outcome([good, bad], []).verdict == MISSED
    assert Outcome([], []).verdict == MISSED


@pytest.mark.parametrize(
    ("low", "high", "verdict", "why"),
    [
        (3.6, 3.9, HOLDS, ""),
        (3.0, 3.4, MISSED, ""),
        (3.4, 3.7, OPEN, "the spread is too wide: 3.4 to 3.7 over 7 rounds"),
        (None, None, OPEN, "7 rounds give no interval"),
    ],
)
def test_what_is_timed_has_a_verdict_where_its_whole_interval_lies_on_one_side(
    low: float | None, high: float | None, verdict: str, why: str
) -> None:
    finding = Finding("a ratio", 3.55, 3.5, None, Clock(low, high, 7))
    assert (finding.verdict, finding.why_open) == (verdict, why)


def test_a_busy_machine_gives_no_verdict() -> None:
    finding = Finding("a ratio", 9, 3.5, None, Clock(8.9, 9.1, 7, "the machine was busy"))
    assert finding.verdict == OPEN
    assert Outcome([finding, Finding("a count", 1, 1, 1)], []).verdict == OPEN
    assert Outcome([finding, Finding("a count", 2, 1, 1)], []).verdict == MISSED


def test_arms_run_in_turn_and_ratios_are_of_one_round() -> None:
    ran: list[str] = []
    pace = iter(range(1, 100))

    def arm(name: str, times: float) -> Callable[[], float]:
        def run() -> float:
            ran.append(name)
            place = next(pace)
            return times * ((place + 1) // 2) * (1 + 0.001 * (place % 3))  # slower from round to round, and it scatters

        return run

    found = in_rounds(5, {"a": arm("a", 1.0), "b": arm("b", 3.0)})
    assert ran[2:6] == ["a", "b", "b", "a"]  # after the round that is thrown away
    found.others[:] = [0.0] * 5
    finding = found.finding("b / a", "b", "a", 2.9, 3.1)
    assert finding.value == pytest.approx(3, rel=0.01)
    assert finding.verdict == HOLDS
    found.others[:] = [0.5] * 5
    assert found.finding("b / a", "b", "a", 2.9, 3.1).why_open == "the machine was busy: others used 50 % of its CPU"


def test_one_run_of_an_arm_may_give_several_times() -> None:
    found = in_rounds(2, {"a": lambda: {"gap": 1.0, "wait": 6.0}, "b": lambda: 3.0})
    assert found.seconds == {"a, gap": [1.0, 1.0], "a, wait": [6.0, 6.0], "b": [3.0, 3.0]}
    assert found.finding("wait / gap", "a, wait", "a, gap", None, None).value == pytest.approx(6)


def test_a_rig_runs_arm_after_arm_as_a_fresh_engine_does(lab: Lab) -> None:
    arrivals = [Arrival(0, [1] * 8, 4), Arrival(2, [2] * 8, 4)]
    rig = lab.rig(64, kv_cache_tokens=256)
    counts = [[(s.step, s.prefill_tokens, s.decodes) for s in rig.run("again", arrivals).steps] for _ in range(2)]
    assert counts[0] == counts[1]
    rig.begin([[3] * 8, [4] * 20], 16)
    assert rig.decode_s(3) > 0


def test_the_same_study_on_two_devices_stands_beside_itself(lab: Lab, tmp_path: Path) -> None:
    def ran(device: str, value: float) -> str:
        on = Lab(lab.name, lab.folder, lab.config, device=device)
        outcome = Outcome([Finding("rows", value, 1, 9)], [Curve("line", [(1, 2), (2, 4)])])
        return write(tmp_path, on, True, [Done(STUDIES["paging"], outcome, 0.1)]).read_text("utf-8")

    ran("cpu", 1)
    ran("cuda", 2)
    page = ran("cpu", 3)
    found = json.loads((tmp_path / "studies.json").read_text())["studies"]
    assert [(s["how"]["device"], s["findings"][0]["value"]) for s in found] == [("cpu", 3), ("cuda", 2)]
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert '<section id="paging-cuda"' in page
    assert f"{STUDIES['paging'].title} (cuda)" in page
    assert "device cuda" in page
    assert "2 of 2 hypotheses hold" in page


def test_a_kept_study_says_what_it_was_timed_on(lab: Lab, tmp_path: Path) -> None:
    def ran(name: str, shape: str, threads: int) -> str:
        timed = Lab(shape, lab.folder, lab.config, threads=threads, dtype="bfloat16")
        outcome = Outcome([Finding("rows", 2, 1, 9)], [Curve("line", [(1, 2), (2, 4)])])
        done = [Done(STUDIES[name], outcome, 0.1)]
        return write(tmp_path, replace(lab, clock=timed), True, done).read_text("utf-8")

    ran("phases", "qwen2.5-0.5b", 4)
    page = ran("batch", "smollm2-135m", 2)
    found = json.loads((tmp_path / "studies.json").read_text())["studies"]
    assert {s["name"]: s["how"]["timed"] for s in found} == {
        "phases": {"model": "qwen2.5-0.5b", "dtype": "bfloat16", "threads": 4},
        "batch": {"model": "smollm2-135m", "dtype": "bfloat16", "threads": 2},
    }
    assert "timed qwen2.5-0.5b (bfloat16, threads 4)." in page


def test_a_study_kept_by_an_earlier_version_says_that_it_is_not_told_what_was_timed() -> None:
    assert how_words({"model": "m", "quick": True}) == "model m, quick yes, timed not told"


def test_the_page_opens_from_disk_and_keeps_names_as_text(lab: Lab, tmp_path: Path) -> None:
    outcome = Outcome([Finding("<b>rows</b>", 3, 4, 5)], [Curve("<i>arm</i>", [(1, 2), (2, 4)])], ["<u>now</u>"])
    page = write(tmp_path / "out", lab, True, [Done(STUDIES["paging"], outcome, 0.1)]).read_text("utf-8")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert "<b>rows" not in page
    assert "<i>arm" not in page
    assert "<u>now" not in page
    assert "DOES NOT HOLD" in page
    assert "0 of 1 hypothesis holds" in page
    assert page.count('<svg class="plot"') == 2  # for a wide and for a narrow screen
