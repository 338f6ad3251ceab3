"""A user's mistake is one paragraph that names what was given and the next step, and exit code 2. Never a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.values import engine_fields, positive_ints
from harness.models import fetch
from results.errors import UnknownNameError, UsageError

DATA = Path(__file__).parents[2] / "data" / "workloads"
SWEEP = ("sweep", "--backend", "reference", "--model", "random-tiny", "--batch", "1")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """The model of the mistakes is in the cache: a command that had to build it first, or to wait for who does, would say so."""
    fetch("random-tiny")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sweep",), "No load named.*--batch"),
        (("sweep", "--batch", "1"), "No engine named.*--backend reference"),
        (("sweep", "--backend", "reference", "--batch", "1"), "No model named.*--model"),
        (("sweep", "--backend", "refrence", "--model", "m", "--batch", "1"), "backend 'refrence'.*mean 'reference'.*openai"),
        (("sweep", "--backend", "refrence", "--model", "random-tny"), "backend 'refrence'"),
        (("sweep", "--preset", "quik", "--backend", "reference", "--model", "m"), "preset 'quik'.*mean 'quick'.*batching"),
        ((*SWEEP[:-1], "0"), "--batch: '0' is not a whole number above zero"),
        ((*SWEEP[:-1], "1,-4"), "--batch: '-4'"),
        ((*SWEEP[:-1], "1,,4"), "--batch: ''"),
        ((*SWEEP, "--input-len", "1e3"), "--input-len: '1e3'"),
        ((*SWEEP, "--input-len", "99999999999"), "--input-len: 99,999,999,999 is beyond"),
        ((*SWEEP, "--output-len", "0"), "--output-len: '0'"),
        ((*SWEEP[:-1], "9" * 5000), "--batch: a number of 5000 digits is beyond"),
        ((*SWEEP, "--seed", "-1"), "seed.*greater than or equal to 0.*given: -1"),
        ((*SWEEP, "--seed", str(2**63)), "seed.*less than"),
        ((*SWEEP, "--blocks", "10000000", "--dry-run"), "blocks.*1000"),
        ((*SWEEP, "--engine", "label=a,backend=reference,options='x"), "options: its words cannot be split"),
        ((*SWEEP, "--engine", "label=a,backend=reference,env.=x"), "'' cannot be the name of an environment variable"),
        ((*SWEEP, "--engine", "label=\x1b[31m,backend=reference"), "printable characters only"),
        (("sweep", "/dev/zero", "--batch", "1"), "/dev/zero: it is no file"),
        ((*SWEEP, "--requests", "3,4"), "--requests takes one number"),
        ((*SWEEP, "--blocks", "x"), "--blocks: 'x'"),
        ((*SWEEP, "--budget", "30min"), "--budget: '30min' is no time.*90s, 20m or 3h"),
        ((*SWEEP, "--budget", "0s"), "--budget: '0' is not a number above zero"),
        ((*SWEEP, "--duration", "60x"), "--duration: '60x' is no time.*90s, 20m or 3h"),
        (("tune", *SWEEP[1:], "--budget", "m"), "--budget: 'm' is no time"),
        ((*SWEEP, "--concurrency", "2"), "--batch wants exact lengths.*--exact-lengths"),
        ((*SWEEP, "--engine", "backend=reference,max_num_sqs=4"), "engine key 'max_num_sqs'.*mean 'max_num_seqs'.*nearest of \\d\\d known"),
        ((*SWEEP, "--engine", "backend"), "'backend' is not KEY=VALUE"),
        ((*SWEEP, "--engine", "label=a"), "needs backend=NAME"),
        ((*SWEEP, "--engine", "label=b,backend=reference,max_num_seqs=many"), "max_num_seqs.*given: 'many'"),
        ((*SWEEP, "--backend", "reference"), "more than once: reference"),
        ((*SWEEP, "--engine", "label=b,backend=reference,quantisation=awq"), "no way to set 'quantisation'.*understands"),
        ((*SWEEP, "--input-len", "2000", "--output-len", "49"), "2000 prompt tokens and 49 output tokens make 2049.*2048"),
        ((*SWEEP, "--url", "http://127.0.0.1:1"), "--url names the server of one engine with backend openai; here are 0"),
        ((*SWEEP[:-2], "--concurrency", "32", "--requests", "40"), "40 requests are too few for 32 slots.*64"),
        (("sweep", "--backend", "openai", "--batch", "1", "--model", "m"), "give --url"),
        (("sweep", "--backend", "openai", "--url", "localhost:80", "--batch", "1", "--model", "m"), "scheme"),
        (("sweep", "--url", "http://127.0.0.1:9/", "--batch", "1", "--model", "nobody-knows"), r"vocabulary.*--tokenizer: .*them\)\.$"),
        (("sweep", "nowhere.yaml", "--batch", "1"), r"Cannot read the experiment nowhere\.yaml"),
        (("report", "nowhere"), r"nowhere is not a run.*dyno runs"),
        (("kv", "lama-7b"), "model 'lama-7b'.*mean 'llama-7b'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_what_was_given(
    dyno: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = dyno(*words)
    assert result.code == 2, result.err
    assert re.search(message, result.err, re.S), result.err
    assert "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) == 1, result.err
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"


def test_a_missing_model_folder_names_where_it_looked(dyno: Callable[..., object], tmp_path: Path) -> None:
    result = dyno("sweep", "--backend", "reference", "--model", str(tmp_path / "none"), "--batch", "1")
    assert result.code == 2
    assert str(tmp_path / "none") in result.err


def test_a_dry_run_tells_what_would_be_sent_and_makes_nothing(
    dyno: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = dyno(*SWEEP[:-1], "1,16", "--input-len", "8", "--output-len", "4", "--blocks", "2", "--dry-run", "--json")
    plan = json.loads(result.out)
    assert (plan["cells"], plan["sessions"], plan["requests"]) == (4, 2, 2 * (8 + 48))
    assert plan["output_tokens"] == 4 * plan["requests"]
    assert len({cell["id"] for cell in plan["order"]}) == 4
    assert not list(tmp_path.iterdir())


def test_a_dry_run_refuses_what_the_run_would_refuse(dyno: Callable[..., object]) -> None:
    result = dyno(*SWEEP, "--input-len", "2048", "--output-len", "1", "--dry-run")
    assert result.code == 2
    assert "make 2049, more than the 2048" in result.err


def test_every_preset_is_a_valid_plan(dyno: Callable[..., object]) -> None:
    from harness.cli.presets import preset_names

    assert preset_names()
    for name in preset_names():
        words = ["sweep", "--preset", name, "--backend", "reference", "--model", "llama-3.1-8b", "--dry-run", "--json"]
        if name == "sharegpt":
            words += ["--workload", str(DATA / "sharegpt_fastchat.json") + ",oversample=true"]
        plan = json.loads(dyno(*words).out)
        assert plan["cells"] > 0
        small = json.loads(dyno(*words, "--scale", "1/16").out)
        assert small["cells"] == plan["cells"]
        assert small["requests"] < plan["requests"]


def test_engine_words_keep_escaped_commas_and_shell_quotes() -> None:
    engine = engine_fields(r"label=a\,b,backend=vllm,max-num-seqs=8,options=--x '1 2' --y,env.OMP_NUM_THREADS=2")
    assert engine == {
        "label": "a,b",
        "backend": "vllm",
        "settings": {"max_num_seqs": "8"},
        "options": ["--x", "1 2", "--y"],
        "env": {"OMP_NUM_THREADS": "2"},
    }
    with pytest.raises(UnknownNameError):
        engine_fields("backend=x,colour=red")


def test_numbers_keep_their_order_and_lose_doubles() -> None:
    assert positive_ints("--batch", "8, 1,8,1_000") == [8, 1, 1000]
    with pytest.raises(UsageError, match=r"--batch: '٣'"):
        positive_ints("--batch", "٣")


def test_a_command_line_is_kept_without_its_secrets() -> None:
    from harness.cli.values import public_command

    words = [
        *(
            "dyno",
            "sweep",
            "--engine",
            r"label=a,backend=vllm,env.HF_TOKEN=hf_abcdefgh,options=--api-key 'sk x' --x 1\,2",
        ),
        "--engine=backend=b,container.args=-e HF_TOKEN=hf_ijklmnop,env.MY_SECRET=hunter22,max_num_batched_tokens=5",
        *(
            "--vary",
            r"options=--api-key=sk-x1,--api-key sk-x2 --x 1\,2",
            "--vary=options=--api-key sk-x3 'open",
            "--vary",
            "seed=1,2",
        ),
    ]
    shown = public_command(words)
    assert not [s for s in ("hf_abcdefgh", "sk x", "hunter22", "hf_ijklmnop", "sk-x") if s in " ".join(shown)]
    assert "max_num_batched_tokens=5" in shown[4]
    assert shown[5:] == [
        "--vary",
        "options='--api-key=***',--api-key '***' --x '1\\,2'",
        "--vary=options=***",
        "--vary",
        "seed=1,2",
    ]
    assert "label=a,backend=vllm,env.HF_TOKEN=***" in shown[3]
    assert r"--x '1\,2'" in shown[3] or r"--x 1\,2" in shown[3]


@pytest.mark.parametrize(
    "words",
    [
        ["--vary=env.HF_TOKEN=sk-verysecret123,b"],
        ["--vary", "env.HF_TOKEN=sk-verysecret123,b"],
        ["--engine", "label=a,env.A=--api-key sk-verysecret123,threads=1"],
        ["--engine=label=a,env.X_KEY=a,sk-verysecret123,threads=1"],
        ["--url", "http://h/v1?api_key=sk-verysecret123"],
    ],
)
def test_no_secret_in_a_variable_or_url_of_a_command_line_is_kept(words: list[str]) -> None:
    from harness.cli.values import public_command

    shown = " ".join(public_command(["dyno", "sweep", *words]))
    assert "sk-very" not in shown
    assert "***" in shown
    assert ("threads=1" in shown) == ("threads=1" in " ".join(words))
