"""Load from two nodes of a real Ray cluster, one of them with a clock of its own: it counts as one load, on our clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from harness.load import ray_cluster
from harness.load.places import PLACES, told_of_nodes
from harness.load.ray_cluster import open_workers, refuse_launched, sending_nodes
from harness.load.workers import LoadWorkers
from results.clock import NS_PER_MS, NS_PER_S
from results.errors import EnvironmentProblemError, UsageError
from tests.harness.load.support import make_plan
from tests.harness.load.test_workers import STUCK, until
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import Received, Step, full_answer
from tests.servers.openai_fake_tokens import TokenSchedule
from tests.waiting import LONG_S, wait_until

# Not 127.0.0.1, which Ray takes for the machine's own address.
FIRST, SHIFTED, DOOMED = "127.0.0.2", "127.0.0.3", "127.0.0.4"
AHEAD_NS = 5_000 * NS_PER_S + 123_456_789
NODE = {"include_dashboard": False, "object_store_memory": 80 << 20, "num_cpus": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, and this process as a driver on the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"node_ip_address": FIRST, **NODE})
        try:
            patch.setenv("PYTHONPATH", str(Path(__file__).parent / "shifted_clock"))
            patch.setenv("CLOCK_AHEAD_NS", str(AHEAD_NS))
            made.add_node(node_ip_address=SHIFTED, **NODE)
            patch.delenv("PYTHONPATH")
            ray.init(address=made.address, _node_ip_address=FIRST, log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def load_on_ray(count: int = 2) -> LoadWorkers:
    return LoadWorkers(count, PLACES["ray"])


def rows_of(folder: Path, name: str = "requests") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"{name}.parquet").to_pylist()
    return rows


def load_processes() -> list[psutil.Process]:
    """Load workers that belong to a node: their plan lies in a folder made for it."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "harness.load.worker" in words and any("dyno-load-" in word for word in words):
            found.append(process)
    return found


def test_events_of_two_nodes_come_out_on_our_clock_within_the_stated_uncertainty(cluster: Any, tmp_path: Path) -> None:
    out = tmp_path / "cell"
    schedule = TokenSchedule(ttft_s=0.005, interval_s=0.002)
    with FakeServer(schedule) as server, load_on_ray() as load:
        load.start(make_plan(server.url, tmp_path / "plan", requests=40, concurrency=4, tokens=6), out)
        until(load, lambda: load.finished)
        result = load.wait(LONG_S)
    assert (result.issued, result.outcomes["ok"], load.faults) == (40, 40, [])
    nodes = {node["worker"]: node for node in result.client["nodes"]}
    assert {node["address"] for node in nodes.values()} == {FIRST, SHIFTED}
    rows = rows_of(out)
    assert sorted(row["request_id"] for row in rows) == sorted(f"r{i}" for i in range(40))
    for node in nodes.values():
        injected = AHEAD_NS if node["address"] == SHIFTED else 0
        assert abs(node["offset_ms"] - injected / NS_PER_MS) <= node["uncertainty_ms"] + 1e-6
        assert node["uncertainty_ms"] >= node["shortest_round_trip_ms"] / 2
    arrivals: dict[str, list[int]] = {}
    for chunk in rows_of(out, "chunks"):
        if chunk["kind"] == "text":
            arrivals.setdefault(chunk["request_id"], []).append(chunk["t"])
    for row in rows:
        # Nothing is received before it is sent: that bounds the clocks' error on both sides, on however slow a machine.
        within = nodes[row["worker"]]["uncertainty_ms"] * NS_PER_MS
        received, *written = schedule.stamps[row["request_id"]]
        arrived = arrivals[row["request_id"]]
        assert row["sent"] <= received + within
        assert len(arrived) == len(written) == 6
        assert all(late >= at - within for at, late in zip(written, arrived, strict=True))
        assert row["first_token"] == arrived[0]
        assert result.started - within <= row["queued"] <= row["end"] <= result.ended
    # One instant for both, as well as the clocks are known.
    starts = {row["worker"]: row["intended"] for row in sorted(rows, key=lambda r: -r["queued"])}
    assert max(starts.values()) - min(starts.values()) <= sum(n["uncertainty_ms"] for n in nodes.values()) * NS_PER_MS
    wait_until(lambda: not load_processes(), "the end of the workers on their nodes")


def test_stopping_keeps_what_was_measured_and_leaves_nothing_on_the_nodes(cluster: Any, tmp_path: Path) -> None:
    with FakeServer(STUCK) as server, load_on_ray() as load:
        load.start(make_plan(server.url, tmp_path / "plan", requests=4, concurrency=2), tmp_path / "cell")
        until(load, lambda: server.in_flight == 2)
        folders = {Path(word).parent for p in load_processes() for word in p.cmdline() if "dyno-load-" in word}
        assert len(folders) == 2
        load.stop()
        result = load.wait(LONG_S)
    assert result.stopped
    assert result.outcomes["cancelled"] == len(rows_of(tmp_path / "cell")) == 2
    wait_until(lambda: not load_processes() and not any(folder.exists() for folder in folders), "clean nodes")


def test_a_load_worker_that_is_killed_on_its_node_is_told_as_one_here_is(cluster: Any, tmp_path: Path) -> None:
    with FakeServer(STUCK) as server, load_on_ray(1) as load:
        load.start(make_plan(server.url, tmp_path / "plan", requests=2, concurrency=2), tmp_path / "cell")
        until(load, lambda: server.in_flight == 2)
        (process,) = load_processes()
        process.kill()
        with pytest.raises(Exception, match="was killed by signal 9"):
            load.wait(LONG_S)


