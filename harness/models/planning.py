"""What can be known of a model without its weights: its config.json, and the vocabulary to draw prompts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.models import cache, hub
from harness.models.errors import ModelFetchError, ModelFolderError
from harness.models.known import KNOWN
from harness.models.resolve import ModelRef, no_such_folder, not_a_path, read_json, resolve_model
from results import model_configs
from results.arithmetic import text_config
from results.errors import UnknownNameError, UsageError
from results.parameters import positive_int
from workloads.base import Vocabulary

_LISTED = "`dyno models` lists them"


@dataclass(frozen=True, slots=True)
class FoundConfig:
    """A config.json, and the folder it lies in; None where it is one of the shipped ones."""

    name: str
    config: dict[str, Any]
    folder: Path | None


def find_config(name_or_path: str | Path, *, root: Path | None = None) -> FoundConfig:
    """The config of a known model, a shipped name, a folder, a config.json, or a Hub id; nothing is fetched for a name.

    Raises UnknownNameError (lists the names), ModelFolderError.
    """
    text = str(name_or_path)
    name = text.lower()
    if name in KNOWN:
        folder = (root or cache.cache_root()) / name
        if cache.fault(folder) is None:
            return FoundConfig(name, read_json(folder / "config.json", f"the model folder {folder}"), folder)
    if name in model_configs.names():
        return FoundConfig(name, model_configs.load(name), None)
    if name in KNOWN:
        model = resolve_model(name, root=root)
        return FoundConfig(model.name, model.config, model.folder)
    try:
        path = Path(text).expanduser()
        exists, is_file = bool(text) and path.exists(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise not_a_path(text, error) from error
    if exists:
        file = path if is_file else path / "config.json"
        return FoundConfig(text, read_json(file, f"the model folder {path}"), file.parent.resolve())
    if isinstance(name_or_path, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise no_such_folder(path)
    if (file_of_id := _hub_config(text)) is not None:
        return FoundConfig(text, read_json(file_of_id, text), file_of_id.parent)
    hint = f"{_LISTED}. A folder, a config.json or the id of a model in the Hugging Face cache is accepted as well."
    raise UnknownNameError("model", text, _names(), hint)


def _hub_config(model_id: str) -> Path | None:
    """config.json of a Hub id, from the local cache, else, for `owner/name`, from the Hub where it answers."""
    if not hub.is_id(model_id):
        return None
    if (cached := hub.cached_file(model_id, "config.json")) is not None or "/" not in model_id:
        return cached
    if reason := hub.why_not():
        raise ModelFetchError(
            f"There is no config.json of {model_id} (looked in {Path.cwd()} and in the Hugging Face cache "
            f"{hub.cache_folder()}), and {reason}. Name a local folder or a known model: {_LISTED}."
        )
    return hub.download(model_id, "config.json")


def _names() -> list[str]:
    return sorted({*model_configs.names(), *KNOWN})


def vocabulary(model: ModelRef | str | Path, *, root: Path | None = None) -> Vocabulary:
    """Size and special ids of a model's vocabulary: ids that no plain text gives are special.

    Those are the tokenizer's added tokens, begin, end and padding, and the rows that a padded embedding table has beyond
    the tokenizer. Works from a shipped config where there is no folder. Raises as `find_config` does, and UsageError
    where the config has no vocab_size.
    """
    if not isinstance(model, ModelRef):
        return _vocabulary(find_config(model, root=root))
    return _vocabulary(FoundConfig(model.name, model.config, model.folder))


def _vocabulary(found: FoundConfig) -> Vocabulary:
    config = text_config(found.config)
    size = positive_int(config, "vocab_size")
    special = _token_ids(config) | _token_ids(found.config)
    if found.folder is not None:
        special |= _folder_ids(found.folder, size)
    else:  # a shipped config, which tells them in a field of its own
        for low, high in found.config.get("special_token_ranges", []):
            special |= set(range(low, high + 1))
    special = {i for i in special if 0 <= i < size}
    if len(special) >= size:
        raise UsageError(
            f"All {size} tokens of {found.name} are special; there is nothing to draw random prompts from."
        )
    return Vocabulary(size, frozenset(special), *_coders(found.folder))


class _Coders(NamedTuple):
    decode: Callable[[Sequence[int]], str] | None = None
    encode: Callable[[str], Sequence[int]] | None = None


def _coders(folder: Path | None) -> _Coders:
    """Token ids to text and back by the folder's tokenizer, which is read when it is first asked."""
    file = None if folder is None else folder / "tokenizer.json"
    if file is None or not file.is_file():
        return _Coders()

    @lru_cache(maxsize=1)
    def tokenizer() -> Any:
        from tokenizers import Tokenizer

        try:
            made = Tokenizer.from_file(str(file))
        except Exception as error:  # the binding raises plain Exception
            raise UsageError(f"{file} cannot be read as a tokenizer: {error}.") from error
        made.no_truncation()
        made.no_padding()
        return made

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer().decode(list(ids))
        return text

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer().encode(text).ids
        return ids

    return _Coders(decode, encode)


def _token_ids(config: dict[str, Any]) -> set[int]:
    """Begin, end and padding: an id or a list of ids each."""
    ids: set[int] = set()
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = config.get(key)
        values = value if isinstance(value, list) else [value]
        ids |= {v for v in values if isinstance(v, int) and not isinstance(v, bool)}
    return ids


def _folder_ids(folder: Path, size: int) -> set[int]:
    where = f"the model folder {folder}"
    ids: set[int] = set()
    if (folder / "generation_config.json").is_file():
        ids |= _token_ids(read_json(folder / "generation_config.json", where))
    try:
        if (folder / "tokenizer.json").is_file():
            tokenizer = read_json(folder / "tokenizer.json", where)
            added = {int(token["id"]) for token in tokenizer.get("added_tokens") or []}
            words = tokenizer["model"]["vocab"]
            ordinary = set(words.values()) if isinstance(words, dict) else set(range(len(words)))
            return ids | added | (set(range(size)) - ordinary)
        if (folder / "tokenizer_config.json").is_file():
            decoder = read_json(folder / "tokenizer_config.json", where).get("added_tokens_decoder") or {}
            ids |= {int(i) for i in decoder}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFolderError(f"{folder / 'tokenizer.json'} is not a tokenizer as Hugging Face writes it.") from error
    return ids
