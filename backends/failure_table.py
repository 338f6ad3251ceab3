"""The failure classes, a closed table: what went wrong, in words, by which line of a log, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


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
STALLED = FailureClass(
    "stalled",
    "it went silent: nothing in its log, nothing computed",
    "See what its last line began: a download without a connection, a lock that another process holds, a device that does "
    "not answer. A start that is known to be silent for so long needs a longer `stall_s` (timeouts of the experiment).",
)
GONE = FailureClass(
    "gone",
    "nobody listens at its address any more",
    "It was ended, or it crashed: its own log tells. Start it again and repeat the command; committed cells stay.",
)
# Named only where the whole log holds no cause of its own: these lines tell that the engine is gone, seldom why.
ENGINE_DIED = FailureClass(
    "engine_died",
    "a process of the engine died and left its server behind",
    "Read the lines before that one in its log: the first error is the cause.",
    (
        r"\bEngine ?Core\b.*(fatal error|encountered an issue|died)",
        r"EngineDeadError",
        r"(worker|engine|scheduler|executor)\b.*\b(died|exited|terminated) unexpectedly",
        r"Fatal Python error",
        r"terminate called after throwing",
        r"CUDA error: (an illegal memory access|device-side assert|unspecified launch failure)",
        r"uncorrectable (NVLink|ECC) error",
    ),
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
        "container_image_missing",
        "the container image is not on this machine",
        "Fetch it beforehand: `docker pull IMAGE`.",
    ),
    FailureClass(
        "container_name_taken",
        "a container of that name is there already",
        "Remove it, or leave the name out.",
    ),
    FailureClass(
        "container_runtime_gone",
        "the container runtime does not answer",
        "Start its daemon, and check that this user may use it (`docker info`).",
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
    STALLED,
    UNKNOWN,
)
