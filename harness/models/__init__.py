"""Models: known ones made in the user's cache, local folders, Hub ids; and the vocabulary to draw prompts from."""

from harness.models.errors import ModelFetchError, ModelFolderError
from harness.models.known import KNOWN, Fetched, fetch
from harness.models.planning import FoundConfig, find_config, vocabulary
from harness.models.resolve import ModelRef, open_folder, resolve_model
from workloads.base import Vocabulary

__all__ = [
    "KNOWN",
    "Fetched",
    "FoundConfig",
    "ModelFetchError",
    "ModelFolderError",
    "ModelRef",
    "Vocabulary",
    "fetch",
    "find_config",
    "open_folder",
    "resolve_model",
    "vocabulary",
]
