"""From what a user types for a model to a folder with config.json and weights."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.models import hub
from harness.models.cache import Say
from harness.models.errors import ModelFetchError, ModelFolderError
from harness.models.known import KNOWN, fetch, to_stderr
from results import model_configs
from results.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model that can be served. `name` is what the user called it, `config` its config.json."""

    name: str
    folder: Path
    config: dict[str, Any]


def resolve_model(name_or_path: str | Path, *, root: Path | None = None, say: Say = to_stderr) -> ModelRef:
    """A known name (fetched when missing), a local folder, or a Hub id (from the local cache, else downloaded).

    Known names win over folders of the same name; write `./name` for such a folder. Raises ModelFolderError,
    UnknownNameError, ModelFetchError.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, str) and text.lower() in KNOWN:
        return open_folder(text.lower(), fetch(text.lower(), root=root, say=say).folder)
    try:
        path = Path(text).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise not_a_path(text, error) from error
    if text and exists:
        return open_folder(text, path.resolve())
    if isinstance(name_or_path, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise no_such_folder(path)
    return _from_hub(text, say)


def not_a_path(text: str, error: Exception) -> ModelFolderError:
    """What no path can be: a name too long, the home of an unknown user, a NUL."""
    reason = getattr(error, "strerror", None) or str(error)
    return ModelFolderError(f"{text[:80]!r} is no model and cannot be a folder: {reason.rstrip('.')}.")


def no_such_folder(path: Path) -> ModelFolderError:
    """What looks like a path and is none."""
    return ModelFolderError(
        f"There is no model folder {path} (looked at {path.absolute()}). Give a folder with config.json and "
        f"*.safetensors, a Hub id, or one of: {', '.join(KNOWN)}."
    )


def open_folder(name: str, folder: Path) -> ModelRef:
    """Check that `folder` can be served: a config.json that is an object, and whole weight files; or a built TensorRT engine,
    whose config holds the model's own inside."""
    if not folder.is_dir():
        raise ModelFolderError(f"{folder} is a file; a model is a folder with config.json and *.safetensors.")
    config = read_json(folder / "config.json", f"the model folder {folder}")
    if isinstance(inner := config.get("pretrained_config"), dict) and any(folder.glob("rank*.engine")):
        return ModelRef(name, folder, inner)
    _check_weights(folder)
    return ModelRef(name, folder, config)


def read_json(path: Path, of: str) -> dict[str, Any]:
    """A JSON object from `path`, a part of `of`. Raises ModelFolderError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFolderError(f"There is no {path.name} in {of}, so it is not a Hugging Face model folder.") from error
    except OSError as error:
        raise ModelFolderError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{path} is not valid JSON ({error}). Was its download cut short?") from error
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path} holds a JSON {type(value).__name__}, not an object.")
    return value


def _check_weights(folder: Path) -> None:
    try:
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            shards = read_json(index, f"the model folder {folder}").get("weight_map")
            if not isinstance(shards, dict):
                raise ModelFolderError(f"{index} has no weight_map.")
            files = [folder / str(shard) for shard in sorted(set(map(str, shards.values())))]
            missing = [file.name for file in files if not file.is_file()]
            if missing:
                raise ModelFolderError(
                    f"{folder} lacks {len(missing)} of its {len(files)} weight files ({missing[0]} ...). "
                    "Download it again."
                )
        else:
            files = sorted(folder.glob("*.safetensors"))
        if not files:
            other = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf"))
            found = f" It has {other[0]}, which must be converted to safetensors first." if other else ""
            raise ModelFolderError(f"{folder} has no weights (*.safetensors).{found}")
        for file in files:
            _check_safetensors(file)
    except OSError as error:
        raise ModelFolderError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error


def _check_safetensors(path: Path) -> None:
    """The header's own account of the file's size against the file: a cut download or a Git LFS pointer shows here."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start == b"version ":
            raise ModelFolderError(f"{path} is a Git LFS pointer, not weights. Run `git lfs pull` in {path.parent}.")
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= size - 8:
            raise ModelFolderError(f"{path} ({size} bytes) is cut short or not a safetensors file. Download it again.")
        try:
            header = json.loads(file.read(length))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ModelFolderError(f"{path} has a broken safetensors header. Download it again.") from error
    if size != 8 + length + end:
        raise ModelFolderError(f"{path} has {size} bytes, its header says {8 + length + end}. Download it again.")


def _from_hub(model_id: str, say: Say) -> ModelRef:
    """A Hub id: the local Hugging Face cache first, then, unless that is forbidden, a download."""
    accepted = "A local folder or a Hub id is accepted as well."
    if not hub.is_id(model_id):
        raise UnknownNameError("model", model_id, KNOWN, accepted)
    if (snapshot := hub.cached_snapshot(model_id)) is not None:
        try:
            return open_folder(model_id, snapshot)
        except ModelFolderError:  # only some of its files: a download may complete it
            if hub.offline():
                raise
    searched = f"in {Path.cwd()} and in the Hugging Face cache {hub.cache_folder()}"
    if "/" not in model_id:
        shipped = "`dyno kv` knows its shape, but this needs its weights. " if model_id in model_configs.names() else ""
        raise UnknownNameError("model", model_id, KNOWN, f"{shipped}Looked {searched}. {accepted}")
    if reason := hub.why_not():
        raise ModelFetchError(
            f"{model_id} was not found (looked {searched}), and {reason}. Where there is a network: `hf download "
            f"{model_id}`. Or give a local folder, or one of: {', '.join(KNOWN)}."
        )
    say(f"Downloading {model_id} from the Hub ...")
    return open_folder(model_id, hub.download(model_id))
