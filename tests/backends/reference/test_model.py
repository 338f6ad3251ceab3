"""The model against transformers: greedy tokens in float32, logits, and what must not reach across requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.reference.build import BuiltEngine, build_engine
from backends.reference.config import EngineSettings, read_model_config
from backends.reference.messages import Sampling, Submit
from backends.reference.request import Request, Scheduled
from backends.reference.runner import ModelRunner

OUTPUT = 32
TINY = {
    "vocab_size": 173,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped query": {},
    "one KV head": {"num_key_value_heads": 1},
    "as many KV heads as heads": {"num_key_value_heads": 6},
    "explicit head_dim": {"head_dim": 32},
    "tied embeddings": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def save_llama(folder: Path, shard_size: str = "1GB", **changes: Any) -> Any:
    """A small random Llama made and saved by transformers."""
    return save_model("Llama", folder, shard_size, **changes)


def save_model(kind: str, folder: Path, shard_size: str = "1GB", **changes: Any) -> Any:
    """A small random model of a family, by the beginning of its classes' names."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**(TINY | {"eos_token_id": None} | changes))
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def built(folder: Path, **settings: Any) -> BuiltEngine:
    defaults: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "kv_cache_tokens": 4096, "threads": 1}
    return build_engine(folder, read_model_config(folder), EngineSettings(**(defaults | settings)))


def generate(
    engine: BuiltEngine, prompts: list[list[int]], max_tokens: int = OUTPUT, **sampling: Any
) -> list[list[int]]:
    made: dict[int, list[int]] = {key: [] for key in range(len(prompts))}
    for key, prompt in enumerate(prompts):
        engine.engine.submit(Submit(key, f"r{key}", prompt, max_tokens, Sampling(**sampling)))
    while engine.engine.scheduler.has_work:
        for token in engine.engine.step():
            made[token.key].append(token.token)
        engine.engine.scheduler.check_integrity()
    assert engine.engine.scheduler.blocks.num_allocated == 0
    return [made[key] for key in range(len(prompts))]


def transformers_greedy(model: Any, prompt: list[int], max_tokens: int = OUTPUT) -> list[int]:
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def random_prompts(lengths: tuple[int, ...], vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_gives_the_tokens_of_the_cpu(tmp_path: Path) -> None:
    save_model("Llama", tmp_path)
    prompts = random_prompts((5, 33, 70), TINY["vocab_size"])
    assert generate(built(tmp_path, device="cuda"), prompts) == generate(built(tmp_path), prompts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_equal_transformers_alone_and_batched(variant: str, tmp_path: Path) -> None:
    reference = save_llama(tmp_path, **VARIANTS[variant])
    prompts = random_prompts((1, 15, 16, 17, 100, 200), TINY["vocab_size"])
    expected = [transformers_greedy(reference, prompt) for prompt in prompts]
    assert len({tuple(tokens) for tokens in expected}) == len(prompts)  # a model that says one thing proves nothing
    engine = built(tmp_path)
    assert generate(engine, prompts) == expected
    assert [generate(engine, [prompt])[0] for prompt in prompts] == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 1, "kv_cache_tokens": 2000},
        {"block_size": 5, "kv_cache_tokens": 2000},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 64, "block_size": 32},
        {"max_num_seqs": 2},
        {"kv_cache_tokens": 240, "max_model_len": 240, "block_size": 8},
    ],
    ids=str,
)
def test_blocks_chunks_and_preemption_do_not_change_the_tokens(settings: dict[str, Any], tmp_path: Path) -> None:
    reference = save_llama(tmp_path)
    prompts = random_prompts((1, 15, 16, 17, 100, 200), TINY["vocab_size"])
    engine = built(tmp_path, **settings)
    assert generate(engine, prompts) == [transformers_greedy(reference, prompt) for prompt in prompts]
    assert (engine.engine.scheduler.num_preemptions > 0) == (settings.get("kv_cache_tokens") == 240)


