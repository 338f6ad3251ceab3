"""How long each server took to start: phases by their moments, a bar a session, and what is not told is not made up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reports.figure_files import write_figures
from reports.html import render_html
from reports.pictures import NARROW
from reports.startup import Start, starts_of
from reports.startup_svg import draw_starts, startup_keys
from reports.svg import Frame
from reports.times import WIDE
from results.clock import NS_PER_S
from results.report_background import EngineInfo, SessionInfo
from results.report_data import load_report_data
from tests.reports.runs import grid, make_run

VLLM = {
    "log_first_line": 2.0,
    "engine_config": 3.0,
    "weights_loaded": 8.0,
    "compiled": 30.0,
    "kv_allocated": 31.0,
    "graphs_captured": 40.0,
    "engine_ready": 40.0,
    "http_ready": 41.0,
    "spawn": 0.0,
    "listening": 41.2,
    "ready": 41.3,
    "first_token": 42.0,
    "stop": 99.0,
    "gone": 101.0,
}


def engine(label: str, *timelines: dict[str, float]) -> EngineInfo:
    sessions = [
        SessionInfo(f"{at:03d}-{label}", at, sorted(t.items(), key=lambda item: item[1]), 0, True, None)
        for at, t in enumerate(timelines)
    ]
    return EngineInfo(label, "vllm", sessions=sessions)


def only(label: str, timeline: dict[str, float]) -> Start:
    ((_, (start,)),) = starts_of([engine(label, timeline)]).engines
    return start


def test_phases_follow_each_other_from_the_launch_to_the_first_token() -> None:
    start = only("vllm", VLLM)
    assert [(p.words, p.high - p.low) for p in start.phases[:6]] == [
        ("process and imports, until its log begins", 2.0),
        ("configuration", 1.0),
        ("weights", 5.0),
        ("compilation", 22.0),
        ("memory profile, KV cache", 1.0),
        ("CUDA graphs", 9.0),
    ]
    assert start.phases[0].low == 0
    assert all(a.high == b.low for a, b in zip(start.phases, start.phases[1:], strict=False))
    assert start.seconds == 42.0
    # The log says both ends in one second: what took no time that it tells is no piece.
    assert "rest of the engine" not in {p.words for p in start.phases}
    assert start.told(start.phases[3]) == (
        "compilation: 22.0 s\n52.4 % of the start, from 8.00 s to 30.0 s after the launch\nsession 000-vllm"
    )


def test_a_stamp_to_the_second_lies_neither_before_the_launch_nor_after_the_first_token() -> None:
    start = only(
        "e",
        {
            "log_first_line": 0.0,
            "spawn": 0.6,
            "weights_loaded": 2.0,
            "listening": 2.9,
            "first_token": 3.1,
            "http_ready": 4.0,
        },
    )
    assert min(p.low for p in start.phases) == 0
    assert start.seconds == pytest.approx(2.5)
    assert [p.words for p in start.phases] == ["weights", "until its port is open", "until it gives a token"]


def test_a_start_that_was_given_up_shows_where_it_hung() -> None:
    start = only("e", {"spawn": 0.0, "log_first_line": 1.0, "weights_loaded": 4.0, "stop": 64.0, "gone": 65.0})
    assert (start.phases[-1].words, start.seconds) == ("then nothing, until it was given up", 64.0)


def test_a_server_that_only_says_ready_is_left_out_and_told() -> None:
    starts = starts_of([engine("url", {"spawn": 0.0, "ready": 0.1, "first_token": 0.2}), engine("vllm", VLLM)])
    assert [label for label, _ in starts.engines] == ["vllm"]
    assert starts.missing == ["url: 1 session of which no phase of the start is known"]


@pytest.mark.parametrize(
    "timeline",
    [
        {"log_first_line": 0.0, "spawn": 0.5},
        {"listening": 0.0, "first_token": 0.0, "spawn": 0.0},
        {"first_token": 0.0, "spawn": 0.5, "listening": 0.9},
    ],
)
def test_a_start_of_which_no_phase_took_time_has_no_bar(timeline: dict[str, float]) -> None:
    starts = starts_of([engine("odd", timeline), engine("vllm", VLLM)])
    assert [label for label, _ in starts.engines] == ["vllm"]
    assert starts.missing == ["odd: 1 session of which no phase of the start is known"]
    assert starts_of([engine("odd", timeline)]).engines == []


def test_of_many_starts_the_shortest_and_the_longest_are_among_the_drawn() -> None:
    several = [{"spawn": 0.0, "listening": 2.0 + i, "first_token": 3.0 + i} for i in range(20)]
    starts = starts_of([engine("e", *several)])
    drawn = [start.seconds for start in starts.engines[0][1]]
    assert len(drawn) == 6
    assert (drawn[0], drawn[-1]) == (3.0, 22.0)
    assert "drawn are 6 of 20 starts" in starts.missing[0]


@pytest.mark.parametrize("frame", [WIDE, NARROW])
def test_every_phase_is_a_mark_and_has_a_key(frame: Frame) -> None:
    starts = starts_of([engine("<a>", VLLM), engine("b", VLLM, VLLM)])
    drawn = draw_starts(starts, frame)
    phases = sum(len(start.phases) for _, of_engine in starts.engines for start in of_engine)
    assert drawn.count('class="mark') == phases == 30
    assert drawn.count(">42.0 s</text>") == 3
    assert "&lt;a&gt;" in drawn
    assert len(startup_keys(starts)) == 10


def test_phases_are_told_apart_by_letters_too() -> None:
    starts = starts_of([engine("a", VLLM)])
    keys = startup_keys(starts)
    letters = [words.split(":")[0] for _, words in keys]
    assert letters == list("abcdefghij")
    assert all(f">{letter}</text>" in swatch for letter, (swatch, _) in zip(letters, keys, strict=True))
    longest = max(starts.engines[0][1][0].phases, key=lambda p: p.high - p.low)
    letter = next(letter for letter, (_, words) in zip(letters, keys, strict=True) if words.endswith(longest.words))
    assert re.search(rf">{letter} [\d.]+ s</text>", draw_starts(starts, WIDE))


def test_the_page_and_the_figure_files_have_it(tmp_path: Path) -> None:
    store = make_run(tmp_path / "run", grid())
    assert 'id="figure-startup"' not in render_html(load_report_data(store))
    for path in store.path.glob("sessions/*/session.json"):
        told = {**json.loads(path.read_text()), "timeline": {k: round((5 + v) * NS_PER_S) for k, v in VLLM.items()}}
        path.write_text(json.dumps(told))
    data = load_report_data(store)
    section = render_html(data).split('<section id="settings"')[1].split("</section>")[0]
    assert 'id="figure-startup"' in section
    assert section.index('id="figure-startup"') < section.index('<div class="engine">')
    written = {path.name: path for path in write_figures(data, [], tmp_path / "figures")}
    assert "CUDA graphs" in written["startup.svg"].read_text()
