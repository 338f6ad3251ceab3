"""What a running sweep shows: where it is, how fast, the device where there is one; and calm lines where nothing may move."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from harness.cli.live import LineObserver, LiveObserver, observer_for
from harness.cli.live_view import Now, bar, cells_text, clock, device_line, view
from harness.observer import CellProgress
from tests.harness.test_eta import planned

PROGRESS = CellProgress(done=3, total=12, in_flight=8, failed=1, tokens=96, elapsed_s=4.0, server={})
GPU: dict[str, float | None] = {
    "gpu.busy": 0.97,
    "gpu.power_instant_w": 412.0,
    "gpu.sm_clock_mhz": 1980.0,
    "gpu.temperature_c": 61.0,
    "gpu.memory_used_bytes": 40.0 * 2**30,
}


def lines(now: Now, width: int = 80, left: float | None = 130.0) -> list[str]:
    return view(now, 60.0, left, width).plain.split("\n")


def running(progress: CellProgress = PROGRESS) -> Now:
    now = Now(cells=12, done=2, sessions=4, session=1)
    now.running("small · batch 8 · 32 in, 16 out", progress)
    return now


def test_it_tells_cell_session_eta_speed_and_failures() -> None:
    where, what, speed = lines(running())
    assert "cell 3/12 · session 1/4 · 1:00 gone · ETA 2:10" in where
    assert what == "small · batch 8 · 32 in, 16 out"
    assert speed == "24 tok/s · 3/12 requests · 8 in flight · 1 failed"


def test_kv_and_devices_are_shown_only_where_they_are_told_of() -> None:
    seen = replace(PROGRESS, server={"kv_usage": 0.34}, devices={"GPU-1f3a9b7c-22": GPU})
    *_, speed, device = lines(running(seen))
    assert speed.endswith("KV 34%")
    assert device == "GPU-1f3a9b7c: 97% busy · 412 W · 1,980 MHz · 61 C · 40.0 GiB"
    assert device_line("GPU-0", {"gpu.busy": None}) == "GPU-0: nothing read yet"


def test_the_rate_follows_the_servers_own_counter_before_any_request_has_ended() -> None:
    now = running(replace(PROGRESS, tokens=0, server={"generation_tokens_total": 1000.0}))
    assert lines(now)[2].startswith("– tok/s")
    now.running("x", replace(PROGRESS, tokens=0, elapsed_s=6.0, server={"generation_tokens_total": 1500.0}))
    assert lines(now)[2].startswith("250 tok/s")


def test_a_load_that_only_time_ends_shows_no_total() -> None:
    assert "3 requests" in lines(running(replace(PROGRESS, total=0)))[2]


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    now = running(replace(PROGRESS, devices={"GPU-1f3a": GPU}))
    now.what = "a label as long as a label may be " * 3
    assert all(len(line) <= width for line in lines(now, width))
    now.idle("starting it", "runs/a-long-name-of-a-run/sessions/0007-b3-a-label-as-long-as-a-label-may-be/server.log")
    log = lines(now, width)[-1]
    assert log.startswith("log ")
    assert log.endswith("server.log"), "its end is what tells it from the others"
    assert len(log) <= width


def test_the_bar_is_shortened_before_a_word_is_cut() -> None:
    now = running()
    now.done = 12
    line = lines(now, 80)[0]
    assert line.endswith("no ETA: it depends on the answers")
    assert set(line.split()[0]) <= set("━─")
    assert lines(running(), 80)[0].split()[0] == bar((2 + 3 / 12) / 12)
    assert lines(running(), 60)[0].endswith("ETA 2:10")


def test_the_log_of_a_start_stays_on_a_line_of_its_own_while_it_is_waited_for() -> None:
    now = running()
    now.idle("starting small", "runs/x/sessions/0/server.log")
    assert lines(now)[1:] == ["starting small", "log runs/x/sessions/0/server.log"]
    now.running("small · batch 8", PROGRESS)
    assert not any(line.startswith("log ") for line in lines(now))


def test_after_what_was_planned_no_total_and_no_eta_is_claimed() -> None:
    now = running()
    now.done = 12
    assert "cell 13 ·" in lines(now)[0]
    assert "no ETA" in lines(now)[0]
    assert "ETA after a cell" in lines(running(), left=None)[0]


def test_small_parts() -> None:
    assert cells_text(13, 12) == "13"
    assert (clock(61), clock(3723), clock(-1)) == ("1:01", "1:02:03", "0:00")
    assert (bar(0), bar(1)) == ("─" * 20, "━" * 20)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_real_terminal_gets_what_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(observer_for(Console(file=_Terminal()), quiet=False), LiveObserver)
    assert type(observer_for(Console(file=io.StringIO()), quiet=False)) is LineObserver
    assert type(observer_for(Console(file=io.StringIO(), force_terminal=True), quiet=False)) is LineObserver
    monkeypatch.setenv("TERM", "dumb")
    assert type(observer_for(Console(file=_Terminal()), quiet=False)) is LineObserver


def tell_of_a_run(observer: LineObserver) -> None:
    cells = planned(batches=(1, 8, 16))
    summary: dict[str, Any] = {"whole": {"output_tokens_per_s": 74.2}, "verdict": "VALID"}
    observer.run_started(cells, {cells[2].id})
    observer.session_starting("e0", 0, "runs/x/sessions/0/server.log")
    observer.session_ready("e0", 1.5)
    observer.cell_started(cells[0])
    observer.cell_progress(cells[0], PROGRESS)
    observer.cell_done(cells[0], summary)
    skipped = {"words": "a smaller one ran out of memory"}
    load, workload = cells[1].load, cells[1].workload
    observer.cell_skipped(
        {
            "id": cells[1].id,
            "engine": "e0",
            "load": {"mode": load.mode, "value": load.value},
            "workload": workload.model_dump(mode="json"),
            "skipped": skipped,
        }
    )
    observer.session_ended("e0")


def test_without_a_terminal_it_is_a_line_an_event_and_no_control_character() -> None:
    out = io.StringIO()
    tell_of_a_run(LineObserver(Console(file=out, width=80)))
    said = out.getvalue()
    assert said.splitlines()[0] == "1 of 3 cells are committed already and are not run again."
    assert "[2/3] e0 · batch 1 · " in said
    assert "[3/3] e0 · batch 8 · " in said
    assert len(said.splitlines()) == 5
    assert all(c.isprintable() or c == "\n" for c in said)


def test_on_a_terminal_finished_cells_stay_and_the_view_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = _Terminal()
    tell_of_a_run(LiveObserver(Console(file=out, width=80)))
    said = out.getvalue()
    assert "[2/3] e0 · batch 1 · " in said
    assert "\x1b[3" not in said  # no colour
    assert said.endswith(("\x1b[2K", "\x1b[?25h"))


def test_a_start_that_is_interrupted_leaves_no_view_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = _Terminal()
    observer = LiveObserver(Console(file=out, width=80))
    observer.run_started(planned(batches=(1,)), ())
    observer.session_starting("e0", 0, "runs/x/server.log")
    observer.run_interrupted()
    observer.run_ended()
    assert "Interrupted: stopping what runs." in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")


def test_the_view_of_a_later_session_wipes_nothing_that_was_printed_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = _Terminal()
    observer = LiveObserver(Console(file=out, width=80))
    cells = planned(batches=(1,))
    observer.run_started(cells, ())
    for block in (0, 1):
        before = len(out.getvalue())
        observer.session_starting("e0", block, "runs/x/server.log")
        observer.session_ended("e0")
        # The first thing drawn: no line above it is gone to.
        assert "\x1b[1A" not in out.getvalue()[before:].split("log runs/x")[0]


def test_a_long_start_says_every_half_minute_how_far_it_is_and_how_long_it_may_take() -> None:
    out = io.StringIO()
    observer = LineObserver(Console(file=out, width=80))
    for elapsed in (0.5, 29.0, 31.0, 45.0, 62.0, 63.0):
        observer.session_waiting("vllm", elapsed, 1800.0, "weights loaded" if elapsed > 40 else "")
    observer.session_starting("small", 1, "")
    observer.session_waiting("small", 31.0, 60.0, "")
    told = [line for line in out.getvalue().splitlines() if "not ready yet" in line]
    assert told == [
        "vllm is not ready yet after 31 s of at most 1,800 s",
        "vllm is not ready yet after 62 s of at most 1,800 s (weights loaded)",
        "small is not ready yet after 31 s of at most 60 s",
    ]


def test_the_live_view_of_a_start_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = _Terminal()
    observer = LiveObserver(Console(file=out, width=80))
    observer.run_started(planned(batches=(1,)), ())
    observer.session_starting("e0", 0, "")
    observer.session_waiting("e0", 65.0, 1800.0, "weights loaded")
    observer.session_ended("e0")
    assert "waiting for e0 to be ready · 1:05 of at most 30:00 · weights loaded" in out.getvalue()