def test_what_the_nodes_lack_is_told_before_anything_is_sent(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = open_workers(2)
    try:
        refuse_launched(workers)  # nodes of this very machine
        with pytest.raises(EnvironmentProblemError, match=r"cannot reach the server at http://127.0.0.1:9"):
            PLACES["ray"].check(1, ["http://127.0.0.1:9"])
        # A machine that was started at another time is another machine.
        monkeypatch.setattr(ray_cluster, "boot_id", lambda: "another")
        with pytest.raises(UsageError, match=r"every machine the machine itself.*--url http://\d+\.\d+\.\d+\.\d+:8000"):
            PLACES["ray"].check(1, ["http://localhost:8000"])
        with pytest.raises(UsageError, match=r"listens on this machine alone .*--url http://"):
            refuse_launched(workers)
        monkeypatch.setattr(ray_cluster, "version", lambda name: "99")
        with pytest.raises(EnvironmentProblemError, match=r"it has llm-dyno .*pip install 'llm-dyno\[ray\]==99'"):
            PLACES["ray"].check(1, [None])
    finally:
        for worker in workers:
            worker.kill()


def test_the_command_sends_from_the_nodes_and_its_run_tells_of_their_clocks(cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with FakeServer(TokenSchedule(ttft_s=0.01, interval_s=0.004, model="fake")) as server:
        words = (
            f"--url {server.url} --out {run} --tokenizer llama-7b --input-len 16 --output-len 8 --rate 40 --requests 60"
        )
        shared = "--max-in-flight 30 --workers ray --num-workers 2"
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli", "sweep", *words.split(), *shared.split()],
            env={**os.environ, "RAY_ADDRESS": cluster.address},
            capture_output=True,
            text=True,
            timeout=LONG_S,
        )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (cell,) = json.loads((run / "summary.json").read_text())["cells"]
    assert cell["requests"] == {"issued": 60, "ok": 60, "by_outcome": {"ok": 60}}
    assert cell["verdict"] != "INVALID"
    assert {node["address"] for node in cell["client"]["nodes"]} == {FIRST, SHIFTED}
    (note,) = (reason["evidence"] for reason in cell["reasons"] if reason["code"] == "clocks_of_nodes")
    assert "2 nodes" in note
    assert (run / "experiment.yaml").read_text().count("workers_on: ray") == 1


# Last of those with the cluster: it takes the cluster some seconds to notice.
def test_a_node_that_dies_takes_its_share_with_it_and_the_rest_is_kept(cluster: Any, tmp_path: Path) -> None:
    doomed = cluster.add_node(node_ip_address=DOOMED, **NODE)

    def script(request: Received) -> list[Step]:
        return STUCK if int(request.id[1:]) % 3 == 1 else full_answer()

    with FakeServer(script) as server, load_on_ray(3) as load:
        load.start(make_plan(server.url, tmp_path / "plan", requests=9, concurrency=3), tmp_path / "cell")
        until(load, lambda: len(server.requests) == 7 and server.in_flight == 1)
        cluster.remove_node(doomed, allow_graceful=False)
        result = load.wait(LONG_S)
    (fault,) = load.faults
    assert "worker 1 of 3, with 3 requests" in fault
    assert f"on node {DOOMED} is gone" in fault
    assert (result.issued, result.outcomes["ok"]) == (6, 6)
    assert sorted(row["request_id"] for row in rows_of(tmp_path / "cell")) == ["r0", "r2", "r3", "r5", "r6", "r8"]
    assert [node["address"] for node in result.client["nodes"]] == [SHIFTED, FIRST]


def test_named_nodes_send_where_there_are_any_and_those_of_other_machines_first() -> None:
    def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"NodeID": name, "NodeManagerAddress": f"10.0.0.{name}", "Alive": alive, "Resources": resources}

    listed = [node("1"), node("3", CPU=2), node("2"), node("4", alive=False, dyno=1)]
    assert [(n.id, n.here) for n in sending_nodes(listed, own="1")] == [("2", False), ("3", False), ("1", True)]
    assert [n.id for n in sending_nodes([*listed, node("5", dyno=1)], own="1")] == ["5"]
    with pytest.raises(EnvironmentProblemError, match="no node that is alive"):
        sending_nodes([node("4", alive=False)], own="1")


def test_without_ray_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]  # the module's own import of importlib
    with pytest.raises(EnvironmentProblemError, match=r"pip install 'llm-dyno\[ray\]'"):
        ray_cluster.connect()


def test_a_proxy_of_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(EnvironmentProblemError, match="a proxy's address"):
        ray_cluster.connect()


def test_without_a_cluster_the_commands_that_start_one_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(EnvironmentProblemError, match=r"this machine is a node of none\. .*ray start --head"):
        ray_cluster.connect()
    # One that is gone: Ray has noted where it was.
    noted = tmp_path / "ray" / "ray_current_cluster"
    noted.parent.mkdir()
    noted.write_text("127.0.0.1:9")
    with pytest.raises(EnvironmentProblemError, match=r"none answers at 127.0.0.1:9 \(.*refused\)"):
        ray_cluster.connect()
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    with pytest.raises(EnvironmentProblemError, match="none answers at nonsense"):
        ray_cluster.connect()


def test_the_cells_ceiling_is_that_of_the_weakest_node_and_unknown_where_one_is() -> None:
    def client(value: float | None) -> dict[str, Any]:
        return {"node": {"address": "a"}, "ceiling": value and {"chunks_per_s": {"value": value}}}

    told = told_of_nodes({0: client(9e4), 1: client(5e4)})
    assert told["ceiling"] == {"chunks_per_s": {"value": 5e4}}
    assert told["nodes"] == [{"worker": 0, "address": "a"}, {"worker": 1, "address": "a"}]
    assert told_of_nodes({0: client(9e4), 1: client(None)})["ceiling"] is None
    assert told_of_nodes({0: {"cpu_s": 1.0}}) == {}
