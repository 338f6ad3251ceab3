"""Connections, loads and stamps of the client, seen from a server that records what it gets."""

from __future__ import annotations

import itertools
import select
import socket
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.load import backlog as backlog_module
from harness.load import client as client_module
from harness.load import connection as connection_module
from harness.load import recorder as recorder_module
from harness.load.backlog import Backlog
from harness.load.client import Client
from harness.load.connection import Connection
from harness.load.counts import Counts
from harness.load.plan import RequestPlan
from harness.load.poller import Poller
from harness.load.reader import reader_for
from harness.load.recorder import EventRecorder
from results.clock import NS_PER_MS, NS_PER_S, now_ns
from tests.harness.load.support import body, make_plan, run_load
from tests.servers.openai_fake import CERTIFICATE, FakeServer
from tests.servers.openai_fake_steps import (
    DONE,
    END,
    Close,
    Delay,
    Gate,
    Received,
    Reset,
    Step,
    Wait,
    Write,
    chunk,
    full_answer,
    head,
    split,
    text_event,
    usage_event,
)
from tests.servers.openai_fake_tokens import TokenSchedule
from tests.waiting import LONG_S

pytestmark = pytest.mark.usefixtures("either_client")


def test_the_server_gets_exactly_what_was_planned(tmp_path: Path) -> None:
    sent = body(4, prompt=[7, 8, 9])
    with FakeServer(full_answer()) as server:
        run_load(server.url + "/base/", tmp_path, bodies=[sent])
    (request,) = server.requests
    assert (request.method, request.path, request.body) == ("POST", "/base/v1/completions", sent)
    assert request.headers["x-request-id"] == "r0"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["host"] == server.url.removeprefix("http://")


def test_one_slot_uses_one_connection_for_all_its_requests(tmp_path: Path) -> None:
    with FakeServer([*full_answer()[:-1], Write(b"0\r\n\r\n")]) as server:
        ran = run_load(server.url, tmp_path, requests=200)
    assert ran.outcomes == ["ok"] * 200
    assert server.connections == [0]
    assert {row["connect_start"] for row in ran.requests} == {None}


