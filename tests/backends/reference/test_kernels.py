"""The compiled kernels: agreement with PyTorch, independence of a token from what is beside it, and how they are chosen."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.reference import build, kernels
from backends.reference.build import BuiltEngine
from backends.reference.kernels import FORMS, Kernels, Panels, load_kernels
from backends.reference.messages import Sampling, Submit
from backends.reference.native import NativeKV
from backends.reference.native_check import agrees
from backends.reference.switches import Switches
from tests.backends.reference.test_model import built, chunk_logits, generate, random_prompts, save_model

# Shapes that the kernels do: hidden size and head_dim of a multiple of 32.
SHAPE: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.1,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", {}),
    "Llama, untied, one KV head": ("Llama", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    "Llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Qwen2": ("Qwen2", {}),
    "Qwen3": ("Qwen3", {"head_dim": 64}),
}


def form(name: str, threads: int = 2) -> Kernels:
    """A form of the library, or skip where it is not compiled or does not run."""
    found = load_kernels(name, threads)
    if found is None:
        pytest.skip(f"the kernels' form {name} is not compiled, or this processor lacks what it needs")
    return found


def native(folder: Path, **settings: Any) -> BuiltEngine:
    """An engine on the kernels; skip where there are none."""
    form("auto")
    engine = built(folder, dtype="bfloat16", threads=2, **settings)
    assert engine.kernels != "off"
    return engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama whose greedy tokens vary."""
    path = tmp_path_factory.mktemp("llama")
    save_model("Llama", path, **SHAPE | {"initializer_range": 0.3})
    return path


@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_pytorch(name: str) -> None:
    assert agrees(form(name))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 12, 13, 193, 400])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 32), (96, 173), (2, 64), (1030, 64)])
def test_products_are_those_of_float32(name: str, rows: int, inputs: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
    bias = torch.randn(outputs, generator=generator).bfloat16()
    x = torch.randn(rows, inputs, generator=generator).bfloat16()
    found = Panels(form(name), weight, None)(x)
    assert found.shape == (rows, outputs)
    torch.testing.assert_close(found, x.float() @ weight.float().T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(Panels(form(name), weight, bias)(x), found + bias.float(), rtol=1e-5, atol=1e-5)
    alone = torch.cat([Panels(form(name), weight, None)(x[row : row + 1]) for row in range(min(rows, 13))])
    assert torch.equal(alone, found[:13])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_as_near_to_transformers_as_pytorchs_are(family: str, tmp_path: Path) -> None:
    kind, changes = FAMILIES[family]
    reference = save_model(kind, tmp_path, **SHAPE | changes)
    prompt = random_prompts((150,), 173)[0]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0]
    plain = built(tmp_path, dtype="bfloat16", kernels="off")
    error = (chunk_logits(plain, prompt, len(prompt))[0][1].float() - expected).abs().mean()
    for start, logits in chunk_logits(native(tmp_path), prompt, 37):
        assert logits.dtype is torch.float32
        assert (logits - expected[start : start + 37]).abs().mean() < 1.5 * error + 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 32, "kv_cache_tokens": 3200},
        {"block_size": 48, "kv_cache_tokens": 4800},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 64},
        {"max_num_seqs": 2},
        {"kv_cache_tokens": 240, "max_model_len": 240},  # too small for all at once: preemption
        {"switches": Switches(prefix_caching=True)},
        {"switches": Switches(kv_layout="contiguous")},
        {"switches": Switches(chunked_prefill=False), "max_num_batched_tokens": 256},
        {"switches": Switches(admission="reserve-max", batching="static-pad")},
    ],
    ids=str,
)
def test_greedy_tokens_do_not_depend_on_batch_chunks_blocks_or_preemption(
    settings: dict[str, Any], folder: Path
) -> None:
    """In bfloat16, bit for bit: every sum is made in one order."""
    prompts = random_prompts((1, 15, 16, 17, 100, 200), 173)
    alone = native(folder)
    expected = [generate(alone, [prompt])[0] for prompt in prompts]
    assert len({tuple(tokens) for tokens in expected}) == len(prompts)
    engine = native(folder, **settings)
    assert generate(engine, prompts) == expected
    assert generate(engine, prompts[::-1]) == expected[::-1]


