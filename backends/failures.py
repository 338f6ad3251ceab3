"""Why a server failed: a closed table of classes, found by reading its whole log, and the errors that carry one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from backends.base import FailurePattern
from results.errors import EngineError


class Stage(StrEnum):
    """How far a server had come when it failed."""

    SPAWN = "spawn"
    START = "start"
    LISTEN = "listen"
    READY = "ready"


STAGE_WORDS = {
    Stage.SPAWN: "while its command was being executed",
    Stage.START: "while it was starting, before it listened on its port",
    Stage.LISTEN: "after it listened on its port, before it was ready",
    Stage.READY: "after it was ready, while it was in use",
}


@dataclass(frozen=True, slots=True)
class FailureClass:
    """A row of the table. `patterns` are regular expressions, matched line by line, case ignored."""

    id: str
    words: str
    advice: str
    patterns: tuple[str, ...] = ()


UNKNOWN = FailureClass(
    "unknown",
    "no known cause in its log",
    "Read the log; if the cause is plain there, the adapter lacks a pattern for it.",
)
TIMEOUT = FailureClass(
    "timeout",
    "not ready in time",
    "Allow more time for start-up (a first start downloads and compiles), or look in the log for the step that hangs.",
)
KILLED = FailureClass(
    "killed",
    "killed from outside (SIGKILL)",
    "Most often the kernel's or container's out-of-memory killer: give it more host memory, a smaller model or KV cache. "
    "`dmesg` or the container's events tell.",
)
CRASH = FailureClass(
    "crash",
    "crashed in native code",
    "A defect or a mismatch of compiled parts (engine, torch, driver). Try the engine's eager mode or other versions.",
)

# Ids that begin with `out_of_memory` mean: a larger cell would fail as well.
FAILURES: tuple[FailureClass, ...] = (
    FailureClass(
        "out_of_memory_kv_cache",
        "no memory left for the KV cache",
        "Lower max_model_len or max_num_seqs, ask for fewer KV tokens, raise memory_fraction, or end what else uses the "
        "device.",
        (
            r"No available memory for the cache blocks",
            r"KV cache is needed, which is larger than the available KV cache memory",
            r"Not enough memory\. Please try to increase --mem-fraction-static",
            r"failed to allocate buffer for kv cache",
            r"could not be created: KV cache",
        ),
    ),
    FailureClass(
        "out_of_memory_device",
        "the device's memory is not enough",
        "Lower max_num_seqs, max_num_batched_tokens or memory_fraction, take a smaller dtype, or end what else uses the "
        "device (a former server may still hold memory).",
        (
            r"CUDA out of memory",
            r"CUDA error: out of memory",
            r"CUDA runtime error in .*: out of memory",
            r"torch\.(cuda\.)?OutOfMemoryError",
            r"Free memory on device .* is less than desired GPU memory utilization",
            r"insufficient GPU memory",
            r"HIP out of memory",
        ),
    ),
    FailureClass(
        "out_of_memory_host",
        "the host's memory is not enough",
        "Take a smaller model, dtype or KV cache, or end other processes.",
        (
            r"\bMemoryError\b",
            r"std::bad_alloc",
            r"Cannot allocate memory",
            r"DefaultCPUAllocator: .*(can't|not enough) ",
            r"\[Errno 12\]",
            r"\bOut of memory: Killed process",
        ),
    ),
    FailureClass(
        "disk_full",
        "no space left on a disk",
        "Free space where the model cache, the compile cache and the run folder are (`df -h`); /dev/shm counts too.",
        (r"No space left on device", r"\[Errno 28\]"),
    ),
    FailureClass(
        "port_in_use",
        "its port is taken",
        "Choose another port, or leave the port out so that a free one is taken.",
        (
            r"Address already in use",
            r"\[Errno 98\]",
            r"port \d+ .*\bin use\b",
            r"Port is already in use",
            r"couldn't bind HTTP server socket",
            r"Failed to bind socket to",
        ),
    ),
    FailureClass(
        "model_not_found",
        "the model is not there or cannot be read",
        "Check the model's name or folder; offline, it must be in the cache already (`dyno models`).",
        (
            r"Repository Not Found",
            r"RepositoryNotFoundError|LocalEntryNotFoundError|GatedRepoError",
            r"is not a local folder and is not a valid model identifier",
            r"no such model folder",
            r"does not appear to have a file named",
            r"No such file or directory: .*(config\.json|\.safetensors|tokenizer)",
            r"failed to load model,",
            r"Cannot find any model weights",
            r"model .*(not found|does not exist)",
        ),
    ),
    FailureClass(
        "unsupported_model",
        "this engine does not support the model's architecture",
        "Take another model, or a version of the engine that knows this architecture.",
        (
            r"Unknown architecture for",
            r"Model architectures .* (are not|is not) supported",
            r"unsupported (model )?architecture",
            r"architecture .* (is not|are not) (yet )?supported",
        ),
    ),
    FailureClass(
        "bad_argument",
        "it does not accept its command line or settings",
        "The flag may belong to another version of the engine: compare with its --help, and mind the raw `options`.",
        (
            r"unrecognized arguments?:",
            r"error: argument ",
            r"error: the following arguments are required",
            r"invalid choice:",
            r"No such option",
            r"Extra inputs are not permitted",
            r"is greater than the derived max_model_len",
            r"is not a known backend",
            r"Bfloat16 is only supported on GPUs",
            r"Pre SM 80 GPUs do not support bfloat16",
            r"validation errors? for ",
        ),
    ),
    FailureClass(
        "no_device",
        "there is no usable GPU or driver",
        "Check `nvidia-smi`, CUDA_VISIBLE_DEVICES and that the driver is new enough; or use an engine built for the CPU.",
        (
            r"No GPU devices? found",
            r"Failed to infer device type",
            r"no CUDA-capable device is detected",
            r"No CUDA GPUs are available",
            r"Found no NVIDIA driver",
            r"CUDA driver version is insufficient",
            r"Torch not compiled with CUDA enabled",
        ),
    ),
    FailureClass(
        "missing_dependency",
        "a program, package or library is missing",
        "Install it into the environment of the command that starts the engine, or name another command "
        "(`command` of the engine, or DYNO_<BACKEND>_COMMAND).",
        (
            r"\bModuleNotFoundError\b",
            r"\bImportError\b",
            r"No module named ",
            r"PackageNotFoundError",
            r"error while loading shared libraries",
            r"cannot open shared object file",
            r"command not found",
            r"undefined symbol",
        ),
    ),
    FailureClass(
        "permission",
        "it is not allowed to do something",
        "Check the rights of the file or port named in the log (ports under 1024 need privileges).",
        (r"Permission denied", r"\bPermissionError\b", r"Operation not permitted", r"\[Errno 13\]"),
    ),
    KILLED,
    CRASH,
    TIMEOUT,
    UNKNOWN,
)
_BY_ID = {row.id: row for row in FAILURES}
_CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
# Lines an engine does not mean as an error: they name optional packages, unreadable caches and the like.
_HARMLESS = re.compile(r"\b(DEBUG|INFO|WARN|WARNING)\b|\w*Warning:|falling back", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong (`failure` is a row's id), the line that says so ("" when only the exit tells), and what to do."""

    failure: str
    words: str
    advice: str
    evidence: str = ""

    @property
    def is_out_of_memory(self) -> bool:
        """Whether asking for more would fail as well."""
        return self.failure.startswith("out_of_memory")


