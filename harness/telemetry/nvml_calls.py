"""Calls into NVML: one place where they are timed, where their errors get words, and where the library is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from harness.telemetry.settings import TelemetryUnavailableError
from results.clock import NS_PER_S, now_ns

T = TypeVar("T")

# What a code means for the reader that met it.
_NO_PERMISSION, _NOT_SUPPORTED, _NO_FUNCTION, _OTHER_STRUCT = 4, 3, 13, 25
_INVALID_ARGUMENT = 2
CANNOT = frozenset({_INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION, _NO_FUNCTION, _OTHER_STRUCT})
LOST = frozenset({15, 16})
# A container that lost its device says these; open handles may go on working, so they are tried again for a while.
SHAKY = frozenset({17, 999})
_MISMATCH_OF_STRUCTS = 1_000_001

_WORDS = {
    _INVALID_ARGUMENT: "not accepted",
    _NOT_SUPPORTED: "not supported by this device",
    _NO_PERMISSION: "no permission",
    _NO_FUNCTION: "the driver is too old for it",
    _OTHER_STRUCT: "the driver knows another form of it",
    _MISMATCH_OF_STRUCTS: "the driver knows another form of it",
    6: "nothing found",
    9: "the driver is not loaded",
    10: "timed out",
    12: "no libnvidia-ml.so.1 on this machine",
    15: "the GPU is lost",
    16: "the GPU needs a reset",
    17: "the operating system refuses the device",
    18: "driver/library version mismatch (the driver was updated under the running system: reboot)",
    21: "no data",
    28: "no GPU found",
    999: "unknown error",
}


class NvmlError(Exception):
    """A call that did not succeed: `code` is NVML's, `words` say it with the call's name."""

    def __init__(self, call: str, code: int) -> None:
        self.call, self.code = call, code
        self.words = f"{_WORDS.get(code, f'error {code}')} ({call})"
        super().__init__(self.words)


@dataclass(frozen=True, slots=True)
class Running:
    """A call that has not returned yet."""

    call: str
    since: int

    @property
    def seconds(self) -> float:
        return (now_ns() - self.since) / NS_PER_S


class Calls:
    """Makes the calls of one thread; any other thread may look at `running` to see whether one hangs."""

    def __init__(self, module: Any) -> None:
        self.nvml = module
        self.running: Running | None = None
        self._settled: dict[tuple[str, str], int] = {}

    def __call__(self, name: str, *args: Any) -> Any:
        """`nvml<name>(*args)`. Raises NvmlError."""
        call = f"nvml{name}"
        self.running = Running(call, now_ns())
        try:
            return getattr(self.nvml, call)(*args)
        except self.nvml.NVMLError as error:
            raise NvmlError(call, int(error.value)) from None
        except self.nvml.NVMLLibraryMismatchError:  # no NVMLError: an old driver that lacks the newest form
            raise NvmlError(call, _MISMATCH_OF_STRUCTS) from None
        except AttributeError:  # the binding itself is too old
            raise NvmlError(call, _NO_FUNCTION) from None
        finally:
            self.running = None

    def first(self, what: str, uuid: str, *readers: Callable[[], T]) -> T:
        """What the first reader gives that is not refused for good; raises the last refusal where all are.

        Which one that is of `what` is remembered for each device, so that the others are tried once only.
        """
        start = self._settled.get((what, uuid), 0)
        for index in range(start, len(readers)):
            try:
                value = readers[index]()
            except NvmlError as error:
                if not cannot(error) or index == len(readers) - 1:
                    raise
            else:
                self._settled[(what, uuid)] = index
                return value
        raise IndexError(f"{what} has no readers")


def cannot(error: NvmlError) -> bool:
    """Whether the device, the driver or our rights will never answer this call."""
    return error.code in CANNOT or error.code == _MISMATCH_OF_STRUCTS


def open_nvml() -> Calls:
    """Load and start NVML in this process. Raises TelemetryUnavailableError with the reason."""
    try:
        import pynvml
    except ImportError as error:
        raise TelemetryUnavailableError(
            f"the package nvidia-ml-py is not installed ({error}): pip install nvidia-ml-py"
        ) from None
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        raise TelemetryUnavailableError(
            "the module pynvml here is not NVIDIA's binding: pip uninstall pynvml, then pip install nvidia-ml-py"
        )
    calls = Calls(pynvml)
    try:
        calls("Init")
    except NvmlError as error:
        raise TelemetryUnavailableError(error.words) from None
    return calls
