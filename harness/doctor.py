"""What this machine has of what Dyno can use, and the command that brings what is missing. Quick, and never raises.

Each row is a small function in the table `ROWS`; a row that fails for a reason of its own says so as its answer.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import resource
import select
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import psutil

from backends.base import backend_names, get_backend
from harness.brings import brings, command_fault
from harness.load import stamps
from harness.load.compiled import PARTS, SWITCH, compiled, not_loaded
from harness.manifest import host_facts
from harness.models import cache
from harness.models.known import KNOWN
from results.errors import DynoError
from results.report_format import size

_COMMAND_S = 1.5
# Below these a machine can do the small things only; said, not refused.
_MIN_MEMORY = 4 << 30
_MIN_DISK = 2 << 30
# A descriptor a stream, and some for files and pipes.
_MIN_FILES = 4096
_DRIVER = Path("/proc/driver/nvidia/version")
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True, slots=True)
class Row:
    """`found` None: neither good nor bad. `needed`: the reference engine does not run without it."""

    group: str
    name: str
    found: bool | None
    words: str
    brings: str | None = None
    needed: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Row]:
    """Every row of the table."""
    rows: list[Row] = []
    for group, name, look in ROWS:
        try:
            rows += look()
        except Exception as error:  # a doctor that falls ill tells nothing of the other organs
            rows.append(Row(group, name, None, f"could not be told: {type(error).__name__}: {error}"))
    return rows


def healthy(rows: list[Row]) -> bool:
    """Whether everything that the reference engine needs is there."""
    return all(row.found is not False for row in rows if row.needed)


def _python() -> list[Row]:
    good = sys.version_info >= (3, 11)
    words = f"{platform.python_version()} ({sys.executable})"
    return [Row("python", "Python", good, words, None if good else "install Python 3.11 or newer", needed=True)]


def _packages() -> list[Row]:
    """The packages that this distribution asks for, with the extras told apart."""
    from packaging.requirements import Requirement

    try:
        required = [Requirement(text) for text in distribution("llm-dyno").requires or ()]
    except PackageNotFoundError:
        return [Row("python", "packages", False, "llm-dyno itself is not installed", "pip install -e .", needed=True)]
    missing, wrong, there = [], [], []
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            missing.append(requirement.name)
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} {found} ({requirement.specifier} is needed)")
        there.append(f"{requirement.name} {found}")
    good = not missing and not wrong
    words = f"llm-dyno {version('llm-dyno')}: {', '.join(there)}"
    if not good:
        words = "; ".join(([f"missing: {', '.join(missing)}"] if missing else []) + wrong)
    return [Row("python", "packages", good, words, None if good else "make venv (or: pip install -e .)", needed=True)]


def _extras() -> list[Row]:
    rows = []
    for module, package, use, extra in (
        ("gguf", "gguf", "builds smollm2-135m from its package", "models"),
        ("transformers", "transformers", "the oracle of the tests", "dev"),
        ("pynvml", "nvidia-ml-py", "reads NVIDIA devices", None),
        ("ray", "ray", "load from several machines", "ray"),
    ):
        there = importlib.util.find_spec(module) is not None
        words = f"{_version(package)}, {use}" if there else f"not installed ({use})"
        how = f"pip install {package}" if extra is None else f"pip install -e '.[{extra}]'"
        wanted = module != "ray" and (module != "pynvml" or _DRIVER.exists())
        found = there if there or wanted else None
        rows.append(Row("python", package, found, words, how if found is False else None))
    return rows


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown version"


def _engines() -> list[Row]:
    """Each registered backend that launches a server: is its program there, and which version?"""
    rows = []
    for name in backend_names():
        try:
            backend = get_backend(name)
            if not backend.capabilities.launches:
                continue
            command = backend.command(None)
        except DynoError as error:
            rows.append(Row("engines", name, False, str(error).split(". ")[0], brings(name)))
            continue
        needed = name == "reference"
        if (fault := command_fault(name, command)) is not None:
            rows.append(Row("engines", name, False, *fault, needed=needed))
            continue
        told = _installed_in(command, name)
        words = shlex.join(command) + (f" ({told})" if told else "")
        rows.append(Row("engines", name, True, words, needed=needed))
    return rows


def _installed_in(command: tuple[str, ...], backend: str) -> str:
    """The engine's version from the names of what lies beside its Python: nothing is started for it."""
    program = shutil.which(command[0])
    if program is None or backend == "reference":
        return f"torch {_version('torch')}" if backend == "reference" else ""
    stem = backend.replace("_", "[_-]")
    for folder in Path(program).parent.parent.glob("lib/python3*/site-packages"):
        for info in folder.glob("*.dist-info"):
            if re.match(rf"{stem}([_-]\w+)?-\d", info.name):
                return info.name.removesuffix(".dist-info").replace("-", " ", 1)
    return ""


def _docker() -> list[Row]:
    program = shutil.which("docker")
    if program is None:
        return [Row("engines", "docker", False, "not installed", "install Docker, to run engines from images")]
    where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not where.startswith("unix://"):
        return [Row("engines", "docker", True, f"{program}, its server is at {where}")]
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(_COMMAND_S)
            server.connect(where.removeprefix("unix://"))
    except OSError as error:
        words = f"{program}, but no server answers at {where} ({error.strerror or error})"
        return [Row("engines", "docker", False, words, "start the Docker service, or set DOCKER_HOST")]
    return [Row("engines", "docker", True, f"{program}, its server answers")]


