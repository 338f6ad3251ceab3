"""What holds for the summary of any cell, however odd: order, units, bounds, closed sums, strict JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.cell_summary import summarise
from results.events import Chunks, Requests, Samples
from results.kv_use import peak_context
from results.schema import ChunkKind, Outcome
from tests.results.builders import plain_record
from tests.results.simulation import MODEL_CONFIG

MS = 1_000_000
# Slow examples of a busy machine are no failures.
UNTIMED = settings(deadline=None, max_examples=60)


@st.composite
def request_and_chunks(draw: st.DrawFn, index: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A request that ended somehow, with stamps in order, and the chunks it got."""
    request_id = f"r{index:03d}"
    outcome = draw(st.sampled_from(list(Outcome)))
    sent = draw(st.integers(0, 5_000)) * MS
    has_tokens = outcome is Outcome.OK or draw(st.booleans())
    gaps = draw(st.lists(st.integers(0, 400), min_size=1, max_size=6)) if has_tokens else []
    times = [sent + MS + sum(gaps[: k + 1]) * MS for k in range(len(gaps))]
    counts = draw(st.lists(st.sampled_from([None, 1, 1, 1, 3]), min_size=len(times), max_size=len(times)))
    known = all(c is not None for c in counts)
    tokens = sum(c or 1 for c in counts) if times else None
    row = {
        "request_id": request_id,
        "slot": draw(st.integers(0, 3)),
        "worker": 0,
        "intended": sent - draw(st.integers(0, 20)) * MS,
        "queued": sent,
        "sent": sent if outcome is not Outcome.REFUSED else None,
        "first_byte": times[0] if times else None,
        "first_token": times[0] if times else None,
        "last_token": times[-1] if times else None,
        "end": (times[-1] if times else sent) + draw(st.integers(0, 5)) * MS,
        "outcome": str(outcome),
        "http_status": draw(st.sampled_from([None, 200, 503])),
        "error": draw(st.sampled_from([None, "broke"])),
        "input_tokens_planned": draw(st.integers(1, 50)),
        "input_tokens_counted": draw(st.sampled_from([None, 7])),
        "output_tokens_asked": draw(st.integers(1, 50)),
        "output_tokens": tokens if draw(st.booleans()) or known else None,
        "tokens_in_first_chunk": counts[0] if times else None,
        "count_source": draw(st.sampled_from([None, "ids"])),
        "finish_reason": None,
    }
    chunks = [
        {"request_id": request_id, "t": t, "lag": draw(st.sampled_from([None, 1000])), "kind": "text", "tokens": c}
        for t, c in zip(times, counts, strict=True)
    ]
    kinds = draw(st.lists(st.sampled_from([ChunkKind.ROLE, ChunkKind.FINISH, ChunkKind.USAGE]), max_size=2))
    chunks += [{"request_id": request_id, "t": row["end"], "lag": None, "kind": str(k), "tokens": None} for k in kinds]
    return row, chunks


@st.composite
def cells(draw: st.DrawFn) -> dict[str, Any]:
    parts = [draw(request_and_chunks(i)) for i in range(draw(st.integers(0, 12)))]
    mode = draw(st.sampled_from(["batch", "concurrency"]))
    width = draw(st.integers(1, 4))
    load = {"mode": mode, mode: width, "waves": 3} if mode == "batch" else {"mode": mode, mode: width, "requests": 12}
    samples = [
        {
            "source": "server",
            "metric": metric,
            "t0": t * MS,
            "t1": t * MS,
            "value": draw(st.sampled_from([None, 0.0, 3.0])),
        }
        for metric in ("running", "generation_tokens_total", "kv_usage")
        for t in draw(st.lists(st.integers(0, 6_000), max_size=4, unique=True))
    ]
    return {
        "load": load,
        "requests": [row for row, _ in parts],
        "chunks": [c for _, chunks in parts for c in chunks],
        "samples": samples,
    }


def summary_of(cell: Mapping[str, Any], scale: int = 1, shift: int = 0) -> dict[str, Any]:
    stamps = {"intended", "queued", "sent", "first_byte", "first_token", "last_token", "end", "t", "t0", "t1"}

    def moved(row: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v * scale + shift if k in stamps and v is not None else v for k, v in row.items()}

    record = plain_record(cell["load"], started=shift, ended=10_000 * MS * scale + shift)
    return summarise(
        record,
        {"settings": {"block_size": {"value": 16, "source": "endpoint"}}},
        MODEL_CONFIG,
        Requests.of([moved(r) for r in cell["requests"]]),
        Chunks.of([moved(c) for c in cell["chunks"]]),
        Samples.of([moved(s) for s in cell["samples"]]),
        None,
    )


@UNTIMED
@given(cells())
def test_the_summary_is_strict_json_and_its_outcomes_add_up(cell: dict[str, Any]) -> None:
    found = summary_of(cell)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert sum(found["requests"]["by_outcome"].values()) == found["requests"]["issued"] == len(cell["requests"])
    assert found["requests"]["ok"] == sum(r["outcome"] == "ok" for r in cell["requests"])
    assert found["verdict"] in ("VALID", "SUSPECT", "INVALID")
    if not found["requests"]["ok"]:
        assert found["verdict"] == "INVALID"


