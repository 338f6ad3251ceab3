"""Samplers: what cannot be read is null with a reason, and a dead sampler never ends a run."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends.base import MetricRule
from harness.telemetry.host import HostSampler
from harness.telemetry.process import Mark, SamplerProcess
from harness.telemetry.sampler import SamplerConfig
from harness.telemetry.server import ServerSampler
from results.clock import now_ns
from results.schema import SAMPLES
from tests.waiting import LONG_S, wait_until

RULES = (MetricRule("running", ("x:running",)), MetricRule("waiting", ("x:waiting",)))


@contextmanager
def metrics_server(answer: Callable[[], tuple[int, bytes]]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_metric_the_server_does_not_have_is_null_with_a_reason() -> None:
    with metrics_server(lambda: (200, b'x:running{m="a"} 3\nx:running{m="b"} 4\n')) as url:
        running, waiting = ServerSampler(url, "/metrics", RULES, None, 5).sample()
    assert (running.metric, running.value, running.reason) == ("running", 7.0, None)
    assert (waiting.metric, waiting.value) == ("waiting", None)
    assert waiting.reason == "not in the server's metrics"
    assert running.t0 <= running.t1


def test_a_server_that_answers_with_an_error_or_not_at_all_gives_nulls_that_say_so() -> None:
    with metrics_server(lambda: (503, b"no")) as url:
        assert {s.reason for s in ServerSampler(url, "/metrics", RULES, None, 5).sample()} == {
            "/metrics answered HTTP 503"
        }
    gone = ServerSampler(url, "/metrics", RULES, None, 1).sample()
    assert all(s.value is None and s.reason and s.reason.startswith("no answer from /metrics") for s in gone)


def test_the_tree_of_a_server_is_summed_and_its_cpu_time_never_falls() -> None:
    script = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'x = bytearray(50_000_000); input()'], stdin=0); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as server:
        try:
            wait_until(
                lambda: value(HostSampler(server.pid), "server_rss_bytes") > 50e6, "the child's memory is counted"
            )
            sampler = HostSampler(server.pid)
            before = value(sampler, "server_cpu_s")
        finally:
            assert server.stdin is not None
            server.stdin.close()
        server.wait(LONG_S)
        gone = {s.metric: s for s in sampler.sample() if s.metric.startswith("server")}
        assert before > 0
        assert all(s.value is None and s.reason == "no process of the server is alive" for s in gone.values())


def value(sampler: HostSampler, metric: str) -> float:
    return next(s.value for s in sampler.sample() if s.metric == metric) or 0.0


def test_a_server_that_is_not_ours_has_no_host_figures_and_says_why() -> None:
    samples = {s.metric: s for s in HostSampler(None).sample()}
    assert samples["server_rss_bytes"].value is None
    assert samples["server_rss_bytes"].reason == "the server was not started by this run"


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[SamplerProcess]:
    config = SamplerConfig(out=str(tmp_path / "s.jsonl"), interval_s=0.02, root_pid=os.getpid())
    process = SamplerProcess(config, tmp_path / "log")
    yield process
    process.stop()


def test_samples_of_an_interval_are_in_schema_order_and_stop_when_told(sampler: SamplerProcess, tmp_path: Path) -> None:
    start = now_ns()
    wait_until(lambda: sampler.latest().get("server_rss_bytes") is not None, "a first sample")
    wait_until(lambda: len(sampler.since(Mark(start), now_ns())["t0"]) > 12, "several samples")
    columns = sampler.since(Mark(start), now_ns())
    assert list(columns) == SAMPLES.names
    assert set(columns["metric"]) == {
        "host_cpu_fraction",
        "host_busy_s",
        "host_cpus",
        "server_cpu_s",
        "server_rss_bytes",
    }
    assert all(t1 >= start for t1 in columns["t1"])
    assert sampler.since(Mark(), 1)["t0"] == []
    sampler.stop()
    assert not sampler.alive


def test_a_killed_sampler_leaves_what_it_had_and_a_reason(sampler: SamplerProcess) -> None:
    wait_until(lambda: bool(sampler.latest()), "a first sample")
    os.kill(sampler.pid, signal.SIGKILL)
    wait_until(lambda: not sampler.alive, "the sampler's end")
    columns = sampler.since(Mark(), now_ns())
    assert "server_rss_bytes" in columns["metric"]
    assert columns["reason"][-1] == "the sampler ended with code -9"


def test_ctrl_c_does_not_end_the_sampler_before_its_parent_decides(sampler: SamplerProcess) -> None:
    wait_until(lambda: bool(sampler.latest()), "a first sample")
    os.kill(sampler.pid, signal.SIGINT)
    t = now_ns()
    wait_until(lambda: len(sampler.since(Mark(t), now_ns())["t0"]) > 6, "samples after the interrupt")


def test_a_half_written_last_line_is_not_read(sampler: SamplerProcess, tmp_path: Path) -> None:
    wait_until(lambda: bool(sampler.latest()), "a first sample")
    sampler.stop()
    before = len(sampler.since(Mark(), now_ns())["t0"])
    with (tmp_path / "s.jsonl").open("a") as file:
        file.write('["host","half"')
    assert len(sampler.since(Mark(), now_ns())["t0"]) == before


def test_a_settled_mark_has_readings_on_both_sides_of_what_follows(sampler: SamplerProcess) -> None:
    wait_until(lambda: bool(sampler.latest()), "a first sample")
    mark = sampler.settle()
    start = now_ns()
    sampler.settle()
    columns = sampler.since(mark, now_ns())
    assert min(columns["t0"]) < start < max(columns["t0"])
    assert all(t1 >= mark.t for t1 in columns["t1"])


def test_settling_on_a_dead_sampler_ends(sampler: SamplerProcess) -> None:
    wait_until(lambda: bool(sampler.latest()), "a first sample")
    sampler.stop()
    assert sampler.settle().t <= now_ns()