def classify(log: str, exit_code: int | None, patterns: Sequence[FailurePattern] = ()) -> Failure:
    """Name a failure. The first cause in the whole log wins over what follows from it; then the exit code tells.

    `exit_code` is negative for a signal and None for a server that did not exit (it was not ready in time). `patterns`
    are the adapter's own, tried before the common ones on each line.
    """
    rows = [(re.compile(p.pattern, re.IGNORECASE), p.failure, p.advice) for p in patterns]
    rows += [(re.compile(p, re.IGNORECASE), row.id, row.advice) for row in FAILURES for p in row.patterns]
    anything = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _, _ in rows), re.IGNORECASE)
    for line in log.splitlines():
        if anything.search(line) and not _HARMLESS.search(line):
            for pattern, name, advice in rows:
                if pattern.search(line):
                    row = _BY_ID.get(name)
                    return Failure(name, row.words if row else name, advice, line.strip()[:300])
    row = _by_exit(exit_code)
    return Failure(row.id, row.words, row.advice)


def _by_exit(exit_code: int | None) -> FailureClass:
    if exit_code is None:
        return TIMEOUT
    # A shell in between reports a child's signal as 128 + its number.
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number == signal.SIGKILL:
        return KILLED
    return CRASH if number in _CRASH_SIGNALS else UNKNOWN


def exit_words(exit_code: int | None) -> str:
    """`exit code 3`, `signal 11 (SIGSEGV)`, or that it still ran."""
    if exit_code is None:
        return "no exit: it still ran"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"signal {-exit_code}"


class ServerError(EngineError):
    """A server that failed: how far it had come, how it ended, why, and where to read on."""

    def __init__(
        self,
        what: str,
        *,
        stage: Stage,
        server_exit: int | None,
        failure: Failure,
        log_path: Path,
        tail: Iterable[str] = (),
    ) -> None:
        evidence = f" ({failure.evidence!r})" if failure.evidence else ""
        message = f"{what} Likely cause: {failure.words}{evidence}. {failure.advice}"
        lines = "\n".join(f"  | {line}" for line in tail)
        message += f"\nLast lines of its log:\n{lines}" if lines else " It wrote nothing to its log."
        super().__init__(f"{message}\nWhole log: {log_path}")
        self.stage, self.server_exit, self.failure, self.log_path = stage, server_exit, failure, log_path

    def to_record(self) -> dict[str, str]:
        """For `SessionRecord.failure`."""
        return {
            "class": self.failure.failure,
            "words": self.failure.words,
            "evidence": self.failure.evidence,
            "advice": self.failure.advice,
            "stage": self.stage.value,
            "exit": exit_words(self.server_exit),
        }


class StartupError(ServerError):
    """A server that did not become ready."""


class ServerDiedError(ServerError):
    """A server that ended while it was in use."""


class LeftBehindError(EngineError):
    """A server could not be ended completely: processes, its port or device memory are still held."""
