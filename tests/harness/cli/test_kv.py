"""`dyno kv`: the numbers, offline, for names, folders and files; mistakes by the flag's name."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness.cli.kv import kv
from harness.models import ModelFolderError, vocabulary
from results import model_configs
from results.errors import DynoError, UnknownNameError, UsageError

app = typer.Typer()
app.command()(kv)


@pytest.fixture(autouse=True)
def no_network_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")


def dyno_kv(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def answer(*arguments: str) -> dict[str, Any]:
    return json.loads(dyno_kv(*arguments, "--json"))  # type: ignore[no-any-return]  # JSON of a command that prints an object


LLAMA = ("llama-7b", "--batch", "64", "--seq-len", "1024", "--dtype", "float16")


def test_llama_7b_takes_524288_bytes_a_token_and_32_gib() -> None:
    text = dyno_kv(*LLAMA)
    assert "524,288 bytes a token (512 KiB)" in text
    assert "64 x 1,024 tokens: 32.0 GiB" in text
    assert "2 x 32 layers x 32 KV heads x 128 head_dim" in text
    assert "the FFN is 67 % of a layer" in text


def test_json_has_the_agreed_keys() -> None:
    found = answer(*LLAMA)
    expected = {
        "architecture": "LlamaForCausalLM",
        "parameters": 6_738_415_616,
        "weight_bytes": 13_476_831_232,
        "kv_bytes_per_token": 524_288,
        "kv_bytes": 34_359_738_368,
        "batch": 64,
        "seq_len": 1024,
        "dtype": "float16",
        "kv_dtype": "float16",
    }
    assert {key: found[key] for key in expected} == expected
    parts = found["parameters_by_part"]
    assert sum(parts.values()) == found["parameters"]
    assert found["kv_outgrows_weights"]["tokens"] == 13_476_831_232 // 524_288 + 1
    assert found["kv_outgrows_weights"]["seq_len_by_batch"]["64"] == 402


@pytest.mark.parametrize("name", model_configs.names())
def test_every_shipped_model_fits_80_columns(name: str) -> None:
    lines = dyno_kv(name, "--batch", "256", "--seq-len", "100000", "--block-size", "16").splitlines()
    assert max(map(len, lines)) <= 80


def test_a_folder_its_config_json_and_its_name_give_the_same(tiny_dir: Path) -> None:
    by_folder, by_file = answer(str(tiny_dir)), answer(str(tiny_dir / "config.json"))
    by_name = answer("random-tiny")
    for found in (by_folder, by_file, by_name):
        assert found["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
        found.pop("model")
    assert by_folder == by_file == by_name
    assert by_folder["parameters"] == 164_160


def test_dtypes_are_followed_and_quantised_weights_keep_a_16_bit_cache() -> None:
    assert answer("llama-7b", "--kv-dtype", "fp8")["kv_bytes_per_token"] == 262_144
    found = answer("llama-3-8b", "--dtype", "int4")
    assert (found["kv_dtype"], found["weight_bytes"]) == ("bfloat16", 8_030_261_248 // 2)


def test_blocks_round_up_and_the_block_size_is_said() -> None:
    assert answer("llama-7b", "--batch", "2", "--seq-len", "17", "--block-size", "16")["kv_bytes"] == 2 * 32 * 524_288
    assert "in blocks of 16" in dyno_kv("llama-7b", "--block-size", "16")


def test_a_window_caps_the_cache_and_is_said() -> None:
    assert answer("mistral-7b", "--batch", "1", "--seq-len", "32000")["kv_bytes"] == 512 * 2**20
    text = dyno_kv("mistral-7b", "--batch", "1", "--seq-len", "40000")
    assert "keep the last 4,096 tokens only" in text
    assert "longer than the model's 32,768 positions" in text
    assert "never (window)" in text


def test_parameters_of_an_unknown_family_are_null_with_the_reason(tmp_path: Path) -> None:
    config = model_configs.load("llama-7b") | {"model_type": "phi9"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = answer(str(tmp_path))
    assert (found["parameters"], found["weight_bytes"], found["kv_bytes_per_token"]) == (None, None, 524_288)
    assert "phi9" in found["unknown_reason"]
    assert "Weights   unknown" in dyno_kv(str(tmp_path))


@pytest.mark.parametrize("flag", ["--batch", "--seq-len", "--block-size"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", ""])
def test_a_length_that_is_no_number_above_zero_names_its_flag(flag: str, value: str) -> None:
    with pytest.raises(UsageError, match=flag):
        dyno_kv("llama-7b", f"{flag}={value}")


def test_unknown_models_and_dtypes_list_the_known_and_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownNameError, match=r"Did you mean 'llama-7b'\?.*nearest of \d\d known: llama-7b, .*`dyno models` lists"
    ):
        dyno_kv("lama-7b")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'bfloat16'\?"):
        dyno_kv("llama-7b", "--dtype", "bfloat61")
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        dyno_kv(str(tmp_path))


@pytest.mark.parametrize("text", ["{}", '{"num_hidden_layers": 2}', '{"text_config": {}}', '{"architectures": 3}'])
def test_a_config_that_says_too_little_is_one_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        dyno_kv(str(tmp_path))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(model_configs.names()), data=st.data())
def test_a_config_with_any_field_broken_gives_an_answer_or_one_typed_error(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    config = model_configs.load(name)
    for key in data.draw(st.lists(st.sampled_from([*config, "layer_types", "text_config"]), min_size=1, max_size=2)):
        config[key] = data.draw(JSON_VALUES)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with contextlib.suppress(DynoError):
        dyno_kv(str(file))
    with contextlib.suppress(DynoError):
        vocabulary(file)
