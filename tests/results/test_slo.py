"""Objectives: what share of the requests meets them, over which loads, and when that is not known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.cell_summary import summarise
from results.errors import UsageError
from results.events import Chunks, Requests, Samples
from results.slo import (
    MET,
    NOT_MET,
    UNDETERMINED,
    attainment,
    look_confidence,
    needed_requests,
    over_blocks,
    parse_slo,
    share_interval,
    slo_of,
    verdict,
)
from results.slo_points import SESSIONS, decided, highest_met, slo_points, slo_summary
from results.statistics import wilson
from tests.results.builders import plain_record, request_row
from tests.results.test_windows import scope_of

Rows = list[dict[str, Any]]


def requests(ttfts_s: list[float], tpot_s: float = 0.01, mode: str = "rate", **changes: Any) -> Any:
    rows = [request_row(f"r{i:04d}", i * 1.0, i + t, i + t + 9 * tpot_s, 10, **changes) for i, t in enumerate(ttfts_s)]
    return scope_of(rows, [], mode)


@pytest.mark.parametrize(
    ("texts", "share", "told", "joint"),
    [
        (["ttft_ms.p99<=200", "tpot_ms.p90 <= 50"], None, ["ttft_ms.p99<=200", "tpot_ms.p90<=50"], None),
        (["ttft_ms<=200"], None, ["ttft_ms<=200"], 0.95),
        (["e2e_ms.p99.9<2e3"], 0.9, ["e2e_ms.p99.9<=2000"], 0.9),
        (["scheduled_ttft_ms.p50<=1"], None, ["scheduled_ttft_ms.p50<=1"], None),
    ],
)
def test_objectives_are_read_as_typed(
    texts: list[str], share: float | None, told: list[str], joint: float | None
) -> None:
    slo = parse_slo(texts, share)
    assert (slo.texts, slo.share) == (told, joint)
    assert slo_of({"slo": {"objectives": slo.texts, "share": slo.share}}) == slo


@pytest.mark.parametrize(
    "text",
    ["", "ttft<=200", "ttft_ms.p99", "ttft_ms.p0<=1", "ttft_ms.p100<=1", "ttft_ms<=0", "ttft_ms<=1e", "tokens_ms<=1"],
)
def test_what_is_no_objective_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="--slo"):
        parse_slo([text])
    assert slo_of({"slo": {"objectives": [text]}}) is None


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 2.0])
def test_a_share_lies_between_nothing_and_everything(share: float) -> None:
    with pytest.raises(UsageError, match="slo-share"):
        parse_slo(["ttft_ms<=1"], share)


def test_a_cell_is_judged_by_the_share_and_its_interval() -> None:
    slo = parse_slo(["ttft_ms.p90<=200"])
    good, bad = [0.1] * 200, [0.1] * 140 + [0.5] * 60
    order = np.random.default_rng(1).permutation(200)
    assert attainment(requests(good), slo)["met"] == MET
    found = attainment(requests([bad[i] for i in order]), slo)
    row = found["objectives"][0]
    assert (found["met"], row["good"], row["n"]) == (NOT_MET, 140, 200)
    assert row["low"] < row["share"] == 0.7 < row["high"] < 0.9
    near = ([0.1] * 27 + [0.5] * 3) * 1
    assert attainment(requests([near[i] for i in np.random.default_rng(2).permutation(30)]), slo)["met"] == UNDETERMINED


def test_failed_requests_meet_nothing() -> None:
    slo = parse_slo(["ttft_ms.p90<=200"])
    rows = [request_row(f"r{i:04d}", i * 1.0, i + 0.1, i + 0.2, 10) for i in range(100)]
    for row in rows[::3]:
        row |= {"outcome": "http_error", "first_token": None, "last_token": None}
    found = attainment(scope_of(rows, [], "rate"), slo)
    assert (found["objectives"][0]["n"], found["objectives"][0]["good"]) == (100, 66)
    assert found["met"] == NOT_MET


def test_an_undefined_tpot_is_judged_by_no_limit_on_tpot() -> None:
    slo = parse_slo(["tpot_ms.p50<=50", "ttft_ms.p50<=200"], 0.9)
    rows = [request_row(f"r{i:04d}", i * 1.0, i + 0.1, i + 0.1, 1) for i in range(60)]
    found = attainment(scope_of(rows, [], "rate"), slo)
    tpot, ttft = found["objectives"]
    assert (tpot["n"], tpot["met"]) == (0, UNDETERMINED)
    assert (ttft["n"], ttft["met"]) == (60, MET)
    assert (found["joint"]["good"], found["joint"]["n"]) == (60, 60), "judged by what is defined of them"


def test_the_joint_share_counts_requests_that_meet_every_limit() -> None:
    slo = parse_slo(["ttft_ms<=200", "tpot_ms<=20"], 0.5)
    rows = [request_row(f"r{i:04d}", i * 1.0, i + (0.1 if i % 2 else 0.3), i + 0.4, 10) for i in range(80)]
    found = attainment(scope_of(rows, [], "rate"), slo)
    # Odd ones are early but then slow, even ones late but then quick: nobody meets both.
    assert found["joint"]["good"] == 0
    assert found["met"] == NOT_MET
    assert found["objectives"] == []


def test_an_open_loop_counts_from_the_intended_time() -> None:
    slo = parse_slo(["ttft_ms.p50<=200"])
    late = {"intended": 0}
    assert attainment(requests([0.1] * 40, mode="concurrency", **late), slo)["objectives"][0]["good"] == 40
    assert attainment(requests([0.1] * 40, mode="rate", **late), slo)["objectives"][0]["good"] == 1


def test_requests_that_miss_in_runs_are_worth_fewer() -> None:
    alternating = np.tile([1.0, 1.0, 1.0, 0.0], 50)
    runs = np.repeat([1.0, 1.0, 1.0, 0.0], 50)
    assert share_interval(np.repeat([1.0, 0.0, 1.0, 1.0], 1)).known
    assert (share_interval(alternating).effective_n or 0) == 200
    assert not share_interval(runs).known, "one long stall is one event, not fifty"
    pairs = np.repeat(np.random.default_rng(1).random(100) < 0.9, 2).astype(float)
    assert (share_interval(pairs).effective_n or 0) < 100


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([0.0, 1.0, float("nan")]), max_size=200))
def test_any_outcomes_give_a_share_inside_its_interval_or_a_reason(drawn: list[float]) -> None:
    found = share_interval(np.array(drawn))
    assert found.known != bool(found.refused)
    if found.low is not None and found.high is not None and found.estimate is not None:
        assert 0 <= found.low <= found.estimate <= found.high <= 1


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99])
def test_as_many_requests_as_are_said_to_be_needed_can_decide(share: float) -> None:
    slo = parse_slo(["ttft_ms<=1"], share)
    n = needed_requests(slo)
    once = look_confidence(1)
    assert (wilson(n, n, once).low or 0) >= share
    assert (wilson(int(n / 2.1), int(n / 2.1), once).low or 0) < share


def test_all_looks_together_spend_no_more_than_one_would() -> None:
    spent = [1 - look_confidence(k) for k in range(1, 1000)]
    assert 0.0499 < sum(spent) < 0.05
    assert spent == sorted(spent, reverse=True)


def test_sessions_that_differ_by_more_than_their_requests_explain_are_worth_fewer() -> None:
    alike, apart = over_blocks([0.95, 0.96, 0.95], [400] * 3), over_blocks([0.90, 0.98, 0.98], [400] * 3)
    assert alike.effective_n == 1200
    assert (apart.effective_n or 0) < 120
    assert (apart.low or 0) < 0.9 < (alike.low or 0)
    assert over_blocks([1.0, 1.0], [400, 200]).effective_n == 600
    assert over_blocks([0.9975, 1.0, 1.0], [400] * 3).effective_n == 1200, "one miss is no difference between sessions"
    assert (over_blocks([0.95], [400]).n, over_blocks([0.95], [400]).confidence) == (1, look_confidence(1))
    assert not over_blocks([], []).known


def test_a_share_at_the_limit_is_seldom_called_met_however_sessions_differ_and_however_often_one_looks() -> None:
    draw, needed = np.random.default_rng(1), 0.9
    for spread in (0.0, 0.02, 0.05):
        wrong = 0
        for _ in range(1500):
            shares: list[float] = []
            told_met = False
            for _block in range(SESSIONS):
                at = min(max(draw.normal(needed, spread), 0.0), 1.0)
                shares.append(draw.binomial(200, at) / 200)
                found = verdict(over_blocks(shares, [200] * len(shares)), needed)
                # The answer needs five sessions; a load that fails is not looked at again.
                told_met = found == MET and len(shares) == SESSIONS
                if found == NOT_MET:
                    break
            wrong += told_met
        assert wrong / 1500 <= 0.05, spread


def told(
    value: int, good: int, n: int = 400, block: int = 0, engine: str = "e", verdict: str = "VALID"
) -> dict[str, Any]:
    """A cell of summary.json with so many good requests of an objective on 90 %."""
    found = wilson(good, n)
    row = {
        "objective": "ttft_ms.p90<=1",
        "needed": 0.9,
        "share": good / n,
        "effective_n": float(n),
        "n": n,
        "good": good,
    }
    met = MET if (found.low or 0) >= 0.9 else NOT_MET if (found.high or 1) < 0.9 else UNDETERMINED
    return {
        "id": f"{engine}-{value}-{block}",
        "engine": engine,
        "workload": {"input_len": 10, "output_len": 10},
        "load": {"mode": "concurrency", "concurrency": value, "value": value},
        "block": block,
        "verdict": verdict,
        "whole": {"output_tokens_per_s": 10.0 * value, "requests_per_s": 1.0 * value},
        "window": None,
        "slo": {"met": met, "joint": None, "objectives": [row]},
    }


def test_a_share_at_the_limit_is_seldom_called_not_met_by_five_sessions_and_often_by_one() -> None:
    draw, n, draws = np.random.default_rng(2), 2000, 400
    by_one = by_five = 0
    for _ in range(draws):
        shares = np.clip(draw.normal(0.9, 0.05, SESSIONS), 0.8, 1.0)
        cells = [told(8, int(draw.binomial(n, share)), n, block=k) for k, share in enumerate(shares)]
        by_one += decided(cells[:1]) == {8.0: NOT_MET}
        by_five += decided(cells) == {8.0: NOT_MET}
    assert by_one / draws > 0.2
    assert by_five / draws <= 0.05


def test_the_highest_load_that_meets_them_is_the_headline() -> None:
    cells = [told(8, 400), told(16, 395), told(17, 300), told(32, 100), *again(16, 393), *again(17, 300)]
    found = slo_points(cells, {"concurrency": 32})[0]
    assert found.failed_sessions == SESSIONS
    assert (found.verdict, found.highest, found.failed, found.sessions) == ("met", 16, 17, SESSIONS)
    assert found.output_tokens_per_s == 160.0
    assert found.resolution == pytest.approx(1 / 16)
    assert "between 16 and 17, which is not met: 95 % sure of each" in found.why
    assert found.cells == [f"e-16-{block}" for block in range(SESSIONS)]


def again(value: int, good: int, **changes: Any) -> list[dict[str, Any]]:
    """The further sessions that an answer needs."""
    return [told(value, good, block=block, **changes) for block in range(1, SESSIONS)]


def test_a_load_that_was_not_met_in_as_many_sessions_as_a_verdict_needs_is_no_answer_yet() -> None:
    one = [told(16, 400), told(17, 300), *again(17, 300)]
    found = slo_points(one, {"concurrency": 32})[0]
    assert (found.verdict, found.highest, found.sessions) == ("undetermined", 16, 1)
    assert "16 is met in 1 session, and an answer needs 5" in found.why
    # An INVALID cell is no session.
    assert slo_points([*one, *again(16, 400, verdict="INVALID")], {})[0].verdict == "undetermined"
    assert slo_points([*one, *again(16, 399)], {"concurrency": 32})[0].verdict == "met"
    # Those that do not agree take the answer back.
    assert slo_points([*one, *again(16, 300)], {"concurrency": 32})[0].verdict == "undetermined"


def test_nor_is_the_other_end_before_as_many_sessions_have_not_met_it() -> None:
    met = [told(16, 400), *again(16, 400)]
    once = slo_points([*met, told(17, 300)], {"concurrency": 32})[0]
    assert (once.verdict, once.failed, once.failed_sessions) == ("undetermined", 17, 1)
    assert "17 is not met in 1 session, and an answer needs 5" in once.why
    # What failed requests say of it is said by an INVALID cell as well.
    told_so = slo_points([*met, told(17, 300), *again(17, 300, verdict="INVALID")], {"concurrency": 32})[0]
    assert (told_so.verdict, told_so.failed) == ("met", 17)
    # One session was a bad one: what it said of the limit is taken back.
    taken = slo_points([*met, told(17, 300), *again(17, 396)], {"concurrency": 32})[0]
    assert (taken.verdict, taken.failed, taken.undecided) == ("undetermined", None, [17])


def test_a_load_that_no_session_met_is_not_met_however_they_differ() -> None:
    apart = [told(8, good, block=block) for block, good in enumerate((20, 330, 60, 335, 120))]
    assert decided(apart) == {8.0: NOT_MET}
    # Together they show nothing, since they differ so much: with a session that is open there is no verdict.
    assert decided([*apart, told(8, 360, block=5)]) == {8.0: UNDETERMINED}


@pytest.mark.parametrize(
    ("cells", "verdict", "highest", "words"),
    [
        ([told(4, 400), told(16, 100)], "undetermined", 4, "nothing in between"),
        ([told(4, 400), told(8, 360), told(16, 100)], "undetermined", 4, "nothing in between"),
        ([told(4, 400), told(5, 360), told(6, 360)], "undetermined", 4, "5 and 6 were measured and not decided: more"),
        # What lies right above was measured and not decided: that is the resolution of the answer.
        ([told(4, 400), told(5, 360), told(16, 100), *again(4, 400), *again(16, 100)], "met", 4, "4 and 16"),
        ([told(4, 400), told(5, 360), told(16, 100)], "undetermined", 4, "an answer needs 5"),
        ([told(4, 100), *again(4, 100)], "not met", None, "not even at 4"),
        ([told(4, 100)], "undetermined", None, "4 is not met in 1 session"),
        ([told(4, 362)], "undetermined", None, "no load was shown"),
        ([told(4, 400), told(32, 399), *again(32, 400)], "met", 32, "highest load asked"),
        ([told(4, 400)], "undetermined", 4, "nothing above it"),
        # One that fails below one that passes: attainment is taken to fall with load.
        ([told(4, 400), told(5, 100), told(8, 400), *again(4, 400), *again(5, 100)], "met", 4, ""),
    ],
)
def test_what_the_search_did_not_decide_is_undetermined(
    cells: list[dict[str, Any]], verdict: str, highest: float | None, words: str
) -> None:
    found = slo_points(cells, {"concurrency": 32})[0]
    assert (found.verdict, found.highest) == (verdict, highest)
    assert words in found.why


def test_blocks_of_one_load_are_taken_together() -> None:
    one, two = told(8, 185, 200), told(8, 188, 200, block=1)
    assert decided([one]) == {8.0: UNDETERMINED}
    many = [told(8, 188 + k % 2, 200, block=k) for k in range(6)]
    assert decided([one, two])[8.0] in (UNDETERMINED, MET)
    assert decided(many) == {8.0: MET}


def test_a_block_whose_misses_came_in_one_stall_counts_among_the_others() -> None:
    stalled = told(8, 284, 400)
    stalled["slo"]["objectives"][0]["effective_n"] = 40.0
    others = [told(8, 398, 400, block=k) for k in (1, 2)]
    for cell in others:
        cell["slo"]["objectives"][0]["effective_n"] = 40.0
    assert decided(others) == {8.0: MET}
    assert decided([stalled, *others]) == {8.0: UNDETERMINED}
    stall = np.repeat([1.0, 0.0], 100)
    found = share_interval(stall)
    assert not found.known
    assert (found.effective_n or 0) >= 1


def test_what_an_invalid_cell_says_in_its_favour_does_not_count() -> None:
    assert decided([told(8, 400, verdict="INVALID")]) == {8.0: UNDETERMINED}
    assert decided([told(8, 100, verdict="INVALID")]) == {8.0: NOT_MET}
    # Nor does it take anything from what the others say.
    assert decided([told(8, 400, verdict="INVALID"), *again(8, 400)]) == {8.0: MET}


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.integers(1, 64), st.sampled_from([MET, NOT_MET, UNDETERMINED]), max_size=12))
def test_the_highest_that_is_met_lies_below_every_one_that_fails(found: dict[int, str]) -> None:
    answers = {float(k): v for k, v in found.items()}
    highest, failed = highest_met(answers)
    assert highest is None or answers[highest] == MET
    assert highest is None or failed is None or highest < failed


def test_cells_of_a_run_tell_their_attainment() -> None:
    slo = parse_slo(["ttft_ms.p90<=200"])
    rows = [request_row(f"r{i:04d}", i * 0.1, i * 0.1 + 0.1, i * 0.1 + 0.2, 10) for i in range(60)]
    record = plain_record({"mode": "rate", "rate": 10.0})
    cell = summarise(record, {}, None, Requests.of(rows), Chunks.of([]), Samples.of([]), None, slo=slo)
    assert cell["slo"]["met"] == MET
    plain = summarise(record, {}, None, Requests.of(rows), Chunks.of([]), Samples.of([]), None)
    assert plain["slo"] is None
    found = slo_summary([cell, plain], slo, {"rate": 10.0})
    assert found["confidence"] == 0.95
    assert [(p["verdict"], p["highest"]) for p in found["points"]] == [("undetermined", 10.0)]