@UNTIMED
@given(cells(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(cell: dict[str, Any], random: Any) -> None:
    mixed = {**cell, **{name: list(cell[name]) for name in ("requests", "chunks", "samples")}}
    for name in ("requests", "samples"):
        random.shuffle(mixed[name])
    # Chunks of different requests interleave anyhow; those of one keep their order, which is all that tells two with the
    # same stamp apart.
    turns = [chunk["request_id"] for chunk in cell["chunks"]]
    random.shuffle(turns)
    rows = {name: iter([c for c in cell["chunks"] if c["request_id"] == name]) for name in turns}
    mixed["chunks"] = [next(rows[name]) for name in turns]
    assert summary_of(mixed) == summary_of(cell)


@UNTIMED
@given(cells())
def test_distributions_lie_within_their_extremes_and_none_is_negative(cell: dict[str, Any]) -> None:
    whole = summary_of(cell)["whole"]
    for name, value in (whole or {}).items():
        if name == "waves":  # a spread, no distribution
            continue
        if not isinstance(value, dict):
            assert value is None or value >= 0 or name == "start_s"
            continue
        assert value["n"] >= 0
        assert (value["mean"] is None) == (value["n"] == 0)
        for p in ("p50", "p90", "p95", "p99"):
            if value[p] is not None:
                assert 0 <= value["min"] <= value[p] <= value["max"]


@UNTIMED
@given(cells(), st.integers(0, 10**15))
def test_the_origin_of_the_clock_does_not_matter(cell: dict[str, Any], shift: int) -> None:
    assert_close(summary_of(cell, shift=shift), summary_of(cell))


@UNTIMED
@given(cells())
def test_twice_the_time_is_twice_the_latency_and_half_the_rate(cell: dict[str, Any]) -> None:
    once, twice = summary_of(cell)["whole"], summary_of(cell, scale=2)["whole"]
    assert (once is None) == (twice is None)
    for name, value in (once or {}).items():
        if name == "waves":
            continue
        factor = 2.0 if name.endswith(("_ms", "_s")) else 1.0
        factor = 0.5 if name.endswith("_per_s") else factor
        if isinstance(value, dict):
            for key in ("mean", "min", "max", "p50", "p90"):
                assert twice[name][key] == (None if value[key] is None else pytest.approx(value[key] * factor))
        else:
            assert twice[name] == (None if value is None else pytest.approx(value * factor))


@UNTIMED
@given(cells())
def test_latency_holds_answered_requests_only(cell: dict[str, Any]) -> None:
    whole = summary_of(cell)["whole"]
    if whole:
        ok = sum(r["outcome"] == "ok" for r in cell["requests"])
        assert whole["ttft_ms"]["n"] == ok
        assert whole["e2e_ms"]["n"] == whole["scheduled_e2e_ms"]["n"]
        slots = len({r["slot"] for r in cell["requests"]}) if cell["load"]["mode"] == "concurrency" else 0
        assert ok - slots <= whole["e2e_ms"]["n"] <= ok
        assert whole["tpot_ms"]["n"] <= ok


@UNTIMED
@given(cells())
def test_no_more_requests_are_in_flight_than_were_issued(cell: dict[str, Any]) -> None:
    found = summary_of(cell)
    in_flight = found["batch"]["in_flight"]
    assert in_flight is None or 0 <= in_flight <= found["requests"]["issued"] + 1e-9


spans = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 40), st.integers(1, 40))


@UNTIMED
@given(st.lists(spans, min_size=1, max_size=8))
def test_the_peak_context_is_the_largest_sum_found_by_trying_every_instant(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    rows = [
        {"request_id": f"r{i}", "outcome": "ok", "first_token": start * MS, "last_token": (start + length) * MS}
        for i, (start, length, _, _) in enumerate(drawn)
    ]
    inputs = np.array([d[2] for d in drawn], dtype=np.int64)
    outputs = np.array([d[3] if d[1] else 1 for d in drawn], dtype=np.int64)
    peak, context = peak_context(Requests.of(rows), inputs, outputs)

    def held(t: int) -> float:
        return sum(
            prompt + (out - 1) * ((t - start) / length if length else 0)
            for (start, length, prompt, _), out in zip(drawn, outputs, strict=True)
            if start <= t <= start + length
        )

    brute = max(held(t) for t in range(102))
    assert peak is not None
    assert peak == context.sum()
    # Each request's context is rounded to a whole token.
    assert abs(peak - brute) <= 0.5 * len(drawn) + 1e-6


def assert_close(a: Any, b: Any, where: str = "") -> None:
    """Equal but for rounding."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_close(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, pair in enumerate(zip(a, b, strict=True)):
            assert_close(*pair, f"{where}[{i}]")
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-6), where
    else:
        assert a == b, where
