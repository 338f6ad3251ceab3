"""ReportData: known numbers in, sentences, lines and rows out; what is unknown stays unknown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.figures import build_figures
from reports.tables import columns_of
from results.comparison_words import interval_words
from results.files import to_json
from results.precision import width_words
from results.records import SessionRecord
from results.report_data import ReportData, load_report_data
from results.report_format import UNKNOWN, compact, count, listed, number, percent, size
from results.report_measures import MEASURE, Value, over_blocks
from results.report_readings import BATCH_WORDS, shown_scope
from results.report_shapes import load_words, workload_info
from results.store import RunStore
from results.summary import build_summary
from tests.reports.runs import PER_TOKEN, Cell, cell, flawed, grid, make_run, rate
from tests.results.builders import Schedule, synthetic_run


def texts(data: ReportData, topic: str) -> list[str]:
    return [s.text for s in data.answer if s.topic == topic]


def load(tmp_path: Path, cells: list[Cell], **options: object) -> ReportData:
    return load_report_data(make_run(tmp_path / "run", cells, **options))  # type: ignore[arg-type]  # options of several types, passed on


def test_sentences_say_how_throughput_moves_with_batch_at_each_length(tmp_path: Path) -> None:
    data = load(tmp_path, grid())
    factors = [rate(16, n) / rate(1, n) for n in (128, 512)]
    assert texts(data, "Throughput") == [
        f"Batch 1 → 16 multiplies output tokens/s by {number(factors[0])} at 128 in and {number(factors[1])} at 512 in."
    ]


def test_sentences_compare_the_longest_input_with_the_shortest(tmp_path: Path) -> None:
    share = rate(16, 512) / rate(16, 128)
    assert f"falls to {percent(share)} at batch 16" in texts(load(tmp_path, grid()), "Input length")[0]


def test_a_peak_before_the_largest_batch_is_named(tmp_path: Path) -> None:
    cells = [cell("reference", batch, 128, speed=speed) for batch, speed in ((1, 1.0), (4, 1.0), (16, 0.4))]
    assert cells[2]["whole"]["output_tokens_per_s"] < cells[1]["whole"]["output_tokens_per_s"]
    said = texts(load(tmp_path, cells), "Throughput")
    assert any(f"the most is {number(rate(4, 128))} at batch 4" in text for text in said)


def test_lines_hold_the_points_of_an_engine_and_length_in_order_of_load(tmp_path: Path) -> None:
    data = load(tmp_path, list(reversed(grid(("a", "b"), (16, 1, 4)))))
    assert [(x.engine, x.workload.input_tokens) for x in data.lines] == [("b", 128), ("b", 512), ("a", 128), ("a", 512)]
    for line in data.lines:
        assert [p.load_value for p in line.points] == [1, 4, 16]
        assert [p.values["batch_realised"].mean for p in line.points] == pytest.approx([0.93, 3.72, 14.88])


def test_engines_keep_the_order_of_the_experiment(tmp_path: Path) -> None:
    data = load(tmp_path, grid(("zeta", "alpha")))
    assert [e.label for e in data.engines] == ["zeta", "alpha"]
    assert texts(data, "Engines")[0].startswith("alpha gives 1.20 times the output tokens/s of zeta")


def test_a_ratio_of_engines_from_few_blocks_is_no_verdict(tmp_path: Path) -> None:
    few, enough = (
        load(tmp_path / "few", grid(("a", "b"), blocks=2)),
        load(tmp_path / "enough", grid(("a", "b"), blocks=5)),
    )
    said = texts(few, "Engines")[0]
    assert said.startswith(
        "b gives 1.20 times the output tokens/s of a over 6 points, no interval (2 blocks): no verdict below 5"
    )
    assert "no verdict" not in texts(enough, "Engines")[0]


def test_a_ratio_of_engines_from_few_blocks_has_its_interval_its_ends_and_its_blocks(tmp_path: Path) -> None:
    speeds = ((4, (1.1, 1.6, 2.1)), (8, (1.2, 1.3, 1.4)))
    pairs = [(n, b, who, at) for n, found in speeds for b, x in enumerate(found) for who, at in (("a", 1.0), ("b", x))]
    data = load(tmp_path, [cell(who, n, 128, b, at) for n, b, who, at in pairs])
    overall = data.sure.comparisons[0].overall
    assert overall is not None
    assert overall.low is not None
    assert texts(data, "Engines")[0].startswith(
        f"b gives {number(overall.ratio)} times the output tokens/s of a over 2 points (1.30 at batch 8, 128 in / 64 out to 1.55 at "
        f"batch 4, 128 in / 64 out), 95 % sure of {interval_words(overall)} (3 blocks): no verdict below 5 blocks (--blocks 5)"
    )


def test_an_engine_that_alone_has_a_trend_is_named_with_it(tmp_path: Path) -> None:
    cells = grid(("a", "b"), (1, 4), (128,))
    cells = [flawed("SUSPECT", "client_lag")(c) if c["engine"] == "b" else c for c in cells]
    for topic in ("Throughput", "Latency"):
        said = texts(load(tmp_path / topic, cells), topic)[0]
        assert " on a" in said
        assert said.endswith("; not told of b: no two loads there that are VALID and comparable.")


def test_no_peak_is_named_where_a_suspect_cell_stands_above_it(tmp_path: Path) -> None:
    cells = [cell("reference", batch, 128, speed=speed) for batch, speed in ((1, 1.0), (4, 1.0), (8, 2.0), (16, 0.4))]
    cells[2] = flawed("SUSPECT", "client_lag")(cells[2])
    assert not any("the most is" in text for text in texts(load(tmp_path, cells), "Throughput"))


def test_engines_are_compared_over_the_blocks_they_share(tmp_path: Path) -> None:
    cells = grid(("a", "b"), (1,), (128,), blocks=2)
    lost = flawed("INVALID", "server_died")
    cells = [lost(c) if (c["engine"], c["block"]) == ("a", 1) else c for c in cells]
    # Block 1 is 10 % faster for both: comparing a's block 0 with b's mean would give 1.26.
    assert "1.20 times" in texts(load(tmp_path, cells), "Engines")[0]


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_cell_is_named_with_its_block_where_there_are_others(tmp_path: Path, blocks: int) -> None:
    labels = [row.label for row in load(tmp_path, grid(batches=(4,), input_lens=(128,), blocks=blocks)).cells]
    assert len({*labels}) == blocks
    assert [label.rpartition(", ")[2] for label in labels if "block" in label] == (
        [f"block {block}" for block in range(blocks)] if blocks > 1 else []
    )


def test_blocks_become_a_mean_with_its_range(tmp_path: Path) -> None:
    data = load(tmp_path, grid(batches=(4,), input_lens=(128,), blocks=3))
    (point,) = data.points
    value = point.values["output_tokens_per_s"]
    base = rate(4, 128)
    assert (value.mean, value.low, value.high, value.n) == (
        pytest.approx(base * 1.1),
        pytest.approx(base),
        pytest.approx(base * 1.2),
        3,
    )
    assert len(data.cells) == 3
    assert data.blocks == 3


def test_invalid_cells_stay_in_the_table_and_out_of_every_number(tmp_path: Path) -> None:
    cells = grid(batches=(1, 4), input_lens=(128,), blocks=2)
    broken = flawed("INVALID", "server_died", "exit code -9")(cells[3])
    broken["whole"] = {**broken["whole"], "output_tokens_per_s": 1e9}
    data = load(tmp_path, [*cells[:3], broken])
    assert [c.verdict for c in data.cells].count("INVALID") == 1
    point = data.points[1]
    assert (point.blocks, point.blocks_invalid, point.verdict) == (1, 1, "VALID")
    assert point.values["output_tokens_per_s"].mean == pytest.approx(rate(4, 128))
    assert "3 VALID and 1 INVALID of 4 cells" in texts(data, "What not to trust")[0]
    assert any("server_died" in text and "exit code -9" in text for text in texts(data, "What not to trust"))


def test_a_run_of_only_invalid_cells_concludes_nothing(tmp_path: Path) -> None:
    data = load(tmp_path, [flawed("INVALID", "no_requests_ok")(c) for c in grid()])
    assert data.usable == 0
    for topic in ("Throughput", "Latency", "Prefill and decode", "Engines", "Memory"):
        assert texts(data, topic) == []
    assert all(v.mean is None and v.why for p in data.points for v in p.values.values())
    assert data.memory == []


def test_a_run_without_cells_says_so(tmp_path: Path) -> None:
    data = load(tmp_path, [], planned=6)
    assert (data.cells, data.lines, data.blocks) == ([], [], 0)
    assert [s.text for s in data.answer] == [
        "No cell has been committed yet, of 6 planned: there is nothing to conclude."
    ]


def test_one_cell_gives_a_rate_and_no_factor(tmp_path: Path) -> None:
    data = load(tmp_path, grid(batches=(4,), input_lens=(128,)))
    rate_4 = number(rate(4, 128))
    assert texts(data, "Throughput") == [f"At batch 4, output tokens/s is {rate_4}: one load shows no trend."]
    assert "The one cell is VALID." in texts(data, "What not to trust")


def test_one_load_is_told_of_each_engine_and_which_mean_it_is(tmp_path: Path) -> None:
    data = load(tmp_path, grid(("a", "b"), (4,), (128,), blocks=2))
    mean = rate(4, 128) * 1.05
    told = f"{number(mean)} on a and {number(1.2 * mean)} on b (means of 2 blocks)"
    assert texts(data, "Throughput") == [f"At batch 4, output tokens/s is {told}: one load shows no trend."]
    assert " ms on a and " in texts(data, "Latency")[0]


def test_blocks_that_were_asked_for_and_not_measured_are_told(tmp_path: Path) -> None:
    cells = grid(("a", "b"), (4,), (128,), blocks=3)
    few = load(tmp_path / "few", cells)
    assert "no verdict below 5 blocks (--blocks 5)" in texts(few, "Engines")[0]
    stopped = load(tmp_path / "stopped", cells, blocks=5)
    assert (
        "no verdict below 5 blocks (3 of the 5 asked for are measured: the same command again completes them)"
        in texts(stopped, "Engines")[0]
    )


def test_an_interval_that_tells_no_size_is_given_as_a_factor() -> None:
    assert width_words(0.031) == "±3.10 %"
    assert width_words(1.65) == "a factor of 7.02 from end to end"
    assert width_words(None) == UNKNOWN


def test_each_topic_is_one_sentence_however_many_engines(tmp_path: Path) -> None:
    cells = grid(("a", "b", "c"))
    cells[0], cells[3] = (flawed("SUSPECT", "client_lag")(c) for c in (cells[0], cells[3]))
    cells[5] = flawed("INVALID", "server_died")(cells[5])
    data = load(tmp_path, cells)
    for topic in ("Throughput", "Input length", "Latency", "Prefill and decode", "Memory"):
        assert len(texts(data, topic)) == 1, topic
    ratios, *alike = texts(data, "Engines")
    assert "b 1.20" in ratios
    assert "c 1.44" in ratios
    assert all(text.startswith(("Set alike?", "Same tokens?")) for text in alike)


def test_factors_of_several_engines_are_over_the_same_loads_and_from_valid_cells(tmp_path: Path) -> None:
    cells = grid(("a", "b"), input_lens=(128,))
    cells[0] = flawed("SUSPECT", "client_lag")(cells[0])
    factor = number(rate(16, 128) / rate(4, 128))
    assert texts(load(tmp_path, cells), "Throughput") == [f"Batch 4 → 16 multiplies output tokens/s by {factor}."]


def test_an_engine_without_two_comparable_loads_is_named_as_such(tmp_path: Path) -> None:
    cells = grid(("a", "b"), (1, 16), (128,))
    cells[0] = flawed("SUSPECT", "client_lag")(cells[0])
    (text,) = texts(load(tmp_path, cells), "Throughput")
    assert "not told of a: no two loads" in text


def test_sentences_from_suspect_cells_say_so(tmp_path: Path) -> None:
    data = load(tmp_path, [flawed("SUSPECT", "client_lag")(c) for c in grid(("a", "b"))])
    for topic in ("Engines", "Throughput", "Input length", "Latency", "Prefill and decode", "Memory"):
        said = next(s for s in data.answer if s.topic == topic)
        assert "from SUSPECT cells" in said.text
        assert said.caution


def test_a_cell_shows_the_range_of_its_waves_and_blocks_that_of_the_blocks(tmp_path: Path) -> None:
    one = load(tmp_path / "one", grid(batches=(4,), input_lens=(128,))).points[0].values["ttft_ms_p50"]
    assert (one.low, one.high, one.n, one.over) == (512, pytest.approx(665.6), 3, "waves")
    two = load(tmp_path / "two", grid(batches=(4,), input_lens=(128,), blocks=2)).points[0].values["ttft_ms_p50"]
    assert (two.high, two.n, two.over) == (pytest.approx(563.2), 2, "blocks")
    user = load(tmp_path / "user", grid(batches=(4,), input_lens=(128,))).points[0].values["user_tokens_per_s"]
    assert None not in (user.low, user.mean, user.high)
    assert user.low < user.mean < user.high  # type: ignore[operator]  # none is None, by the line above


def test_converted_weights_are_told(tmp_path: Path) -> None:
    plain = load(tmp_path / "plain", grid())
    told = load(tmp_path / "told", grid(), source="a Q4_1 GGUF, dequantised")
    assert plain.weights is None
    assert told.weights == "a Q4_1 GGUF, dequantised"
    assert ("model", "weights from", told.weights) in [(f.group, f.name, f.value) for f in told.environment]


def test_an_incomplete_run_says_how_much_is_missing(tmp_path: Path) -> None:
    data = load(tmp_path, grid(), planned=9)
    assert any("6 of 9 planned cells" in text for text in texts(data, "What not to trust"))


def test_unknown_numbers_carry_their_reason_and_are_never_zero(tmp_path: Path) -> None:
    few = cell("reference", 1, 128, n=8)
    few["server"] = None
    few["arithmetic"] = {}
    few["whole"]["tpot_ms"] = None
    few["whole"]["decode_tokens_per_s"] = float("nan")
    data = load(tmp_path, [few])
    values = data.points[0].values
    assert values["ttft_ms_p50"].mean == pytest.approx(140.8)
    assert (values["ttft_ms_p90"].mean, values["ttft_ms_p90"].why) == (None, "withheld: needs 10 values, there are 8")
    assert values["kv_pool_bytes"].why == "the server does not tell"
    for measure in ("tpot_ms_p50", "user_tokens_per_s", "decode_tokens_per_s", "kv_bytes_predicted"):
        assert values[measure].mean is None
        assert values[measure].why
    assert data.memory == []
    (gaps,) = (t for t in texts(data, "What not to trust") if t.startswith("Withheld"))
    assert "TTFT p90 in 1" in gaps
    assert "decode tokens/s in 1" in gaps


def test_every_number_of_an_empty_cell_is_unknown(tmp_path: Path) -> None:
    bare = {"id": "x", "engine": "reference", "verdict": "INVALID", "reasons": [{"code": "unreadable_cell"}]}
    data = load(tmp_path, [bare])
    assert all(not v.known for v in data.cells[0].values.values())
    assert data.reasons[0].code == "unreadable_cell"


def with_batch(given: Cell, **readings: float) -> Cell:
    return {**given, "batch": {**given["batch"], "readings": readings}}


def test_the_realised_batch_of_all_engines_is_one_quantity_and_the_axis_names_it(tmp_path: Path) -> None:
    told = [with_batch(c, steps=3.0, gauge=3.3, in_flight=4.0) for c in grid(("a",), (4,), (128,))]
    mute = [with_batch(c, gauge=3.4, in_flight=4.0) for c in grid(("b",), (4,), (128,))]
    blind = [with_batch(c, in_flight=4.1) for c in grid(("c",), (4,), (128,))]
    for folder, cells, source, values in (
        ("one", told, "steps", [3.0]),
        ("two", told + mute, "gauge", [3.3, 3.4]),
        ("three", told + mute + blind, "in_flight", [4.0, 4.0, 4.1]),
        # An INVALID cell has no say.
        ("four", told + [flawed("INVALID", "server_died")(c) for c in blind], "steps", [3.0, None]),
    ):
        (tmp_path / folder).mkdir()
        data = load(tmp_path / folder, cells)
        assert data.readings.batch == source
        assert [c.values["batch_realised"].mean for c in data.cells] == values
        figure = next(f for f in build_figures(data) if f.spec.id == "throughput")
        assert figure.x_axis.label == f"realised batch ({BATCH_WORDS[source]})"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3"])
def test_a_report_survives_damaged_records_of_cells_and_sessions(tmp_path: Path, content: bytes) -> None:
    store = synthetic_run(tmp_path, ("a", "b"), (1,))
    hurt, other = store.cells()
    (store.cell_dir(hurt.id) / "cell.json").write_bytes(content)
    (store.session_dir(other.session) / "session.json").write_bytes(content)
    data = load_report_data(store)
    assert {c.id: c.verdict for c in data.cells} == {hurt.id: "INVALID", other.id: "VALID"}
    assert [e.label for e in data.engines][:2] == ["a", "b"]


def test_an_engine_is_described_by_the_last_session_that_told_its_settings(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path, ("a",), (1,))
    folder = store.path / "sessions" / "900-b0-a"
    folder.mkdir()
    failed = SessionRecord("900-b0-a", "a", "reference", 0, "m", "http://127.0.0.1:9", argv=["never", "started"])
    (folder / "session.json").write_bytes(to_json(failed.to_dict()))
    (engine,) = build_summary(store)["engines"]
    assert engine["settings"]["block_size"]["value"] == 16
    assert engine["versions"]["reference"] == "0.1.0"
    assert len(engine["sessions"]) == 2
    data = load_report_data(store)
    assert data.engines[0].versions["reference"] == "0.1.0"
    assert "block_size" in [s.name for s in data.engines[0].settings]
    assert "never" not in data.reproduction.launches[0].command


def phases(given: Cell, prefill: str | None, decode: str | None) -> Cell:
    found = {"prefill": {"source": prefill, "at_client": 7.0}, "decode": {"source": decode, "at_client": 5.0}}
    return {**given, "phases": found}


def test_phase_rates_of_different_readings_share_no_panel(tmp_path: Path) -> None:
    a, b = (grid((e,), (4,), (128,))[0] for e in ("a", "b"))
    for folder, first, second, estimated in (
        ("same", ("steps", "steps"), ("steps", "steps"), []),
        ("wave", ("steps", "wave"), ("client", "wave"), ["prefill"]),
        ("both", ("steps", "steps"), ("client", "client"), ["prefill", "decode"]),
        ("client", ("client", "client"), ("client", "client"), ["prefill", "decode"]),
    ):
        (tmp_path / folder).mkdir()
        data = load(tmp_path / folder, [phases(a, *first), phases(b, *second)])
        for name, at_client in (("prefill", 7.0), ("decode", 5.0)):
            measure = f"{name}_tokens_per_s"
            values = {c.values[measure].mean for c in data.cells}
            assert (values == {at_client}) == (name in estimated)
            assert data.readings.estimated(measure) == (name in estimated)
            (column,) = [c for c in columns_of(data) if c.measure == measure]
            assert ("estimate" in column.under) == (name in estimated)
        titles = [p.title for f in build_figures(data) if f.spec.id == "phases" for p in f.panels]
        assert ["estimate" in title for title in titles] == [n in estimated for n in ("prefill", "decode")]
        assert any("estimates" in text for text in texts(data, "Prefill and decode")) == bool(estimated)


def test_kv_rows_put_the_formula_beside_what_the_engine_says(tmp_path: Path) -> None:
    data = load(tmp_path, grid(batches=(16,), input_lens=(512,)))
    (row,) = data.memory
    assert row.predicted.mean == PER_TOKEN * 16 * 576
    assert row.ratio == pytest.approx(0.99)
    (text,) = texts(data, "Memory")
    assert size(PER_TOKEN * 16 * 576) in text
    assert "22.5 KiB a token" in text


def test_reasons_are_gathered_by_code_worst_first(tmp_path: Path) -> None:
    cells = grid()
    cells[0], cells[1] = flawed("SUSPECT", "client_lag", "A")(cells[0]), flawed("SUSPECT", "client_lag", "B")(cells[1])
    cells[2] = flawed("INVALID", "server_died", "C")(cells[2])
    data = load(tmp_path, cells)
    assert [(r.code, len(r.evidence)) for r in data.reasons] == [
        ("server_died", 1),
        ("client_lag", 2),
        ("no_window", 6),
    ]
    assert data.reasons[1].evidence == [
        ("reference, 128 in / 64 out, batch 1", "A"),
        ("reference, 128 in / 64 out, batch 4", "B"),
    ]


def test_two_scopes_are_never_mixed() -> None:
    steady, whole = {"verdict": "VALID", "window": {}}, {"verdict": "VALID", "window": None}
    assert shown_scope([steady, {**whole, "verdict": "INVALID"}]) == "window"
    assert shown_scope([steady, whole]) == "whole"
    assert shown_scope([]) == "whole"


def test_settings_tell_where_they_were_read_and_what_differs(tmp_path: Path) -> None:
    (engine,) = load(tmp_path, grid()).engines
    rows = {s.name: s for s in engine.settings}
    assert rows["dtype"].differs
    assert (rows["dtype"].value, rows["dtype"].asked) == ("bfloat16", "float32")
    assert not rows["block_size"].differs
    assert rows["kv_cache_bytes"].value == "1073741824 (1.00 GiB)"
    assert rows["kv_cache_bytes"].source == "read from its log"
    assert engine.sessions[0].timeline == [("launched", 0.0), ("ready", 2.0), ("first_cell", 3.0)]


def test_the_run_can_be_done_again_from_the_report(tmp_path: Path) -> None:
    store = make_run(tmp_path / "run", grid())
    told = load_report_data(store).reproduction
    assert told.starts == ["dyno sweep --backend reference --model smollm2-135m --batch 1,4,16"]
    assert told.experiment == store.experiment_text
    (launch,) = told.launches
    assert launch.line.startswith("NOTE='two words' OMP_NUM_THREADS=2 python -m backends.reference")


def test_a_summary_that_lacks_a_committed_cell_is_built_again(tmp_path: Path) -> None:
    store = synthetic_run(tmp_path)
    store.write_summary({"schema": 1, "run": "old", "engines": [], "cells": []})
    assert len(load_report_data(store).cells) == len(store.cells()) > 0


def test_a_run_of_known_schedule_is_reported_as_scheduled(tmp_path: Path) -> None:
    schedule = Schedule(prefill_ns_per_token=100_000, step_ns=10_000_000, per_sequence_ns=500_000)
    data = load_report_data(synthetic_run(tmp_path, engines=("only",), batches=(1, 4), schedule=schedule))
    first, last = data.lines[0].points
    assert first.values["tpot_ms_p50"].mean == pytest.approx(10.5)
    assert first.values["ttft_ms_p50"].mean == pytest.approx(12.8)
    assert last.values["tpot_ms_p50"].mean is not None
    assert last.values["batch_realised"].mean == pytest.approx(
        (12.8 * (1 + 2 + 3 + 4) + 15 * 12 * 4) / (4 * 12.8 + 15 * 12)
    )
    assert first.values["prefill_tokens_per_s"].mean == pytest.approx(10_000)
    assert data.verdicts == {"VALID": 2}
    assert {d.id for d in data.definitions} >= {"ttft_ms", "output_tokens_per_s"}


def test_report_data_is_plain(tmp_path: Path) -> None:
    data = dataclasses.asdict(load(tmp_path, grid()))

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                assert isinstance(key, str)
                walk(item)
        elif isinstance(value, list | tuple | frozenset):
            for item in value:
                walk(item)
        else:
            assert value is None or type(value) in (str, int, float, bool), type(value)

    walk(data)


@pytest.mark.parametrize(
    ("given_length", "label"),
    [
        ({"dist": "fixed", "tokens": 1024}, "1,024 in / 64 out"),
        ({"dist": "uniform", "low": 103, "high": 153}, "about 128 in / 64 out"),
        ({"dist": "lognormal"}, "lognormal in / 64 out"),
    ],
)
def test_lengths_in_words(given_length: dict[str, object], label: str) -> None:
    workload = {"type": "random", "input_len": given_length, "output_len": {"dist": "fixed", "tokens": 64}}
    assert workload_info(workload).label == label
    assert workload_info({"type": "sharegpt"}).label == "sharegpt"


def test_loads_in_words() -> None:
    assert [load_words(*x) for x in (("batch", 16), ("concurrency", 4), ("rate", 2.5), ("burst", 3))] == [
        "batch 16",
        "4 in flight",
        "2.5 requests/s",
        "burst 3",
    ]


def test_numbers_in_words() -> None:
    shown = [number(v) for v in (None, 0, 0.0123, 0.8, 0.279, 1.5, 9.996, 22.84, 99.96, 228.4, 49_012.3)]
    assert shown == ["–", "0", "0.0123", "0.80", "0.279", "1.50", "10.0", "22.8", "100", "228", "49,012"]
    assert [size(v) for v in (None, 0, 512, 23_040, 116_135_915_827)] == ["–", "0 B", "512 B", "22.5 KiB", "108 GiB"]
    assert [size(v) for v in (1023, 1024, 2**30 - 2**10, 2**30 - 2**20)] == [
        "1,023 B",
        "1.00 KiB",
        "1.00 GiB",
        "1,023 MiB",
    ]
    assert [compact(v) for v in (99_999, 99_999.6, 123_456, 999_600, 36_909_876, 2e9)] == [
        "99,999",
        "100k",
        "123k",
        "1.00M",
        "36.9M",
        "2.00G",
    ]
    assert percent(0.25) == "25.0 %"
    assert [count(v) for v in (16, 7.934, 1024)] == ["16", "7.93", "1,024"]
    assert listed(["a", "b", "c", "d", "e"], 4) == "a, b, c and 2 more"


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e12)), max_size=8))
def test_the_mean_over_blocks_lies_in_its_range_and_skips_the_unknown(numbers: list[float | None]) -> None:
    value = over_blocks([Value(None, why="gone") if v is None else Value.of(v) for v in numbers])
    known = [v for v in numbers if v is not None]
    assert value.n == len(known)
    if not known:
        assert value.mean is None
        assert value.why
        return
    assert value.mean is not None
    assert min(known) == value.low
    assert max(known) == value.high
    assert min(known) * (1 - 1e-12) <= value.mean <= max(known) * (1 + 1e-12)


def test_measures_have_distinct_ids(tmp_path: Path) -> None:
    store: RunStore = make_run(tmp_path / "run", grid(batches=(1,), input_lens=(128,)))
    assert set(load_report_data(store).cells[0].values) == set(MEASURE)


def test_percentiles_of_a_cell_carry_their_interval(tmp_path: Path) -> None:
    made = cell("reference", 4, 128)
    made["whole"]["ttft_ms"]["intervals"] = {"p50": [500.0, 600.0], "p90": None}
    data = load_report_data(make_run(tmp_path / "run", [made]))
    values = data.cells[0].values
    assert values["ttft_ms_p50"].sure == (500.0, 600.0)
    assert values["ttft_ms_p90"].sure is None
    column = next(c for c in columns_of(data) if c.measure == "ttft_ms_p50")
    assert column.sure(values["ttft_ms_p50"]) == "95 % sure of 500 to 600, for this server's life"
    assert column.sure(values["ttft_ms_p90"]) == ""
