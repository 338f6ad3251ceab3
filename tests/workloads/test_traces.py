"""Traces as they are published: arrivals to the nanosecond, every row, in order; and what bad rows do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.errors import UnknownNameError, UsageError
from workloads.base import Vocabulary
from workloads.from_file import file_words
from workloads.traces import TraceWorkload, spread_equal

DATA = Path(__file__).parents[1] / "data" / "workloads"
WORDS = Vocabulary(1000, frozenset({0, 1}))
AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
    b"2023-11-16 18:15:50.9951690,396,109\r\n2023-11-16 18:15:51.2224670,879,55"
)
BURST = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def trace(tmp_path: Path, content: bytes, **fields: Any) -> TraceWorkload:
    path = tmp_path / "trace"
    path.write_bytes(content)
    return TraceWorkload(path=str(path), **fields)


def test_azure_rows_with_crlf_seven_digits_and_no_last_line_end(tmp_path: Path) -> None:
    workload = trace(tmp_path, AZURE)
    assert workload.format == "azure"
    rows = workload.trace.rows
    assert [row.at_ns for row in rows] == [0, 4_314_579_000, 4_541_877_000]
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109), (879, 55)]
    made = workload.requests(10, 0, WORDS)
    assert [(len(r.prompt), r.output_len, r.at_ns) for r in made] == [
        (374, 44, 0),
        (396, 109, 4_314_579_000),
        (879, 55, 4_541_877_000),
    ]


@pytest.mark.parametrize(
    ("time", "ns"),
    [
        ("2024-05-10 00:00:01", 1_000_000_000),
        ("2024-05-10 00:00:00.009930+00:00", 9_930_000),
        ("2024-05-10T00:00:00.5Z", 500_000_000),
        ("2024-05-10 02:00:01+02:00", 1_000_000_000),
    ],
)
def test_azure_times_of_any_fraction_and_zone(time: str, ns: int, tmp_path: Path) -> None:
    rows = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,1,1\n{time},1,1\n"
    assert trace(tmp_path, rows.encode()).trace.rows[1].at_ns == ns


def test_published_azure_rows_are_all_read() -> None:
    workload = TraceWorkload(path=str(DATA / "azure_llm_conv_2023.csv"))
    assert len(workload.trace.rows) == 200
    assert file_words(workload, {}) == ""
    assert workload.times_ns() == sorted(workload.times_ns())


def test_mooncake_prompts_begin_alike_where_their_blocks_are_the_same() -> None:
    workload = TraceWorkload(path=str(DATA / "mooncake_synthetic.jsonl"), format="mooncake", rows=20)
    rows, made = workload.trace.rows, workload.requests(20, 0, WORDS)
    assert [len(r.prompt) for r in made] == [row.input_tokens for row in rows]
    for i, a in enumerate(rows):
        for j in range(i):
            shared = 0
            while shared < min(len(a.blocks), len(rows[j].blocks)) and a.blocks[shared] == rows[j].blocks[shared]:
                shared += 1
            length = min(shared * 512, len(made[i].prompt), len(made[j].prompt))
            assert made[i].prompt[:length] == made[j].prompt[:length]
            assert shared or made[i].prompt[:8] != made[j].prompt[:8]


def test_burstgpt_keeps_requests_of_one_second_together_or_spreads_them_as_asked(tmp_path: Path) -> None:
    rows = BURST + b"".join(
        f"{t},ChatGPT,{n},7,9,API log\n".encode() for t, n in ((5, 1), (5, 2), (5, 3), (5, 4), (7, 5))
    )
    together = trace(tmp_path, rows)
    assert together.times_ns() == [0, 0, 0, 0, 2_000_000_000]
    spread = trace(tmp_path, rows, equal_times="spread")
    assert spread.times_ns() == [0, 500_000_000, 1_000_000_000, 1_500_000_000, 2_000_000_000]
    assert [len(r.prompt) for r in together.requests(5, 0, WORDS)] == [1, 2, 3, 4, 5]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30).map(sorted))
def test_spread_times_stay_in_order_and_never_before_their_own(times: list[int]) -> None:
    scaled = [t * 1_000_000_000 for t in times]
    spread = spread_equal(scaled)
    assert spread == sorted(spread)
    assert len(set(spread)) == len(spread)
    assert all(late >= own for late, own in zip(spread, scaled, strict=True))


def test_unsorted_rows_are_put_in_order_and_told(tmp_path: Path) -> None:
    workload = trace(tmp_path, BURST + b"9,M,1,1,2,x\n3,M,2,1,3,x\n5,M,3,1,4,x\n")
    assert [(r.at_ns, r.input_tokens) for r in workload.trace.rows] == [(0, 2), (2_000_000_000, 3), (6_000_000_000, 1)]
    assert file_words(workload, {}) == "1 rows stood after a later one and were put in order"


def test_bad_rows_are_counted_by_reason_and_refused_above_the_share(tmp_path: Path) -> None:
    rows = BURST + b"1,M,10,5,15,x\n2,M,-3,5,2,x\n3,M,10,0,10,x\nx,M,1,1,2,x\n4,M,1\n"
    words = r"4 of 5 rows skipped .*1 x Request tokens is negative.*the first is line 3: Request tokens is negative"
    with pytest.raises(UsageError, match=words):
        _ = trace(tmp_path, rows).trace
    assert len(trace(tmp_path, rows, max_skipped=0.9).trace.rows) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b\n1,2\n", "is no trace of a known format"),
        (b"TIMESTAMP,ContextTokens\n", "the header has TIMESTAMP, ContextTokens and lacks GeneratedTokens"),
        (AZURE[:41] + b"2023-11-16 18:15:46," + b"x" * 200_000 + b",3\n", "1 of 1 rows skipped .1 x not 3 columns"),
        (AZURE[:41] + b"2023-11-16 18:15:46,99999999999,3\n", "ContextTokens is above 10,000,000"),
        (BURST + b"1,M,10,-5,5,x\n", "Response tokens is negative"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "holds no rows"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        _ = trace(tmp_path, content).trace


def test_an_unknown_format_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="azure, burstgpt, mooncake"):
        trace(tmp_path, AZURE, format="azur")


def test_rows_that_are_too_long_are_refused_dropped_or_cut(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 3: 396 prompt and 109 output tokens make 505"):
        trace(tmp_path, AZURE, max_len=500).requests(3, 0, WORDS)
    dropped = trace(tmp_path, AZURE, max_len=510, too_long="drop").requests(3, 0, WORDS)
    assert [r.at_ns for r in dropped] == [0, 4_314_579_000]
    cut = trace(tmp_path, AZURE, max_len=510, too_long="truncate").requests(3, 0, WORDS)
    assert [(len(r.prompt), r.output_len) for r in cut] == [(374, 44), (396, 109), (455, 55)]
    assert trace(tmp_path, AZURE, max_len=510, too_long="truncate").longest == 510
