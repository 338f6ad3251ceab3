"""Model folders and flags that are wrong: one UsageError that names what and the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.reference.build import build_engine
from backends.reference.config import EngineSettings, read_model_config
from backends.reference.settings import parse_arguments, resolve
from results.errors import UsageError


def change_config(folder: Path, tmp_path: Path, **changes: Any) -> Path:
    """A copy of the folder with other values in its config.json; None removes a key."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return tmp_path


def test_missing_folder_and_missing_config_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere does not exist"):
        read_model_config(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"no config\.json"):
        read_model_config(tmp_path)


def test_end_of_sequence_ids_that_the_model_cannot_give_are_left_out(tiny_dir: Path, tmp_path: Path) -> None:
    """Masking such a one (min_tokens) would index past the logits."""
    folder = change_config(tiny_dir, tmp_path)
    vocabulary = read_model_config(tiny_dir).vocab_size
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, vocabulary - 1, vocabulary]}))
    assert read_model_config(folder).eos_token_ids == (2, vocabulary - 1)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_unreadable_config_is_one_clear_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"config\.json"):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel .* not supported; supported: LlamaForCausalLM"),
        ({"architectures": None}, "none named"),
        ({"hidden_size": None}, "has no 'hidden_size'"),
        ({"vocab_size": "many"}, "wrong kind"),
        ({"num_key_value_heads": 3}, "4 attention heads, which 3 KV heads"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn' .* not supported"),
    ],
)
def test_config_that_cannot_be_served_says_why(
    changes: dict[str, Any], message: str, tiny_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        read_model_config(change_config(tiny_dir, tmp_path, **changes))


def test_missing_and_misshapen_weights_are_named(tiny_dir: Path, tmp_path: Path) -> None:
    settings = EngineSettings("float32", 64, kv_cache_tokens=64)
    folder = change_config(tiny_dir, tmp_path)
    with pytest.raises(UsageError, match=r"no model\.safetensors.*--load-format dummy"):
        build_engine(folder, read_model_config(folder), settings)
    (folder / "model.safetensors").write_bytes((tiny_dir / "model.safetensors").read_bytes())
    change_config(tiny_dir, tmp_path, vocab_size=600)
    with pytest.raises(UsageError, match=r"shape \(512, 64\), but config.json makes it \(600, 64\)"):
        build_engine(folder, read_model_config(folder), settings)
    change_config(tiny_dir, tmp_path, num_hidden_layers=3)
    with pytest.raises(UsageError, match=r"no tensor model\.layers\.2\."):
        build_engine(folder, read_model_config(folder), settings)
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UsageError, match="cannot be read"):
        build_engine(folder, read_model_config(folder), settings)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-model-len", "0"], "--max-model-len: must be at least 1"),
        (["--block-size", "x"], "--block-size: invalid"),
        (["--port", "70000"], "--port: must be 0 to 65535"),
        (["--dtype", "int3"], "--dtype"),
        (["--kv-cache-tokens", "64", "--kv-cache-bytes", "64"], "not allowed with"),
        (["--no-such-flag"], "no-such-flag"),
    ],
)
def test_bad_flags_are_named(flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_arguments(["folder", *flags])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-model-len", "4096"], "4096 is more than the model's 2048"),
        (["--kv-cache-tokens", "15"], "less than one block of 16"),
        (["--kv-cache-tokens", "100", "--max-model-len", "100"], "holds 96 tokens, fewer .* 100; .* at least 112"),
        (["--kv-cache-tokens", str(10**12)], "bytes of memory are available"),
    ],
)
def test_pool_that_cannot_work_is_refused_with_the_numbers(flags: list[str], message: str, tiny_dir: Path) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(parse_arguments([str(tiny_dir), *flags]), read_model_config(tiny_dir))


def test_automatic_settings(tiny_dir: Path) -> None:
    config = read_model_config(tiny_dir)
    per_token = config.kv_bytes_per_token("bfloat16")
    default = resolve(parse_arguments([str(tiny_dir)]), config)
    assert (default.dtype, default.max_model_len) == ("bfloat16", 2048)
    assert default.kv_cache_tokens == min(256 * 2048, (1 << 30) // per_token // 16 * 16)
    few = resolve(parse_arguments([str(tiny_dir), "--max-num-seqs", "2", "--max-model-len", "100"]), config)
    assert few.kv_cache_tokens == 2 * 112
    by_bytes = resolve(parse_arguments([str(tiny_dir), "--kv-cache-bytes", str(100 * per_token)]), config)
    assert (by_bytes.kv_cache_tokens, by_bytes.max_model_len) == (96, 96)  # never longer than the pool holds
    assert resolve(parse_arguments([str(tiny_dir), "--dtype", "float16"]), config).dtype == "float16"