@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_what_an_earlier_owner_left_in_a_cell_does_not_reach_the_next(garbage: float, folder: Path) -> None:
    prompts = random_prompts((1, 15, 16, 17, 100), 173)
    clean = generate(native(folder), prompts)
    engine = native(folder, max_num_batched_tokens=33)
    assert isinstance(engine.kv, NativeKV)
    engine.kv.pool.fill_(garbage)
    assert generate(engine, prompts) == clean


def test_pool_is_as_large_as_the_formula_says(folder: Path) -> None:
    engine = native(folder, kv_cache_tokens=640)
    assert engine.kv.num_bytes == 640 * engine.model.config.kv_bytes_per_token("bfloat16")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float32"}, "weights are float32"),
        ({"block_size": 8}, "a block of 8 tokens is no multiple of 16"),
        ({"switches": Switches(kv_cache="off", chunked_prefill=False), "kv_cache_tokens": 0}, "no KV cache"),
    ],
)
def test_what_the_kernels_do_not_do_is_computed_by_pytorch_and_said(
    settings: dict[str, Any], reason: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        engine = built(folder, **{"dtype": "bfloat16"} | settings)
    assert engine.kernels == "off"
    assert [message for message in caplog.messages if reason in message]


def test_without_a_compiled_library_pytorch_computes_after_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "_compiled", lambda: iter(()))
    with caplog.at_level(logging.INFO):
        engine = built(folder, dtype="bfloat16")
    assert engine.kernels == "off"
    assert len([message for message in caplog.messages if "no compiled kernels" in message]) == 1


def test_broken_library_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    broken = tmp_path / "_kernels_avx2.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(kernels, "_compiled", lambda: iter([("avx2", broken)]))
    assert load_kernels("auto", 1) is None
    assert [message for message in caplog.messages if "_kernels_avx2.so cannot be loaded" in message]


def test_kernels_that_disagree_with_pytorch_are_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    form("auto")
    monkeypatch.setattr(build, "agrees", lambda kernels: False)
    assert built(folder, dtype="bfloat16").kernels == "off"
    assert [message for message in caplog.messages if "disagree with PyTorch" in message]


def test_log_probabilities_are_those_of_the_logits(folder: Path) -> None:
    prompt = random_prompts((70,), 173)[0]
    engine = native(folder, max_num_batched_tokens=48)
    engine.engine.submit(Submit(0, "r", prompt, 1, Sampling(logprobs=1, prompt_logprobs=0)))
    made = [token for _ in range(2) for token in engine.engine.step()]
    scores = torch.log_softmax(chunk_logits(native(folder), prompt, len(prompt))[0][1], -1)
    told = made[0].prompt_logprobs
    assert told is not None
    assert [entry.logprob for entry in told] == pytest.approx([scores[i, t].item() for i, t in enumerate(prompt[1:])])
    assert made[0].logprobs is not None
    assert made[0].logprobs.logprob == pytest.approx(scores[-1].max().item())


def test_gates_far_from_zero_are_closed_or_open(tmp_path: Path) -> None:
    """silu of a large negative number is 0, not what an exponential that overflows makes of it."""
    save_model("Llama", tmp_path, **SHAPE)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    for name in tensors:
        if "gate_proj" in name:
            tensors[name] *= 1000
        if "up_proj" in name:
            tensors[name] /= 1000
    save_file(tensors, weights, metadata={"format": "pt"})
    prompt = random_prompts((60,), 173)[0]
    ((_, expected),) = chunk_logits(built(tmp_path), prompt, 60)
    ((_, found),) = chunk_logits(native(tmp_path), prompt, 60)
    assert (found - expected).abs().mean() < 0.05 * expected.std()


def test_a_step_without_memory_says_so(folder: Path) -> None:
    engine = native(folder)
    model: Any = engine.model
    model._c_model.threads = 1 << 34  # Their rooms would take hundreds of TB.
    with pytest.raises(MemoryError, match="no memory for a step"):
        chunk_logits(engine, random_prompts((9,), 173)[0], 9)
