"""Models: known ones made in the user's cache, local folders, Hub ids; and the vocabulary to draw prompts from."""

from harness.models.errors import ModelFetchError, ModelFolderError
from harness.models.known import KNOWN, Fetched, fetch
from harness.models.resolve import ModelRef, open_folder, resolve_model

__all__ = ["KNOWN", "Fetched", "ModelFetchError", "ModelFolderError", "ModelRef", "fetch", "open_folder",
           "resolve_model"]  # fmt: skip
