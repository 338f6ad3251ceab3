"""Attaching to a server that is already there: a fake of known behaviour, and the reference engine started by hand."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Run, finish
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import Gate, Received, Step, Wait
from tests.servers.openai_fake_tokens import TokenSchedule
from tests.waiting import wait_until

KEY = "sk-do-not-write-this-down"


def attach(run: Run, url: str, *words: str, **env: str) -> tuple[int, str, str]:
    return finish(
        run.start(
            *("sweep", "--backend", "openai", "--url", url, "--batch", "1,4", "--input-len", "16", "--output-len", "8"),
            *("--tokenizer", "llama-7b", "--out", str(run.folder), *words),
            **env,
        )
    )


def test_a_fake_of_known_schedule_is_measured_with_every_token_counted(run: Run) -> None:
    with FakeServer(TokenSchedule(ttft_s=0.02, interval_s=0.005, model="fake")) as server:
        code, _, err = attach(run, server.url, DYNO_API_KEY=KEY)
        received = [r for r in server.requests if r.path.endswith("/completions")]
    # The first request only asks whether the server is ready: one token, of a prompt like no other.
    ready, *measured = received
    assert ready.json["max_tokens"] == 1
    assert code == 0, err
    for cell in run.summary()["cells"]:
        assert cell["model"] == "fake"
        assert cell["requests"]["ok"] == cell["requests"]["issued"]
        assert cell["whole"]["output_tokens"] == 8 * cell["requests"]["issued"]
        # Only a lower bound: a busy machine sends late, never early.
        assert cell["whole"]["ttft_ms"]["p50"] >= 20
        assert cell["whole"]["e2e_ms"]["p50"] >= 20 + 7 * 5
        assert cell["verdict"] != "INVALID"
    prompts = [tuple(r.json["prompt"]) for r in received]
    assert len(set(prompts)) == len(prompts), "a prompt was sent twice"
    assert all(len(r.json["prompt"]) == 16 for r in measured)
    assert all(isinstance(t, int) and 0 <= t < 32_000 for p in prompts for t in p)
    assert all(r.headers["authorization"] == f"Bearer {KEY}" for r in received)


def test_a_proxy_in_the_environment_is_never_used_and_the_cell_says_so(run: Run) -> None:
    with FakeServer(TokenSchedule(interval_s=0.001, model="fake")) as server, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens there
        proxy = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        names = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
        code, _, err = attach(run, server.url, **dict.fromkeys(names, proxy), NO_PROXY=":", no_proxy=":")
    assert code == 0, err
    cells = [json.loads(cell) for cell in run.committed().values()]
    assert len(cells) == 2
    assert all(cell["client"]["proxy_used"] is False for cell in cells)
    for cell in run.summary()["cells"]:
        assert cell["requests"]["ok"] == cell["requests"]["issued"] > 0
        assert cell["client"]["proxy_used"] is False


def test_every_engine_of_a_run_meets_the_same_prompts_in_the_same_order(run: Run) -> None:
    with FakeServer(TokenSchedule(interval_s=0.001, model="m")) as one, FakeServer(TokenSchedule(model="m")) as other:
        code, _, err = finish(
            run.start(
                *("sweep", "--model", "m", "--tokenizer", "llama-7b", "--out", str(run.folder), "--batch", "1,3"),
                *("--input-len", "8,12", "--output-len", "4", "--blocks", "2"),
                *("--engine", f"label=one,backend=openai,url={one.url}"),
                *("--engine", f"label=other,backend=openai,url={other.url}"),
            )
        )
        sent = [[tuple(r.json["prompt"]) for r in s.requests if r.path.endswith("/completions")] for s in (one, other)]
    assert code == 0, err
    assert sorted(sent[0]) == sorted(sent[1])
    assert len(set(sent[0])) == len(sent[0]), "a prompt was sent twice within an engine"


def test_a_second_run_of_the_same_prompts_on_one_server_is_marked_and_another_seed_is_not(
    run: Run, tmp_path: Path
) -> None:
    words = (
        "sweep",
        "--backend",
        "openai",
        "--model",
        "m",
        "--tokenizer",
        "llama-7b",
        "--batch",
        "2",
        "--requests",
        "24",
    )
    schedule = TokenSchedule(ttft_s=0.2, seen_ttft_s=0.002, interval_s=0.001, model="m")
    cells = {}
    with FakeServer(schedule) as server:
        asked = (*words, "--url", server.url, "--input-len", "16", "--output-len", "4", "--telemetry", "none")
        for name, seed in (("first", "0"), ("again", "0"), ("other", "5")):
            code, _, err = finish(run.start(*asked, "--seed", seed, "--out", str(tmp_path / name)))
            assert code == 0, err
            cells[name] = json.loads((tmp_path / name / "summary.json").read_text())["cells"][0]
    codes = {name: {r["code"]: r["severity"] for r in cell["reasons"]} for name, cell in cells.items()}
    # The cache flatters the second: what is known to be repeated is never passed off as cold.
    assert cells["again"]["whole"]["ttft_ms"]["p50"] < cells["first"]["whole"]["ttft_ms"]["p50"]
    assert codes["again"]["prefix_cache_hits"] == "suspect"
    assert cells["again"]["verdict"] == "SUSPECT"
    assert "prefix_cache_hits" not in codes["first"].keys() | codes["other"].keys()
    assert cells["other"]["server"]["prefix_hits"] == 0
    assert cells["other"]["whole"]["ttft_ms"]["p50"] >= 200


def test_a_server_that_goes_away_leaves_its_cells_to_be_run_later(run: Run) -> None:
    schedule, gate = TokenSchedule(interval_s=0.001, model="m"), Gate()
    plain = schedule.page

    def page(request: Received) -> list[Step] | None:
        """Nothing of a second cell is answered, so that it is under way when the server goes."""
        held = request.path.endswith("/completions") and run.committed()
        return [Wait(gate)] if held else plain(request)

    schedule.page = page  # type: ignore[method-assign]  # the fake answers by this test's script
    with FakeServer(schedule) as server:
        url = server.url
        child = run.start(
            *("sweep", "--backend", "openai", "--url", url, "--model", "m", "--tokenizer", "llama-7b"),
            *("--out", str(run.folder), "--batch", "1,2,3,4", "--input-len", "8", "--output-len", "4"),
        )
        wait_until(lambda: bool(run.committed()), "a first cell")
    code, _, err = finish(child)
    assert code == 4, err
    assert "Nothing answers" in err
    assert all(c["verdict"] != "INVALID" or c["requests"]["ok"] for c in run.summary()["cells"])
    assert len(run.committed()) < 4


def test_the_key_is_in_no_file_of_the_run(run: Run) -> None:
    with FakeServer(TokenSchedule(interval_s=0.001)) as server:
        code, out, err = attach(run, server.url, OPENAI_API_KEY=KEY)
    assert code == 0, err
    assert KEY not in out + err
    for path in run.folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_lengths_beyond_the_servers_limit_are_refused_before_anything_is_sent(run: Run) -> None:
    with FakeServer(TokenSchedule(max_model_len=20)) as server:
        code, _, err = attach(run, server.url)
        sent = [r for r in server.requests if r.path.endswith("/completions")]
    assert code == 2
    assert re.search(r"16 prompt tokens and 8 output tokens make 24.*20", err), err
    assert not sent


def test_a_model_the_server_does_not_serve_is_refused_with_those_it_does(run: Run) -> None:
    with FakeServer(TokenSchedule(model="real-one")) as server:
        code, _, err = attach(run, server.url, "--model", "reel-one")
    assert code == 2
    assert "'reel-one'" in err
    assert "'real-one'" in err
    assert not run.folder.exists()


def test_nothing_at_the_url_is_said_in_one_paragraph(run: Run) -> None:
    with FakeServer(TokenSchedule()) as server:
        url = server.url
    code, _, err = attach(run, url, "--model", "m")
    assert code == 4
    assert url in err
    assert "Traceback" not in err
    assert not run.folder.exists()


@pytest.fixture
def served(run: Run, tiny_dir: Path) -> str:
    child = run.start("serve", str(tiny_dir), "--port", "0", "--served-model-name", "tiny", "--kv-cache-tokens", "4096")
    assert child.stdout is not None
    for line in child.stdout:
        if found := re.search(r"ready on (http://\S+)", line):
            return found[1]
    raise AssertionError("the server ended before it was ready")


def test_the_reference_engine_started_by_hand_is_measured_like_any_server(run: Run, served: str) -> None:
    code, _, err = attach(run, served, "--model", "tiny", "--tokenizer", str(run.model))
    assert code == 0, err
    for cell in run.summary()["cells"]:
        assert cell["requests"]["ok"] == cell["requests"]["issued"]
        assert cell["server"]["running_max"] is None or cell["server"]["running_max"] <= 4
        # No step log is at hand from outside, so phases are the client's estimate and marked as such.
        assert "client_phase_estimate" in {reason["code"] for reason in cell["reasons"]}


def test_a_port_in_use_is_named_before_the_model_is_loaded(run: Run, served: str, tiny_dir: Path) -> None:
    port = served.rsplit(":", 1)[1]
    code, _, err = finish(run.start("serve", str(tiny_dir), "--port", port))
    assert code == 2
    assert port in err
    assert "Traceback" not in err
