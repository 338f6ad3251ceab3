"""From what a user types to a model: known names, folders and what is wrong with them, Hub ids without a network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.models import (
    ModelFetchError,
    ModelFolderError,
    Vocabulary,
    cache,
    fetch,
    find_config,
    resolve_model,
    vocabulary,
)
from results.errors import UnknownNameError, UsageError


@pytest.fixture
def folder(tiny_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model to break."""
    return Path(shutil.copytree(tiny_dir, tmp_path / "model"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty Hugging Face cache and no Hub; gives the cache's folder."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put_into_hub_cache(hub: Path, model_id: str, source: Path, names: list[str]) -> None:
    repository = hub / ("models--" + model_id.replace("/", "--"))
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    for name in names:
        shutil.copy(source / name, snapshot)


def test_a_known_name_is_fetched_with_a_line_that_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    model = resolve_model("random-tiny", root=tmp_path, say=said.append)
    assert model.folder == tmp_path / "random-tiny"
    assert model.config["num_key_value_heads"] == 2
    assert said == [f"Building random-tiny in {model.folder} ..."]
    assert resolve_model("Random-Tiny", root=tmp_path, say=said.append).name == "random-tiny"
    assert len(said) == 1


def test_a_folder_is_taken_as_it_is_whatever_it_is_called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(folder).folder == folder
    assert resolve_model(str(folder)).config == json.loads((folder / "config.json").read_text())
    monkeypatch.chdir(folder.parent)
    folder.rename("random-tiny")
    assert resolve_model("./random-tiny").folder == folder.parent / "random-tiny"


def break_config(text: str | None) -> Any:
    def breaker(folder: Path) -> None:
        (folder / "config.json").unlink()
        if text is not None:
            (folder / "config.json").write_text(text)

    return breaker


def break_weights(data: bytes | None) -> Any:
    def breaker(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        if data is not None:
            (folder / "model.safetensors").write_bytes(data)

    return breaker


def truncate(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])


def missing_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("breaker", "message"),
    [
        (break_config(None), r"no config\.json in the model folder"),
        (break_config("{"), "not valid JSON"),
        (break_config(""), "not valid JSON"),
        (break_config("[" * 100_000), "not valid JSON"),
        (break_config("[1]"), "holds a JSON list, not an object"),
        (break_weights(None), r"has no weights \(\*\.safetensors\)"),
        (break_weights(b""), r"\(0 bytes\) is cut short"),
        (break_weights(b"version https://git-lfs.github.com/spec/v1\noid x\n"), "git lfs pull"),
        (break_weights(b"\xff" * 64), "cut short or not a safetensors"),
        (break_weights(b"\x02" + b"\0" * 7 + b"[]"), "broken safetensors header"),
        (truncate, r"has \d+ bytes, its header says \d+"),
        (missing_shard, "lacks 1 of its 2 weight files"),
        (only_pickled, r"It has pytorch_model\.bin, which must be converted"),
    ],
)
def test_a_broken_folder_is_one_error_that_names_what_is_wrong(folder: Path, breaker: Any, message: str) -> None:
    breaker(folder)
    with pytest.raises(ModelFolderError, match=message) as caught:
        resolve_model(folder)
    assert str(folder) in str(caught.value)
    assert caught.value.exit_code == 2


def test_whole_shards_named_by_an_index_are_accepted(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert resolve_model(folder).folder == folder


@pytest.mark.parametrize("text", ["./nix", "/nix/nix", "a/b/c", "~/nix-nix", "~no-such-user/x", "x" * 5000])
def test_a_path_that_is_not_there_is_one_short_error(text: str) -> None:
    with pytest.raises(ModelFolderError) as caught:
        resolve_model(text)
    assert len(str(caught.value)) < 500


def test_a_file_is_not_a_model(folder: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"is a file; a model is a folder"):
        resolve_model(folder / "config.json")


def test_an_unreadable_config_is_one_error(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    with pytest.raises(ModelFolderError, match=r"cannot be read: Is a directory"):
        resolve_model(folder)


def test_a_hub_id_in_the_local_cache_needs_no_network(tiny_dir: Path, offline: Path) -> None:
    put_into_hub_cache(offline, "someone/tiny", tiny_dir, ["config.json", "model.safetensors"])
    model = resolve_model("someone/tiny")
    assert (model.name, model.folder.parent.parent) == ("someone/tiny", offline / "models--someone--tiny")
    assert model.config["vocab_size"] == 512


def test_a_hub_id_of_which_only_the_config_is_cached_lacks_its_weights(tiny_dir: Path, offline: Path) -> None:
    put_into_hub_cache(offline, "someone/tiny", tiny_dir, ["config.json"])
    with pytest.raises(ModelFolderError, match="has no weights"):
        resolve_model("someone/tiny")
    assert find_config("someone/tiny").config["vocab_size"] == 512


def test_an_unknown_hub_id_offline_names_the_folders_searched_and_the_way_out(offline: Path) -> None:
    with pytest.raises(ModelFetchError) as caught:
        resolve_model("someone/nothing")
    text = str(caught.value)
    assert str(offline) in text
    assert str(Path.cwd()) in text
    assert "hf download someone/nothing" in text
    assert "HF_HUB_OFFLINE is set" in text


def test_a_hub_that_does_not_answer_is_told_after_one_short_try(
    offline: Path, monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{unused_port}")
    for ask in (resolve_model, find_config):
        with pytest.raises(ModelFetchError, match=f"the Hub at http://127.0.0.1:{unused_port} did not answer"):
            ask("someone/nothing")


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_a_name_of_nothing_lists_the_known_and_the_nearest(offline: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'random-tiny'\?.*Looked in"):
        resolve_model("random-tny")
    with pytest.raises(UnknownNameError, match="`dyno kv` knows its shape"):
        resolve_model("llama-7b")
    for text in ("", "a b", "a\x01", "a\0b"):
        with pytest.raises(UnknownNameError):
            resolve_model(text)


def test_configs_come_from_shipped_names_folders_and_files(folder: Path, tmp_path: Path) -> None:
    assert find_config("Llama-2-7B").name == "llama-2-7b"
    assert find_config("llama-7b").folder is None
    (folder / "model.safetensors").unlink()  # planning needs no weights
    assert find_config(folder).config["hidden_size"] == 64
    assert find_config(str(folder / "config.json")).folder == folder
    with pytest.raises(ModelFolderError, match="There is no model folder"):
        find_config("./nix")
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        find_config(tmp_path)


def test_planning_for_a_known_model_downloads_nothing(tmp_path: Path, offline: Path) -> None:
    assert find_config("smollm2-135m", root=tmp_path / "models").config["num_hidden_layers"] == 30
    assert not (tmp_path / "models").exists()


def test_the_shipped_smollm2_config_is_the_built_ones(smollm2_dir: Path) -> None:
    built = json.loads((smollm2_dir / "config.json").read_text())
    shipped = find_config("smollm2-135m", root=smollm2_dir.parent / "no-such-cache").config
    keys = [key for key in shipped if key in built]
    assert len(keys) >= 12
    assert {key: built[key] for key in keys} == {key: shipped[key] for key in keys}


def test_the_vocabulary_of_a_folder_leaves_out_what_no_text_gives(tiny_dir: Path, smollm2_dir: Path) -> None:
    assert vocabulary(tiny_dir) == Vocabulary(512, frozenset({256, 257, 258}))
    assert vocabulary(resolve_model(smollm2_dir)) == Vocabulary(49152, frozenset(range(17)))


def test_the_vocabulary_needs_no_folder(tmp_path: Path) -> None:
    assert vocabulary("llama-7b") == Vocabulary(32000, frozenset({0, 1, 2}))
    assert vocabulary("llama-3-8b").special == frozenset(range(128000, 128256))
    assert vocabulary("smollm2-135m", root=tmp_path) == Vocabulary(49152, frozenset(range(17)))
    fetch("random-tiny", root=tmp_path, say=lambda _: None)
    assert vocabulary("random-tiny", root=tmp_path).size == 512
    assert cache.fault(tmp_path / "random-tiny") is None


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_padding_rows_lists_of_ends_and_added_words_are_special(folder: Path) -> None:
    edit(folder / "config.json", vocab_size=520)
    edit(folder / "generation_config.json", eos_token_id=[257, 7])
    edit(folder / "tokenizer.json", added_tokens=[{"id": 300, "content": "<think>", "special": False}])
    special = vocabulary(folder).special
    assert special == frozenset({7, 256, 257, 258, 300, *range(512, 520)})


def test_without_a_tokenizer_json_its_config_tells_the_added_tokens(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    edit(folder / "tokenizer_config.json", added_tokens_decoder={"40": {"content": "<x>"}})
    assert vocabulary(folder).special == frozenset({40, 256, 257, 258})


def test_a_tokenizer_or_vocabulary_that_makes_no_sense_is_one_error(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 7}')
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json is not a tokenizer"):
        vocabulary(folder)
    (folder / "tokenizer.json").unlink()
    edit(folder / "config.json", vocab_size=None)
    with pytest.raises(UsageError, match="no vocab_size"):
        vocabulary(folder)