def _run(*words: str) -> str:
    """The first line a program prints, "" where it fails or takes too long."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def _device() -> list[Row]:
    program = shutil.which("nvidia-smi")
    if not _DRIVER.exists() and program is None:
        words = "no NVIDIA driver: everything runs on the CPU"
        return [Row("device", "GPU", None, words)]
    said = program and _run(program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    if said:
        return [Row("device", "GPU", True, said)]
    if program is None:
        return [
            Row(
                "device", "GPU", False, "the driver is loaded, there is no nvidia-smi", "install the driver's utilities"
            )
        ]
    return [Row("device", "GPU", False, "nvidia-smi does not answer", "run nvidia-smi and mend what it says")]


def _host() -> list[Row]:
    facts = host_facts()
    flags = ", ".join(facts["cpu_flags"]) or "no wide vector or matrix instructions"
    memory = psutil.virtual_memory()
    words = f"{size(memory.available)} of {size(memory.total)} free"
    little = memory.available < _MIN_MEMORY
    return [
        Row("device", "CPU", True, f"{facts['cpu']}, {facts['cores_usable']} of {facts['cores_logical']} cores usable"),
        Row("device", "CPU features", bool(facts["cpu_flags"]), flags),
        Row("device", "memory", not little, words, "end other programs" if little else None),
    ]


def _files() -> list[Row]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= _MIN_FILES
    more = f"ulimit -n {_MIN_FILES}" if hard == resource.RLIM_INFINITY or hard >= _MIN_FILES else "raise the hard limit"
    words = f"{soft} (a stream takes one)"
    return [Row("system", "open files", enough, words, None if enough else more)]


def _stamps() -> list[Row]:
    """Does a byte over loopback come with the kernel's stamp?"""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=1) as sender,
        listener.accept()[0] as receiver,
    ):
        looked = time.monotonic_ns()
        asked = stamps.enable(receiver)
        sender.sendall(b".")
        select.select([receiver], [], [], 1)
        _, control, _, _ = receiver.recvmsg(1, stamps.CONTROL_SIZE)
        _, lag = stamps.ReceiveClock().arrival(control, time.monotonic_ns(), looked)
    there = asked and lag is not None
    words = (
        "arrivals are stamped by the kernel" if there else "arrivals are stamped at the read, later by the client's lag"
    )
    return [Row("system", "receive stamps", there, words, None if there else "run on Linux (SO_TIMESTAMPNS)")]


def _load_client() -> list[Row]:
    """Are the load client's compiled parts there, and can they be loaded?"""
    if os.environ.get(SWITCH) == "python":
        return [Row("system", "load client", None, f"in Python alone, as {SWITCH} asks")]
    missing = [part for part in PARTS if compiled(part) is None]
    if not missing:
        return [Row("system", "load client", True, "its compiled parts are here")]
    told = [f"{part} cannot be loaded ({not_loaded[part]})" if part in not_loaded else f"no {part}" for part in missing]
    words = f"compiled parts: {', '.join(told)}; Python does their work, for about twice the CPU a token"
    return [Row("system", "load client", False, words, "pip install -e . (with a C compiler)")]


def _models() -> list[Row]:
    rows = []
    for name, known in KNOWN.items():
        folder = cache.cache_root() / name
        fault = cache.fault(folder)
        manifest = cache.read_manifest(folder) if fault is None else None
        words = f"{size(manifest.size)} in {folder}" if manifest else known.words
        if fault is not None and folder.exists():
            words = f"damaged: {fault}"
        rows.append(Row("models", name, fault is None, words, None if fault is None else f"dyno models fetch {name}"))
    return rows


def _browser() -> list[Row]:
    found = next((p for name in _CHROMIUM if (p := shutil.which(name))), None)
    how = None if found else "apt-get install chromium (or any Chrome)"
    return [
        Row("reports", "Chromium", bool(found), found or "not found: needed only to test reports in a browser", how)
    ]


def _disk() -> list[Row]:
    rows = []
    for name, folder in (("model cache", cache.cache_root()), ("runs", Path("runs").absolute())):
        where = next(p for p in (folder, *folder.parents) if p.exists())
        free = shutil.disk_usage(where).free
        writable = os.access(where, os.W_OK)
        good = writable and free > _MIN_DISK
        words = f"{size(free)} free for {folder}" if writable else f"{where} cannot be written"
        how = (
            None
            if good
            else "make room"
            if writable
            else "set XDG_CACHE_HOME"
            if name == "model cache"
            else "use --out"
        )
        rows.append(Row("disk", name, good, words, how))
    return rows


ROWS: tuple[tuple[str, str, Callable[[], list[Row]]], ...] = (
    ("python", "Python", _python),
    ("python", "packages", _packages),
    ("python", "extras", _extras),
    ("engines", "engines", _engines),
    ("engines", "docker", _docker),
    ("device", "GPU", _device),
    ("device", "host", _host),
    ("system", "open files", _files),
    ("system", "receive stamps", _stamps),
    ("system", "load client", _load_client),
    ("models", "models", _models),
    ("reports", "Chromium", _browser),
    ("disk", "disk", _disk),
)