def test_small_packets_are_not_held_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = connection_module.Connection._ready

    def ready(self: Any) -> None:
        seen.append(self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        real(self)

    monkeypatch.setattr(connection_module.Connection, "_ready", ready)
    with FakeServer(full_answer()) as server:
        run_load(server.url, tmp_path)
    assert seen
    assert all(seen)


def test_a_batch_is_wholly_in_flight_before_any_of_it_is_answered(tmp_path: Path) -> None:
    gates: dict[int, Gate] = {}

    def script(request: Received) -> list[Step]:
        wave = request.index // 5
        gate = gates.setdefault(wave, Gate())
        if request.index % 5 == 4:
            gate.open()  # answered only once all five of the wave are here
        return [Wait(gate), *full_answer()]

    with FakeServer(script) as server:
        ran = run_load(server.url, tmp_path, requests=15, batch=5)
    assert ran.outcomes == ["ok"] * 15
    assert server.max_in_flight == 5
    waves = [[row for row in ran.requests if int(row["request_id"][1:]) // 5 == w] for w in range(3)]
    for before, after in itertools.pairwise(waves):
        assert max(r["end"] for r in before) <= min(r["intended"] for r in after)
    for wave in waves:
        assert sorted(r["slot"] for r in wave) == [0, 1, 2, 3, 4]
        assert len({r["intended"] for r in wave}) == 1


def test_no_hidden_cap_on_what_is_in_flight(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: Received) -> list[Step]:
        if request.index == 255:
            gate.open()
        return [Wait(gate), *full_answer()]

    with FakeServer(script) as server:
        ran = run_load(server.url, tmp_path, requests=256, concurrency=256)
    assert ran.outcomes == ["ok"] * 256
    assert server.max_in_flight == 256
    assert ran.client.counts.max_in_flight == 256


def test_a_closed_loop_keeps_its_slots_busy_and_never_exceeds_them(tmp_path: Path) -> None:
    with FakeServer(TokenSchedule(interval_s=0.001)) as server:
        ran = run_load(server.url, tmp_path, requests=21, concurrency=3)
    assert ran.outcomes == ["ok"] * 21
    assert server.max_in_flight == 3
    for slot in range(3):
        own = sorted((r for r in ran.requests if r["slot"] == slot), key=lambda r: r["sent"])
        assert len(own) >= 2
        for before, after in itertools.pairwise(own):
            assert after["intended"] == before["end"]  # at once, in the plan's eyes
    in_order = sorted(ran.requests, key=lambda r: r["queued"])
    assert [r["request_id"] for r in in_order] == [f"r{i}" for i in range(21)]


def test_a_loop_with_fewer_requests_than_slots_ends(tmp_path: Path) -> None:
    with FakeServer(full_answer()) as server:
        assert run_load(server.url, tmp_path, requests=2, concurrency=8).outcomes == ["ok"] * 2
        assert len(server.connections) == 2


@pytest.mark.usefixtures("late_breaks_too")
def test_a_connection_the_server_closed_while_idle_costs_no_request(tmp_path: Path) -> None:
    # Of each wave one request is slow, so that the other connection idles beyond the server's patience.
    gates = [Gate() for _ in range(3)]

    def script(request: Received) -> list[Step]:
        wave, slow = divmod(int(request.id[1:]), 2)
        return [Wait(gates[wave]), *full_answer()] if slow else full_answer()

    def progress(client: Client, counts: Counts) -> None:
        for gate in gates[: client.pool.closed_while_idle]:
            gate.open()

    with FakeServer(script, close_idle_after=0.1) as server:
        ran = run_load(server.url, tmp_path, requests=6, batch=2, progress=progress)
    assert ran.outcomes == ["ok"] * 6
    assert ran.client.pool.closed_while_idle >= 3
    assert len(server.connections) >= 4


def test_a_connection_is_replaced_before_the_server_would_close_it(tmp_path: Path) -> None:
    replaced = Gate()
    answer = [head(keep_alive="timeout=1"), *full_answer()[1:]]

    def script(request: Received) -> list[Step]:
        return [Wait(replaced), *answer] if request.id == "r1" else answer

    def progress(client: Client, counts: Counts) -> None:
        if client.pool.replaced:
            replaced.open()

    with FakeServer(script) as server:  # it closes nothing
        ran = run_load(server.url, tmp_path, requests=2, batch=2, progress=progress)
    assert ran.outcomes == ["ok"] * 2
    assert (ran.client.pool.replaced, ran.client.pool.closed_while_idle, ran.client.counts.retries) == (1, 0, 0)


@pytest.mark.usefixtures("late_breaks_too")
@pytest.mark.parametrize("how", [Close(), Reset()])
def test_a_request_that_crossed_with_the_close_is_sent_once_more_on_a_fresh_connection(
    how: Step, tmp_path: Path
) -> None:
    used: set[int] = set()

    def script(request: Received) -> list[Step]:
        first = request.connection not in used
        used.add(request.connection)
        return full_answer() if first else [how]

    with FakeServer(script) as server:
        ran = run_load(server.url, tmp_path, requests=6)
    assert ran.outcomes == ["ok"] * 6
    assert ran.client.counts.retries == 5
    assert [r.id for r in server.requests].count("r1") == 2
    again = next(row for row in ran.requests if row["request_id"] == "r1")
    assert again["connect_end"] <= again["sent"]


@pytest.mark.usefixtures("late_breaks_too")
def test_a_request_is_sent_twice_at_most(tmp_path: Path) -> None:
    with FakeServer([Reset()]) as server:
        ran = run_load(server.url, tmp_path)
    assert ran.outcomes == ["reset"]
    assert len(server.requests) == 2


def test_a_request_that_got_a_byte_is_not_sent_again(tmp_path: Path) -> None:
    with FakeServer([head(), Delay(0.05), Reset()]) as server:
        ran = run_load(server.url, tmp_path)
    assert ran.outcomes == ["reset"]
    assert len(server.requests) == 1


@pytest.mark.parametrize("header", [{"connection": "close"}, {}])
def test_a_server_that_closes_after_each_answer_gets_a_new_connection_each_time(
    header: dict[str, str], tmp_path: Path
) -> None:
    payload = text_event("a", "length") + usage_event(4) + DONE
    if header:
        steps: list[Step] = [head(**header), Write(chunk(payload)), END, Close()]
    else:  # no length at all: the body ends with the connection
        steps = [head(chunked=False), Write(payload), Close()]
    with FakeServer(steps) as server:
        ran = run_load(server.url, tmp_path, requests=4)
    assert ran.outcomes == ["ok"] * 4
    assert len(server.connections) == 4
    later = [row for row in ran.requests if row["request_id"] != "r0"]
    assert all(row["connect_start"] <= row["connect_end"] <= row["sent"] for row in later)


def test_a_connection_on_which_the_server_spoke_out_of_turn_is_not_used_again(tmp_path: Path) -> None:
    with FakeServer([*full_answer()[:-1], Write(b"0\r\n\r\nHTTP/1.1 408 Timeout\r\n\r\n")]) as server:
        ran = run_load(server.url, tmp_path, requests=3)
    assert ran.outcomes == ["ok"] * 3
    assert len(server.connections) == 3


@pytest.mark.usefixtures("late_breaks_too")
@pytest.mark.parametrize("rest", [b"0\r\n\r\n", b"data: late\n\n\r\n\r\n", b"}HTTP/1.1 200 OK\r\n\r\n"])
def test_what_is_left_of_an_answer_is_not_taken_for_the_next_ones(rest: bytes, tmp_path: Path) -> None:
    used: set[int] = set()

    def script(request: Received) -> list[Step]:
        """A server whose answer goes on after its end, so late that the next request is on its way already."""
        first = request.connection not in used
        used.add(request.connection)
        return full_answer() if first else [Write(rest), *full_answer()]

    with FakeServer(script) as server:
        ran = run_load(server.url, tmp_path, requests=4)
    assert ran.outcomes == ["ok"] * 4
    assert (ran.client.counts.retries, len(server.connections)) == (3, 4)


def test_what_is_no_http_is_the_failure_of_a_connections_first_request(tmp_path: Path) -> None:
    with FakeServer([Write(b"0\r\n\r\n")]) as server:
        ran = run_load(server.url, tmp_path)
    assert (ran.outcomes, ran.client.counts.retries, len(server.requests)) == (["reset"], 0, 1)


def test_a_streamed_body_with_a_length(tmp_path: Path) -> None:
    payload = text_event("a", "length") + usage_event(4) + DONE
    with FakeServer([head(chunked=False, content_length=len(payload)), *split(payload, 7)]) as server:
        ran = run_load(server.url, tmp_path, requests=2)
    assert ran.outcomes == ["ok"] * 2
    assert len(server.connections) == 1


def test_an_answer_sent_byte_by_byte(tmp_path: Path) -> None:
    data = b"".join(step.data for step in full_answer(2, 3) if isinstance(step, Write))
    with FakeServer([Write(b"HTTP/1.1 100 Continue\r\n\r\n"), *split(data)]) as server:
        ran = run_load(server.url, tmp_path, tokens=2)
    assert ran.outcomes == ["ok"]
    assert [c["kind"] for c in ran.chunks] == ["text", "text", "usage"]


def test_a_very_large_event_and_a_very_large_request(tmp_path: Path) -> None:
    large = text_event("x" * 1_000_000, "length")
    with FakeServer([head(), Write(chunk(large)), Write(chunk(usage_event(4) + DONE)), END]) as server:
        ran = run_load(server.url, tmp_path, bodies=[body(4, prompt=range(1_000_000))])
    assert ran.outcomes == ["ok"]
    assert len(server.requests[0].json["prompt"]) == 1_000_000
    assert ran.chunks[0]["bytes"] == len(large) - 8


def test_proxy_variables_are_not_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", ":")
    with FakeServer(full_answer()) as server:
        assert run_load(server.url, tmp_path).outcomes == ["ok"]


def test_ipv6_and_names_with_several_addresses(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        server = FakeServer(full_answer(), host="::1")
    except OSError as error:
        pytest.skip(f"::1 cannot be bound here: {error}")
    with server:
        (tmp_path / "a").mkdir()
        assert run_load(server.url, tmp_path / "a").outcomes == ["ok"]


def test_the_next_address_of_a_name_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(full_answer()) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = (socket.AF_INET, socket.SOCK_STREAM, 6, "", closed.getsockname())
        alive = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [dead, alive])
        ran = run_load("http://two-addresses:1", tmp_path, requests=4, concurrency=2)
    assert ran.outcomes == ["ok"] * 4


def test_tls_keeps_the_arrival_stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with FakeServer(TokenSchedule(interval_s=0.01), tls=True) as server:
        ran = run_load(server.url, tmp_path, requests=4, concurrency=2, bodies=[body(4, prompt=range(50_000))] * 4)
    assert ran.outcomes == ["ok"] * 4
    assert len(server.connections) == 2
    first = ran.chunks_of("r0")
    assert [c["tokens"] is None for c in first]
    if ran.client.kernel_stamps:
        assert all(c["lag"] is not None for c in first)


def test_a_certificate_nobody_vouches_for_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with FakeServer(full_answer(), tls=True) as server:
        ran = run_load(server.url, tmp_path)
        assert server.requests == []
    assert ran.outcomes == ["refused"]
    assert "certificate" in ran.requests[0]["error"]


def test_tls_against_a_server_without_it_is_refused_by_name(tmp_path: Path) -> None:
    with FakeServer([], greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        ran = run_load(server.url.replace("http", "https"), tmp_path)
    assert ran.outcomes == ["refused"]
    assert "TLS" in ran.requests[0]["error"]


# Stamps against the server's own


def test_stamps_enclose_the_servers_own(tmp_path: Path) -> None:
    schedule = TokenSchedule(ttft_s=0.05, interval_s=0.005)
    with FakeServer(schedule) as server:
        ran = run_load(server.url, tmp_path, requests=6, concurrency=2, tokens=8)
    assert ran.outcomes == ["ok"] * 6
    for row in ran.requests:
        received, *written = schedule.stamps[row["request_id"]]
        arrivals = [c["t"] for c in ran.chunks_of(row["request_id"]) if c["kind"] == "text"]
        assert len(arrivals) == len(written) == 8
        assert row["queued"] <= received
        # One clock on one machine: nothing arrives before it was written.
        assert all(arrived >= sent for arrived, sent in zip(arrivals, written, strict=True))
        assert row["first_token"] == arrivals[0]
        assert row["last_token"] == arrivals[-1]


@pytest.mark.usefixtures("stamping")
def test_a_busy_client_knows_when_data_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is blocked while tokens arrive: with the kernel's stamps only the lag grows."""
    gates = [Gate(), Gate()]
    seen: list[int] = []

    class SlowReader:
        """Sees that something has come, and is then held up."""

        def __init__(self, poller: Poller, *args: Any) -> None:
            self._poller, self._reader = poller, reader_for(poller, *args)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

        def gather(self, offset: int, rest: int, timeout: int, *bounds: int) -> list[tuple[int, int]]:
            for gate in gates[: len(seen)]:  # what was seen has been read: the next token may come
                gate.open()
            if self._poller.poll(timeout / NS_PER_S) and server.requests:
                seen.append(now_ns())
                time.sleep(0.05)
            return self._reader.gather(offset, rest, 0, *bounds)

    monkeypatch.setattr(client_module, "reader_for", SlowReader)
    last = chunk(text_event("c", "length")) + chunk(usage_event(3)) + chunk(DONE) + b"0\r\n\r\n"
    answer: list[Step] = [Write(head().data + chunk(text_event("a"))), Wait(gates[0])]
    answer += [Write(chunk(text_event("b"))), Wait(gates[1]), Write(last)]
    with FakeServer(answer) as server:
        ran = run_load(server.url, tmp_path, tokens=3)
    if not ran.client.kernel_stamps:
        pytest.skip("this system has no kernel receive stamps")
    texts = [c for c in ran.chunks if c["kind"] == "text"]
    for c, at in zip(texts, seen, strict=True):
        assert c["lag"] >= 49 * NS_PER_MS
        assert c["t"] <= at + NS_PER_MS


@pytest.mark.usefixtures("stamping")
def test_a_client_that_is_slow_to_note_its_sending_does_not_say_it_sent_after_the_answer_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.socket.sendmsg
    noted: list[int] = []

    def interrupted(self: socket.socket, *args: Any) -> int:
        count = real(self, *args)
        if not noted:  # the client's own send is the first
            select.select([self], [], [], LONG_S)
            time.sleep(0.01)
            noted.append(now_ns())
        return count

    # In one segment: a read that spans several has the stamp of the last of them, which may come when it likes.
    answer = Write(b"".join(step.data for step in full_answer() if isinstance(step, Write)))
    monkeypatch.setattr(socket.socket, "sendmsg", interrupted)
    with FakeServer([answer]) as server:
        ran = run_load(server.url, tmp_path)
    (row,) = ran.requests
    if not ran.client.kernel_stamps:
        pytest.skip("this system has no kernel receive stamps")
    assert row["queued"] <= row["sent"] <= row["first_byte"] <= row["first_token"]
    assert row["first_byte"] < noted[0]


def test_a_step_of_the_wall_clock_does_not_move_a_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time_ns
    schedule = TokenSchedule(ttft_s=0.1, interval_s=0.1)

    def stepping() -> int:
        tokens = len(schedule.stamps.get("r0", []))
        return real() + {0: 0, 1: 0, 2: -3600}.get(tokens, 3600) * NS_PER_S

    monkeypatch.setattr("results.clock.time.time_ns", stepping)
    with FakeServer(schedule) as server:
        ran = run_load(server.url, tmp_path, tokens=5)
    _, *written = schedule.stamps["r0"]
    arrivals = [c["t"] for c in ran.chunks if c["kind"] == "text"]
    for arrived, sent in zip(arrivals, written, strict=True):
        assert 0 <= arrived - sent < LONG_S * NS_PER_S


def test_fewer_descriptors_than_needed_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.load import pool
    from results.errors import EnvironmentProblemError

    limits = {"now": (256, 1024)}
    monkeypatch.setattr(pool.resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(pool.resource, "setrlimit", lambda _, new: limits.update(now=new))
    pool.raise_descriptor_limit(100)
    assert limits["now"] == (256, 1024)
    pool.raise_descriptor_limit(500)
    assert limits["now"] == (564, 1024)
    with pytest.raises(EnvironmentProblemError, match=r"2000 requests.* 1024 .*ulimit -n 2064"):
        pool.raise_descriptor_limit(2000)


def test_requests_bound_to_a_slot_stay_there() -> None:
    from harness.load.strategies import ClosedLoopStrategy

    requests = [RequestPlan(f"r{i}", 1, 1, 0, 0, slot) for i, slot in enumerate([1, 1, None, 0, None])]
    strategy = ClosedLoopStrategy(requests, 2, start=5)
    first = list(strategy.due(6))
    assert [(d.slot, d.index, d.intended) for d in first] == [(0, 2, 5), (1, 0, 5)]
    strategy.ended(0, 10)
    assert [(d.slot, d.index, d.intended) for d in strategy.due(11)] == [(0, 3, 10)]
    strategy.ended(1, 20)
    assert [(d.slot, d.index) for d in strategy.due(21)] == [(1, 1)]
    strategy.ended(1, 30)
    assert [(d.slot, d.index) for d in strategy.due(31)] == [(1, 4)]
    assert strategy.exhausted


def test_reads_are_parsed_before_too_many_wait_even_when_the_sockets_never_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = parsed = 0
    real = Backlog.parse
    gates = [Gate() for _ in range(9)]

    def parse(self: Backlog, until: int | None) -> None:
        nonlocal longest, parsed
        longest = max(longest, len(self.pieces))
        real(self, until)
        parsed += 1
        for gate in gates[:parsed]:  # only then do four more tokens come on each stream
            gate.open()

    # Without the blank it is no ordinary token, so the compiled reader leaves it to be parsed.
    event = text_event("t").replace(b"data: ", b"data:")
    fours: list[list[Step]] = [[Write(chunk(event))] * 4 for _ in range(10)]
    answer = [step for four, gate in zip(fours, gates, strict=False) for step in (*four, Wait(gate))]
    answer = [head(), *answer, *fours[-1], Write(chunk(usage_event(40))), Write(chunk(DONE)), END]

    monkeypatch.setattr(Backlog, "parse", parse)
    monkeypatch.setattr(backlog_module, "FULL_READS", 8)
    # Never quiet: only the length can set the parsing off.
    monkeypatch.setattr(client_module, "_QUIET_NS", 60 * NS_PER_S)
    with FakeServer(answer) as server:
        ran = run_load(server.url, tmp_path, requests=8, concurrency=8, tokens=40)
    assert ran.outcomes == ["ok"] * 8
    assert 8 <= longest < 8 * 40


def test_a_load_stopped_before_it_began_sends_nothing_and_writes_empty_tables(tmp_path: Path) -> None:
    with FakeServer(full_answer()) as server:
        plan = make_plan(server.url, tmp_path / "plan", requests=5)
        recorder = EventRecorder(plan, tmp_path)
        client = Client(plan, plan.bodies_path.read_bytes(), None, recorder, lambda counts: None)
        client.stop()
        client.prepare()
        client.run()
        client.close()
        recorder.commit()
        assert server.requests == []
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 0
    assert pq.read_table(tmp_path / "chunks.parquet").num_rows == 0


def test_a_load_whose_connections_all_fail_at_once_hears_stop_and_lets_nothing_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "open", lambda self: self._lost("Too many open files"))
    plan = make_plan("http://127.0.0.1:9", tmp_path / "plan", requests=3000, concurrency=2)
    recorder = EventRecorder(plan, tmp_path)
    client = Client(plan, plan.bodies_path.read_bytes(), None, recorder, lambda counts: None)
    ours, theirs = socket.socketpair()

    class Stop:
        def handle(self, mask: int) -> None:
            client.stop()

    with ours, theirs:
        client.prepare()
        client.poller.add(ours.fileno(), 1, Stop())
        theirs.send(b"stop")
        client.run()
        client.close()
    recorder.commit()
    assert client.stopped
    assert recorder.outcomes["refused"] == client.counts.issued < 3000


def test_connections_that_all_fail_at_once_are_given_up_however_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan("http://127.0.0.1:9", tmp_path / "plan", requests=2000, concurrency=2000)
    client = Client(plan, plan.bodies_path.read_bytes(), None, EventRecorder(plan, tmp_path), lambda counts: None)
    monkeypatch.setattr(Connection, "open", lambda self: self._lost("Network is unreachable"))
    client.pool.opened = 1  # else the first failure ends the filling
    client.prepare()
    assert client.pool.settled
    assert not client.pool.live
    client.close()


def test_chunks_are_written_in_groups_and_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "_MAX_ROWS", 10)
    with FakeServer(full_answer(4)) as server:
        ran = run_load(server.url, tmp_path, requests=20, concurrency=2)
    assert pq.ParquetFile(tmp_path / "out" / "chunks.parquet").num_row_groups > 3
    assert len(ran.chunks) == 20 * 5
    assert {len(ran.chunks_of(f"r{i}")) for i in range(20)} == {5}


def test_the_fake_server_never_sends_a_token_early(tmp_path: Path) -> None:
    schedule = TokenSchedule(ttft_s=0.0123, interval_s=0.0034)
    with FakeServer(schedule) as server:
        run_load(server.url, tmp_path, requests=10, concurrency=2, tokens=10)
    for received, *written in schedule.stamps.values():
        for i, sent in enumerate(written):
            assert sent - received >= 12_300_000 + i * 3_400_000 - 1000  # the float's rounding
