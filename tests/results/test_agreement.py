"""Agreement of token sequences and log probabilities: properties, and each class from its evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from results.agreement import (
    CLOSE_LOGPROB,
    CLOSE_TOP1,
    NEAR_TIE,
    Agreement,
    Evidence,
    Position,
    PromptAgreement,
    TeacherForced,
    classify,
    coarse_kl,
    compare_outputs,
    compare_scores,
    first_divergence,
    gap,
    near_tie_threshold,
    problems,
)

T = 0.25
TOKENS = st.integers(0, 5)
LOGPROBS = st.floats(-20, 0)


@st.composite
def positions(draw: st.DrawFn, token: int | None = None) -> Position:
    """A greedy position: the token is the likeliest of those told of."""
    chosen = draw(TOKENS) if token is None else token
    best = draw(LOGPROBS)
    others = draw(st.dictionaries(TOKENS, st.floats(0, 10), max_size=3))
    top = {other: best - less for other, less in others.items()} | {chosen: best}
    return draw(st.sampled_from([Position(chosen), Position(chosen, best), Position(chosen, best, top)]))


SEQUENCES = st.lists(positions(), max_size=8)


def plain(*tokens: int) -> list[Position]:
    return [Position(token) for token in tokens]


@given(SEQUENCES, SEQUENCES)
def test_the_first_divergence_is_where_the_common_prefix_ends(a: list[Position], b: list[Position]) -> None:
    at = first_divergence(a, b)
    x, y = [p.token for p in a], [p.token for p in b]
    assert (at is None) == (x == y)
    if at is not None:
        assert x[:at] == y[:at]
        assert x[at : at + 1] != y[at : at + 1]


@given(SEQUENCES)
def test_an_engine_agrees_with_itself(a: list[Position]) -> None:
    found = compare_outputs(a, a)
    assert found.match
    assert (found.first_divergence, found.logprob_gap) == (None, None)
    assert found.agreed == found.longest == len(a)
    assert found.logprob_difference in (None, 0)


@given(SEQUENCES, SEQUENCES)
def test_comparing_outputs_has_no_side(a: list[Position], b: list[Position]) -> None:
    assert compare_outputs(a, b) == compare_outputs(b, a)


@given(SEQUENCES, SEQUENCES)
def test_a_gap_is_never_negative_and_only_told_where_tokens_part(a: list[Position], b: list[Position]) -> None:
    found = compare_outputs(a, b)
    if found.logprob_gap is None:
        assert not found.at_least
        return
    assert found.logprob_gap >= 0
    assert found.first_divergence is not None
    assert found.first_divergence < min(len(a), len(b))


def test_the_gap_is_the_larger_of_what_the_two_engines_saw() -> None:
    a = [Position(7), Position(1, -0.5, {1: -0.5, 2: -0.6, 3: -4.0})]
    b = [Position(7), Position(2, -0.3, {2: -0.3, 1: -0.7})]
    found = compare_outputs(a, b)
    assert (found.first_divergence, found.at_least) == (1, False)
    assert found.logprob_gap == pytest.approx(0.4)


def test_a_candidate_beyond_those_told_gives_a_lower_bound() -> None:
    a = [Position(1, -0.1, {1: -0.1, 3: -2.0, 4: -3.0})]
    assert gap(a[0], 2) == (pytest.approx(2.9), True)
    found = compare_outputs(a, plain(2))
    assert found.at_least
    assert not found.near_tie(100.0)
    assert gap(Position(1, -0.1, {1: -0.1}), 2) is None
    assert gap(Position(1, math.nan, {2: -1.0}), 2) is None


def test_an_output_that_merely_ends_has_no_gap() -> None:
    found = compare_outputs(plain(1, 2, 3), plain(1, 2))
    assert (found.match, found.first_divergence, found.logprob_gap) == (False, 2, None)


# Scores of fixed text.


def distribution(weights: list[float]) -> dict[int, float]:
    total = sum(weights)
    return {i: math.log(w / total) for i, w in enumerate(weights)}


WEIGHTS = st.lists(st.floats(0.01, 1), min_size=4, max_size=4)


@given(WEIGHTS, WEIGHTS, st.sets(st.integers(0, 3), min_size=1))
def test_coarse_divergence_is_a_lower_bound_of_the_true_one(p: list[float], q: list[float], told: set[int]) -> None:
    full_p, full_q = distribution(p), distribution(q)
    true = sum(math.exp(full_p[i]) * (full_p[i] - full_q[i]) for i in range(4))
    part = coarse_kl({i: full_p[i] for i in told}, full_q)
    assert 0 <= part <= true + 1e-6
    assert coarse_kl(full_p, full_q) == pytest.approx(true, abs=1e-6)
    assert coarse_kl(full_p, full_p) == pytest.approx(0, abs=1e-9)


def scored(token: int, top: Mapping[int, float]) -> Position:
    return Position(token, top[token], dict(top))


@given(st.lists(st.tuples(st.integers(0, 3), WEIGHTS), min_size=1, max_size=6))
def test_an_engine_scores_as_itself(rows: list[tuple[int, list[float]]]) -> None:
    text = [scored(token, distribution(weights)) for token, weights in rows]
    found = compare_scores([text, text], [text, text], 0.0)
    assert found.tokens == 2 * len(rows)
    assert (found.top1_share, found.mean_abs_logprob_difference) == (1, 0)
    assert found.mean_kl == pytest.approx(0, abs=1e-9)


def test_scores_are_counted_over_all_positions() -> None:
    a = [[scored(0, {0: -0.1, 1: -3.0}), scored(1, {0: -0.2, 1: -2.0})]]
    b = [[scored(0, {0: -0.3, 1: -2.0}), scored(1, {0: -2.0, 1: -0.2})]]
    found = compare_scores(a, b, T)
    assert (found.tokens, found.top1_share) == (2, 0.5)
    assert found.mean_abs_logprob_difference == pytest.approx((0.2 + 1.8) / 2)
    with pytest.raises(ValueError, match="different texts"):
        compare_scores([[Position(0)]], [[Position(1)]], T)


def test_level_favourites_are_told_apart_from_other_ones() -> None:
    """Level only where both engines see the two candidates within the threshold."""
    a = [
        scored(0, {0: -0.7, 1: -0.8}),
        scored(0, {0: -0.7, 1: -0.8}),
        scored(0, {0: -0.7, 2: -3.0}),
        scored(0, {0: -0.1}),
    ]
    b = [
        scored(0, {0: -0.8, 1: -0.7}),
        scored(0, {0: -1.7, 1: -0.7}),
        scored(0, {0: -0.8, 1: -0.7}),
        scored(0, {0: -0.1}),
    ]
    found = compare_scores([a], [b], T)
    assert (found.top1_share, found.top1_or_tie_share) == (0.25, 0.5)


def test_of_an_engine_that_names_its_favourite_alone_only_that_is_compared() -> None:
    """Whether another favourite is level, the engine that tells more has to say; where neither does, it is not."""
    named = [Position(5, None, {favourite: math.nan}) for favourite in (0, 1, 1)] + [Position(5)]
    told = [
        Position(5, -9.0, {0: -0.7, 1: -0.8}),
        Position(5, -9.0, {0: -0.7, 1: -0.8}),
        Position(5, -9.0, {0: -0.7, 1: -3.0}),
        Position(5, -9.0, {0: -0.7, 1: -3.0}),
    ]
    found = compare_scores([named], [told], T)
    assert found.tokens == 3
    assert (found.top1_share, found.top1_or_tie_share) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (found.mean_kl, found.mean_abs_logprob_difference) == (None, None)
    alone = compare_scores([named], [[Position(5, None, {0: math.nan})] * 4], T)
    assert (alone.top1_share, alone.top1_or_tie_share) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_what_is_not_told_is_null() -> None:
    assert compare_scores([plain(1, 2)], [plain(1, 2)], T) == TeacherForced(0, None, None, None, None)
    assert compare_scores([], [], T) == TeacherForced(0, None, None, None, None)


# Sanity of one output.


@pytest.mark.parametrize(
    ("output", "asked", "found"),
    [
        ([], 4, ["empty"]),
        (plain(1, 2), 4, ["short"]),
        (plain(1, 2), None, []),
        ([Position(1, math.nan)], 1, ["nan"]),
        (plain(*[5] * 8), 8, ["repeated"]),
        (plain(*[5] * 7), 7, []),
        (plain(*[5, 6] * 8), 16, []),
    ],
)
def test_what_is_wrong_with_an_output_by_itself(output: list[Position], asked: int | None, found: list[str]) -> None:
    assert problems(output, asked) == found


# Classes.

MATCH = PromptAgreement(True, None, 8, 8)


def parted(
    gap: float | None, at_least: bool = False, agreed: int = 4, difference: float | None = None
) -> PromptAgreement:
    return PromptAgreement(False, agreed, agreed, 8, gap, at_least, difference)


ALIKE = TeacherForced(100, 0.9, 0.99, 0.02, 0.001)


@pytest.mark.parametrize(
    ("prompts", "forced", "expected"),
    [
        ([MATCH, MATCH], ALIKE, Agreement.IDENTICAL),
        ([MATCH, MATCH], None, Agreement.IDENTICAL),
        ([MATCH, parted(T)], ALIKE, Agreement.NEAR_TIE),
        ([MATCH, parted(T + 1e-6)], ALIKE, Agreement.NEAR_TIE),
        ([MATCH, parted(0.0)], None, Agreement.NEAR_TIE),
        ([MATCH, parted(T + 0.01)], ALIKE, Agreement.CLOSE),
        ([MATCH, parted(0.1, at_least=True)], ALIKE, Agreement.CLOSE),
        ([MATCH, parted(None)], ALIKE, Agreement.CLOSE),
        ([MATCH, parted(1.0)], TeacherForced(100, 0.9, CLOSE_TOP1 - 0.01, 0.02, None), Agreement.DIFFERENT),
        ([MATCH, parted(1.0)], TeacherForced(100, 0.9, 0.99, CLOSE_LOGPROB + 0.01, None), Agreement.DIFFERENT),
        # Texts scored otherwise are another model, however the few outputs went.
        ([MATCH, MATCH], TeacherForced(100, 0.5, 0.5, 2.0, 1.0), Agreement.DIFFERENT),
        ([MATCH, parted(0.0)], TeacherForced(100, 0.5, 0.5, 2.0, 1.0), Agreement.DIFFERENT),
        # Without scores: what was told before they parted, else the tokens alone.
        ([parted(1.0, difference=0.05)], None, Agreement.CLOSE),
        ([parted(1.0, difference=0.5)], None, Agreement.DIFFERENT),
        ([parted(None, agreed=6)], None, Agreement.CLOSE),
        ([parted(None, agreed=1)], None, Agreement.DIFFERENT),
        ([parted(None, agreed=6)], TeacherForced(50, None, None, None, None), Agreement.CLOSE),
        ([], None, Agreement.DIFFERENT),
    ],
)
def test_the_class_follows_from_the_evidence(
    prompts: list[PromptAgreement], forced: TeacherForced | None, expected: Agreement
) -> None:
    found, why = classify(Evidence(prompts, T, [[]] * len(prompts), [[]] * len(prompts), forced))
    assert found is expected, why
    assert why.endswith(".")


@pytest.mark.parametrize("kind", ["empty", "nan"])
def test_an_empty_or_nan_output_is_broken_on_whichever_side(kind: str) -> None:
    for a, b, side in (([[kind], []], [[], []], "first"), ([[], []], [[kind], []], "second")):
        found, why = classify(Evidence([MATCH, parted(0.0)], T, a, b, ALIKE))
        assert found is Agreement.BROKEN
        assert side in why


def test_repetition_is_broken_only_where_the_other_does_not_repeat() -> None:
    loops, sane = [["repeated"], ["repeated"]], [[], []]
    assert classify(Evidence([parted(9.0)], T, loops, sane, None))[0] is Agreement.BROKEN
    assert classify(Evidence([parted(9.0)], T, sane, loops, None))[0] is Agreement.BROKEN
    assert classify(Evidence([MATCH, MATCH], T, loops, loops, None))[0] is Agreement.IDENTICAL


@given(st.lists(st.sampled_from([MATCH, parted(0.0), parted(0.2), parted(3.0)]), min_size=1), st.floats(0, 5))
def test_more_tolerance_never_makes_a_class_worse(prompts: list[PromptAgreement], more: float) -> None:
    order = list(Agreement)
    strict = classify(Evidence(prompts, 0.1, forced=ALIKE))[0]
    tolerant = classify(Evidence(prompts, 0.1 + more, forced=ALIKE))[0]
    assert order.index(tolerant) <= order.index(strict)


@given(st.lists(st.sampled_from([*NEAR_TIE, "torch.bfloat16", "auto", None]), min_size=1))
def test_the_coarsest_dtype_decides_and_an_unknown_one_is_the_coarsest(dtypes: list[str | None]) -> None:
    found = near_tie_threshold(*dtypes)
    assert found == max(near_tie_threshold(d) for d in dtypes)
    assume(None in dtypes or "auto" in dtypes)
    assert found == NEAR_TIE["bfloat16"]
