"""The Hugging Face Hub: its local cache first, one quick probe, and only then its client, which retries for long."""

from __future__ import annotations

import os
from pathlib import Path

from harness.models.errors import ModelFetchError, ModelFolderError

PROBE_TIMEOUT_S = 4.0
_SNAPSHOT_PATTERNS = ["*.json", "*.safetensors", "tokenizer*", "*.jinja"]


def offline() -> bool:
    """Did the user forbid the Hub (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)?"""
    yes = {"1", "ON", "YES", "TRUE"}
    return any(os.environ.get(key, "").upper() in yes for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def why_not() -> str | None:
    """Why the Hub cannot be asked now, or None when it answers. Whatever it answers, it is there."""
    if offline():
        return "HF_HUB_OFFLINE is set, so the Hub was not asked"
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # exported lazily

    try:
        get_session().head(constants.ENDPOINT, timeout=PROBE_TIMEOUT_S)
    except Exception as error:  # httpx's or requests' errors, by the client's version
        return f"the Hub at {constants.ENDPOINT} did not answer within {PROBE_TIMEOUT_S:.0f} s ({words(error)})"
    return None


def cache_folder() -> str:
    """Where the Hub's client keeps what it downloaded."""
    from huggingface_hub import constants

    return str(constants.HF_HUB_CACHE)


def is_id(text: str) -> bool:
    """Could `text` be the id of a model on the Hub (`name` or `owner/name`)?"""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported lazily

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return bool(text)


def cached_snapshot(model_id: str) -> Path | None:
    """The model's folder in the local cache, whole or not, or None."""
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(model_id, local_files_only=True))
    except FileNotFoundError:  # LocalEntryNotFoundError
        return None


def cached_file(model_id: str, name: str) -> Path | None:
    """One file of a model in the local cache, or None."""
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(model_id, name)
    return Path(found) if isinstance(found, str) else None


def download(model_id: str, name: str | None = None) -> Path:
    """A model's folder, or one file of it, from the Hub into its client's cache. Ask `why_not` first.

    Raises ModelFolderError where the Hub does not give this model, ModelFetchError where the way there failed.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        if name is not None:
            return Path(huggingface_hub.hf_hub_download(model_id, name, etag_timeout=5))
        return Path(huggingface_hub.snapshot_download(model_id, allow_patterns=_SNAPSHOT_PATTERNS, etag_timeout=5))
    except HfHubHTTPError as error:
        raise ModelFolderError(
            f"The Hub does not give {model_id} ({words(error)}). Check the spelling; for a gated model, accept its terms "
            "on its page and run `hf auth login`."
        ) from error
    except Exception as error:  # the client raises its own, httpx's, OSError and ValueError alike
        raise ModelFetchError(f"Downloading {model_id} failed ({words(error)}). Run the command again.") from error


def words(error: Exception) -> str:
    """An error of the client in one short line."""
    return " ".join(str(error).split())[:200].rstrip(". ") or type(error).__name__
