"""What can go wrong between a model's name and its folder."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from results.errors import EnvironmentProblemError, UsageError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ModelFetchError(EnvironmentProblemError):
    """A model could not be fetched or built: no network, no disk space, a missing tool (exit 4)."""


class ModelFolderError(UsageError):
    """A folder that was named as a model cannot serve as one (exit 2)."""


def disk_problem(error: OSError, folder: Path, doing: str, needs_mib: int = 0) -> ModelFetchError:
    """The typed form of an OSError met while writing into the cache."""
    reason = error.strerror or str(error)
    if error.errno in DISK_FULL:
        step = f"Free some space under {folder}, or set XDG_CACHE_HOME to a folder on a larger disk, and run it again."
        free = f"; {shutil.disk_usage(folder).free // 2**20:,} MiB are free" if folder.exists() else ""
        needs = f", about {needs_mib:,} MiB are needed" if needs_mib else ""
        return ModelFetchError(f"No room while {doing} ({reason}{free}{needs}). {step}")
    step = "Check that the folder can be written, or set XDG_CACHE_HOME to one that can."
    return ModelFetchError(f"Failed while {doing}: {reason} ({error.filename or folder}). {step}")
