"""`verify` on what really computes: the reference engine in several dtypes, and transformers."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.experiment import EngineSpec
from harness.models import open_folder, vocabulary
from harness.open_server import open_server
from harness.verify import Observed, ServerArm, fixed_prompts, judge, observe
from tests.harness.cli.conftest import Result, dyno
from tests.harness.verify.transformers_arm import TransformersArm
from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_tokens import TokenSchedule

__all__ = ["dyno"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of a library in this process that meet at barriers are slow where other tests want the cores too."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference_and_transformers(folder: Path, out: Path, prompts: int, length: int) -> dict[str, Any]:
    """The document of transformers (first, so that the fixed text is its) and the reference engine, both in float32."""
    model = open_folder("m", folder)
    fixed = fixed_prompts(prompts, 0, vocabulary(model), folder)
    said: list[Observed] = []
    observed, texts = observe(TransformersArm(folder), fixed, length, None)
    said.append(observed)
    settings = {"dtype": "float32", "threads": 1}
    engine = EngineSpec.model_validate({"label": "reference", "backend": "reference", "settings": settings})
    with open_server(engine, model, "m", out) as server:
        observed, _ = observe(ServerArm("reference", server), fixed, length, texts)
    return judge([*said, observed], fixed)


@pytest.mark.parametrize(("model", "prompts", "length"), [("tiny_dir", 8, 16), ("smollm2_dir", 4, 8)])
@pytest.mark.usefixtures("one_thread")
def test_the_reference_engine_in_float32_says_what_transformers_says(
    model: str, prompts: int, length: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    document = reference_and_transformers(request.getfixturevalue(model), tmp_path, prompts, length)
    (pair,) = document["pairs"]
    assert pair["class"] in ("identical", "near-tie"), pair["why"]
    assert pair["near_tie_nats"] == 0.01
    forced = pair["teacher_forced"]
    assert forced["top1_or_tie_share"] == 1
    assert forced["mean_abs_logprob_difference"] < 1e-3
    assert forced["mean_kl"] < 1e-6
    assert not document["engines"][1]["problems"]


def test_bfloat16_is_told_from_float32_and_a_damaged_model_from_both(
    tiny_dir: Path, tmp_path: Path, dyno: Callable[..., Result]
) -> None:
    from safetensors.torch import load_file, save_file

    fp32 = "label=fp32,backend=reference,dtype=float32,threads=1"
    words = ("verify", "--model", str(tiny_dir), "--prompts", "6", "--output-len", "10", "--json")
    done = dyno(
        *words,
        "--engine",
        fp32.replace("fp32", "bf16").replace("float32", "bfloat16"),
        "--engine",
        fp32,
        "--out",
        str(tmp_path / "out"),
    )
    assert done.code == 0, done.err
    document = json.loads(done.out)
    (pair,) = document["pairs"]
    assert (pair["a"], pair["b"]) == ("bf16", "fp32")
    assert pair["class"] in ("near-tie", "close"), pair["why"]
    assert pair["teacher_forced"]["mean_abs_logprob_difference"] > 0
    assert [row["dtype"] for row in document["engines"]] == ["bfloat16", "float32"]
    assert json.loads((tmp_path / "out" / "verify.json").read_text()) == document
    assert list((tmp_path / "out").glob("*/server.log"))

    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_dir, damaged)
    (file,) = damaged.glob("*.safetensors")
    weights = load_file(file)
    name = next(n for n in weights if n.endswith("layers.0.self_attn.o_proj.weight"))
    weights[name] = weights[name].roll(1, 0)
    save_file(weights, file, {"format": "pt"})
    env = f"label=damaged,backend=reference,dtype=float32,threads=1,command={_serve(damaged, tmp_path)}"
    done = dyno(*words, "--engine", fp32, "--engine", env)
    assert done.code == 1, done.err
    (pair,) = json.loads(done.out)["pairs"]
    assert pair["class"] == "different", pair["why"]


def _serve(folder: Path, tmp_path: Path) -> str:
    """A command that serves that folder, whichever one it is told to."""
    import sys

    script = tmp_path / "serve.py"
    script.write_text(
        f"import sys\nfrom backends.reference.__main__ import main\nsys.exit(main([{str(folder)!r}, *sys.argv[2:]]))\n"
    )
    return f"{sys.executable} {script}"


def test_servers_that_are_there_are_compared_whatever_they_call_the_model(
    tiny_dir: Path, dyno: Callable[..., Result]
) -> None:
    with FakeServer(TokenSchedule(interval_s=0.0)) as one, FakeServer(TokenSchedule(interval_s=0.0, model="m")) as two:
        engines = [f"label={i},backend=openai,url={fake.url}" for i, fake in enumerate((one, two))]
        words = [word for engine in engines for word in ("--engine", engine)]
        done = dyno("verify", "--model", str(tiny_dir), "--prompts", "4", "--output-len", "5", "--json", *words)
    assert done.code == 0, done.err
    (pair,) = json.loads(done.out)["pairs"]
    assert pair["class"] == "identical"
    # They tell nothing of a prompt: each was asked for its favourite place by place.
    assert (pair["teacher_forced"]["top1_share"], pair["teacher_forced"]["mean_kl"]) == (1, None)
    assert "prompt_logprobs" in pair["teacher_forced_reason"]
    assert "a request each" in pair["teacher_forced_reason"]


def test_the_log_of_a_server_that_failed_is_kept_where_the_message_says(
    tiny_dir: Path, dyno: Callable[..., Result]
) -> None:
    words = ("--engine", "label=x,backend=reference,options=--no-such-flag")
    done = dyno("verify", "--model", str(tiny_dir), *words)
    assert done.code == 4
    (named,) = re.findall(r"Whole log: (\S+)", done.err)
    assert "no-such-flag" in Path(named).read_text()
    shutil.rmtree(Path(named).parents[1])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "No engine named"),
        (("--backend", "nope"), 2, "Unknown backend 'nope'"),
        (("--backend", "reference", "--backend", "reference"), 2, "labelled 'reference'"),
        (("--backend", "reference", "--output-len", "0"), 2, "--output-len"),
        (("--backend", "reference", "--prompts", "x"), 2, "--prompts"),
        (("--engine", "backend=reference,max_num_seqs=0"), 2, "max_num_seqs"),
        (("--engine", "backend=reference,kv_dtype=fp8"), 2, "kv_dtype"),
        (("--engine", "backend=reference,max_model_len=64"), 2, "more than the 64"),
        (("--url", "http://127.0.0.1:9"), 4, "Nothing answers"),
    ],
)
def test_mistakes_are_one_message(
    words: tuple[str, ...], code: int, message: str, tiny_dir: Path, dyno: Callable[..., Result]
) -> None:
    said = dyno("verify", "--model", str(tiny_dir), *words)
    assert said.code == code, said
    assert message in said.err
    assert "Traceback" not in said.err