def test_smollm2_greedy_tokens_equal_transformers_alone_and_batched(smollm2_dir: Path) -> None:
    """Each token is what transformers finds most likely after the same tokens: by induction, its greedy output."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval()
    prompts = random_prompts((1, 15, 16, 17, 100, 500), 49152)
    engine = built(smollm2_dir, max_model_len=1024, threads=2)
    batched = generate(engine, prompts)
    for prompt, output in zip(prompts, batched, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        assert output == logits.argmax(-1).tolist()
        assert len(output) == OUTPUT
    assert [generate(engine, [prompt])[0] for prompt in prompts] == batched


def test_sharded_weights_give_the_same_tokens(tmp_path: Path) -> None:
    save_llama(tmp_path / "whole")
    save_llama(tmp_path / "sharded", shard_size="40KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    prompts = random_prompts((5, 40), TINY["vocab_size"])
    assert generate(built(tmp_path / "sharded"), prompts) == generate(built(tmp_path / "whole"), prompts)


@pytest.mark.parametrize("chunk", [1, 16, 37, 200])
def test_logits_of_chunks_equal_those_of_the_whole_prompt(chunk: int, tmp_path: Path) -> None:
    reference = save_llama(tmp_path)
    prompt = random_prompts((200,), TINY["vocab_size"])[0]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0]
    for start, logits in chunk_logits(built(tmp_path), prompt, chunk):
        torch.testing.assert_close(logits, expected[start : start + chunk], rtol=1e-4, atol=1e-4)


def chunk_logits(engine: BuiltEngine, prompt: list[int], chunk: int) -> list[tuple[int, torch.Tensor]]:
    request = Request(0, "r", list(prompt), 1)
    engine.engine.scheduler.blocks.grow(request.block_table, len(prompt))
    result = []
    with torch.inference_mode():
        for start in range(0, len(prompt), chunk):
            item = Scheduled(request, start, min(chunk, len(prompt) - start))
            positions = torch.arange(item.start, item.end)
            index = engine.kv.index([item])
            hidden = engine.model.hidden(torch.tensor(prompt[item.start : item.end]), positions, engine.kv, index)
            result.append((start, engine.model.logits(hidden)))
    return result


@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_what_an_earlier_owner_left_in_a_block_does_not_reach_the_next(garbage: float, tmp_path: Path) -> None:
    save_llama(tmp_path)
    prompts = random_prompts((1, 15, 16, 17, 100), TINY["vocab_size"])
    clean = generate(built(tmp_path), prompts)
    engine = built(tmp_path, max_num_batched_tokens=33)
    engine.kv.pool[:, :, :-1] = garbage
    assert generate(engine, prompts) == clean
    assert not engine.kv.pool[:, :, -1].any()  # the null block is never written


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_logits_are_near_those_of_float32(dtype: str, tmp_path: Path) -> None:
    reference = save_llama(tmp_path, initializer_range=0.1)
    prompt = random_prompts((100,), TINY["vocab_size"])[0]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0]
    ((_, logits),) = chunk_logits(built(tmp_path, dtype=dtype), prompt, len(prompt))
    assert logits.dtype is getattr(torch, dtype)
    spread = expected.std()
    assert (logits.float() - expected).abs().mean() < 0.05 * spread


def test_plain_and_packed_products_agree_in_bfloat16(tmp_path: Path) -> None:
    from backends.reference.linear import PackedLinear, PlainLinear, packing_works

    if not packing_works():
        pytest.skip(f"no packed bfloat16 products in torch {torch.__version__} here")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(80, 48, generator=generator).bfloat16()
    bias = torch.randn(80, generator=generator).bfloat16()
    for rows in (1, 2, 31, 300):
        x = torch.randn(rows, 48, generator=generator).bfloat16()
        plain, packed = PlainLinear(weight, bias)(x), PackedLinear(weight, bias)(x)
        torch.testing.assert_close(packed, plain, rtol=0.02, atol=0.05)


def test_dummy_weights_need_no_files_and_follow_the_seed(tmp_path: Path) -> None:
    save_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    prompts = random_prompts((20,), TINY["vocab_size"])
    first, again, other = (generate(built(tmp_path, load_format="dummy", seed=seed), prompts) for seed in (0, 0, 1))
    assert first == again != other
    weights = built(tmp_path, load_format="dummy").model.embedding
    assert abs(weights.std().item() - 0.02) < 0.001


def test_model_bytes_count_a_tied_head_once(tmp_path: Path) -> None:
    reference = save_llama(tmp_path, tie_word_embeddings=True)
    assert built(tmp_path).model.num_bytes == 4 * sum(parameter.numel() for parameter in reference.parameters())


def test_kv_bytes_are_the_formula_and_the_pool(tmp_path: Path) -> None:
    save_llama(tmp_path, head_dim=32)
    config = read_model_config(tmp_path)
    assert config.kv_bytes_per_token("bfloat16") == 2 * 3 * 2 * 32 * 2
    assert built(tmp_path, dtype="bfloat16").kv.num_bytes == 4096 * config.kv_bytes_per_token("bfloat16")


def test_mixed_batch_in_any_order_of_items_returns_tokens_in_that_order(tmp_path: Path) -> None:
    reference = save_llama(tmp_path)
    engine = built(tmp_path)
    prompts = random_prompts((30, 1, 20, 1), TINY["vocab_size"])
    requests = [Request(key, "r", list(prompt), 1) for key, prompt in enumerate(prompts)]
    for request in requests:
        engine.engine.scheduler.blocks.grow(request.block_table, request.num_tokens)
    items = [Scheduled(request, 0, request.num_tokens) for request in requests]
    items[2] = Scheduled(requests[2], 0, 10)  # does not reach its end, so it gets no token
    expected = [transformers_greedy(reference, prompts[i], 1)[0] for i in (0, 1, 3)]
    assert isinstance(engine.engine.runner, ModelRunner)
    assert engine.engine.runner.run(items).tokens == expected


def test_config_of_older_and_newer_transformers_read_alike(tmp_path: Path) -> None:
    save_llama(tmp_path, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0})
    new = json.loads((tmp_path / "config.json").read_text())
    config = read_model_config(tmp_path)
    rope = new.pop("rope_parameters")
    old = new | {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "linear", "factor": 2.0}}
    old["torch_dtype"] = old.pop("dtype")
    (tmp_path / "config.json").write_text(json.dumps(old))
    read = read_model_config(tmp_path)
    assert (read.rope_theta, read.rope["rope_type"], read.rope["factor"]) == (777.0, "linear", 2.0)
    assert (read.dtype, read.head_dim) == (config.dtype, config.head_dim)
