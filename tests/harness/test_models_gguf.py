"""From a GGUF to a Hugging Face folder: rounding, the order of q and k rows, names, the tokenizer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.models import ModelFetchError, open_folder
from harness.models.folder import bf16_bits, write_bf16_safetensors
from harness.models.from_gguf import convert, require_gguf
from harness.models.tiny import byte_characters

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 2, 32, 48, 4, 2, 8


def write_gguf(path: Path, *, arch: str = "llama", pre: str = "smollm", extra: str | None = None) -> dict[str, np.ndarray]:  # type: ignore[type-arg]  # arrays of any dtype  # fmt: skip
    """A small F32 Llama as llama.cpp stores it. Returns its weights under Hugging Face's names and in its order."""
    gguf = require_gguf()
    writer = gguf.GGUFWriter(path, arch)
    tokens = ["<|end|>", *byte_characters(), "ab", "Ġ1"]
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["a b", "Ġ 1"])
    writer.add_eos_token_id(0)
    random = np.random.RandomState(0)
    weights = {}

    def put(ours: str, theirs: str, *shape: int, heads: int = 0) -> None:
        values = random.standard_normal(shape).astype(np.float32)
        weights[theirs] = values
        if heads:  # as llama.cpp's converter does it: halves of a head become pairs
            values = values.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(shape)
        writer.add_tensor(ours, np.ascontiguousarray(values))

    put("token_embd.weight", "model.embed_tokens.weight", len(tokens), HIDDEN)
    put("output_norm.weight", "model.norm.weight", HIDDEN)
    for i in range(LAYERS):
        at, to = f"blk.{i}.", f"model.layers.{i}."
        put(f"{at}attn_q.weight", f"{to}self_attn.q_proj.weight", HEADS * HEAD_DIM, HIDDEN, heads=HEADS)
        put(f"{at}attn_k.weight", f"{to}self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN, heads=KV_HEADS)
        put(f"{at}attn_v.weight", f"{to}self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        put(f"{at}attn_output.weight", f"{to}self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM)
        put(f"{at}ffn_gate.weight", f"{to}mlp.gate_proj.weight", FFN, HIDDEN)
        put(f"{at}ffn_up.weight", f"{to}mlp.up_proj.weight", FFN, HIDDEN)
        put(f"{at}ffn_down.weight", f"{to}mlp.down_proj.weight", HIDDEN, FFN)
        put(f"{at}attn_norm.weight", f"{to}input_layernorm.weight", HIDDEN)
        put(f"{at}ffn_norm.weight", f"{to}post_attention_layernorm.weight", HIDDEN)
    if extra:
        put(extra, extra, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_every_tensor_comes_back_under_its_name_in_hugging_faces_order(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    weights = write_gguf(tmp_path / "x.gguf")
    convert(tmp_path / "x.gguf", tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert set(found) == set(weights)
    for name, values in weights.items():
        assert torch.equal(found[name], torch.from_numpy(values).to(torch.bfloat16)), name


def test_the_config_holds_the_ggufs_fields_and_the_folder_can_be_opened(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf")
    convert(tmp_path / "x.gguf", tmp_path)
    config = open_folder("x", tmp_path).config
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 259,
        "eos_token_id": 0,
    }
    assert {key: config.get(key) for key in expected} == expected
    assert "bos_token_id" not in config


def test_the_tokenizer_puts_digits_on_their_own_where_the_gguf_says_so(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    for pre, tokens in (("smollm", ["ab", "Ġ", "1"]), ("gpt-2", ["ab", "Ġ1"])):
        write_gguf(tmp_path / "x.gguf", pre=pre)
        convert(tmp_path / "x.gguf", tmp_path)
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert tokenizer.encode("ab 1").tokens == tokens
        assert tokenizer.decode(tokenizer.encode("ab 1").ids) == "ab 1"
        assert tokenizer.encode("ab<|end|>").ids == [257, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "bert"}, "of the architecture bert, not llama"),
        ({"pre": "qwen2"}, "pre-tokenizer qwen2"),
        ({"extra": "blk.0.ffn_gate_inp.weight"}, "ffn_gate_inp"),
    ],
)
def test_what_cannot_be_rebuilt_exactly_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    write_gguf(tmp_path / "x.gguf", **options)  # type: ignore[arg-type]  # keywords of several types from one table
    with pytest.raises(ModelFetchError, match=message):
        convert(tmp_path / "x.gguf", tmp_path)


def test_without_the_gguf_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelFetchError, match=r"extra `models`.*pip install 'gguf"):
        require_gguf()


@given(st.lists(st.integers(0, 2**32 - 1).filter(lambda bits: bits >> 23 & 0xFF != 0xFF), min_size=1))
def test_every_finite_float_rounds_to_bf16_as_in_torch(patterns: list[int]) -> None:
    torch = pytest.importorskip("torch")
    array = np.array(patterns, dtype=np.uint32).view(np.float32)
    expected = torch.from_numpy(array).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(bf16_bits(array), expected)


def test_the_header_is_padded_and_offsets_are_exact(tmp_path: Path) -> None:
    values = {"b": np.ones((3, 5), np.float32), "a": np.zeros(7, np.float32)}
    write_bf16_safetensors(tmp_path / "m", {k: v.shape for k, v in values.items()}, values.__getitem__)
    data = (tmp_path / "m").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header["b"]["data_offsets"] == [0, 30]
    assert header["a"]["data_offsets"] == [30, 44]
    assert len(data) == 8 + length + 44
