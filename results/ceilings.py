"""Measured ceilings of the machine a run was made on, as its manifest keeps them: what memory and arithmetic gave at most.

A percentage of a ceiling says whose: `measured` (a copy, a read and a GEMM on random data right before the run) or
`datasheet`. Peaks of a datasheet are not reached by any kernel; a measured ceiling can be passed by a better one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from results.device_specs import spec_of_device

# Others that use more of the machine's CPU than this make a measurement worthless.
BUSY = 0.10
# A processor with bf16 instructions is far from this even on a bad day.
_PLAINLY = 1.2


@dataclass(frozen=True, slots=True)
class Rate:
    """The best of `n` tries and their median, a second."""

    best: float
    median: float
    n: int

    @property
    def spread(self) -> float:
        """How far the median lies under the best, 0 to 1: a busy machine shows here."""
        return 1.0 - self.median / self.best if self.best else 0.0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """One device's ceilings with so many threads (None on a GPU): bytes/s read, bytes/s copied (read + written), and FLOP/s
    of a square GEMM by dtype (`bf16`, `fp32`). `others_cpu`: the share of the CPU that other work used meanwhile."""

    device: str
    name: str
    threads: int | None
    read: Rate
    copy: Rate
    gemm: Mapping[str, Rate]
    memory_bytes: int | None = None
    others_cpu: float | None = None

    @property
    def flops(self) -> dict[str, float]:
        """FLOP/s by dtype, as `step_cost.peaks_for` reads them. fp8 where it was not measured but the device has it: the
        measured bf16 rate times the datasheet's ratio of the two, since 16 bit would be half of what the device can do. bf16 is
        that of fp32 where a CPU `widens`."""
        found = {name: rate.best for name, rate in self.gemm.items()}
        spec = spec_of_device(self.name)
        if "fp8" not in found and "bf16" in found and spec is not None and spec.fp8:
            found["fp8"] = found["bf16"] * spec.fp8 / spec.bf16
        if self.widens:
            found["bf16"] = found["fp32"]
        return found

    @property
    def widens(self) -> bool:
        """Whether this CPU has no quick bf16 product: engines then widen the numbers in registers, and compute in fp32."""
        if self.threads is None or not {"bf16", "fp32"} <= self.gemm.keys():
            return False
        return self.gemm["fp32"].best > _PLAINLY * self.gemm["bf16"].best

    @property
    def products(self) -> list[Rate]:
        """Those that anything is held against."""
        return [rate for name, rate in self.gemm.items() if not (name == "bf16" and self.widens)]

    @property
    def bytes_per_s(self) -> float:
        """Decode streams weights and KV: what reading gives, or a copy where it gives more."""
        return max(self.read.best, self.copy.best)

    def words_for(self, weights: str) -> str:
        """The denominator of a percentage for weights of that dtype, in words, with what disturbed its measurement."""
        derived = weights.startswith("fp8") and "fp8" not in self.gemm and "fp8" in self.flops
        fp8 = ", fp8 by the datasheet's ratio to bf16" if derived else ""
        # A board's memory and arithmetic do not wait for the host's CPU.
        others = 0.0 if self.threads is None else self.others_cpu or 0.0
        busy = f", while other work used {100 * others:.0f} % of the machine's CPU" if others > BUSY else ""
        own = weights == "float32" or (weights.startswith("fp8") and "fp8" in self.flops)
        wide = ", bf16 widened to fp32" if self.widens and not own else ""
        return f"{self.words}{fp8}{wide}{busy}"

    @property
    def words(self) -> str:
        """The denominator of a percentage, in words."""
        threads = "" if self.threads is None else f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"measured on {self.name}{threads}"


def ceilings_of(manifest: Mapping[str, Any], threads: int | None = None, device: str | None = None) -> Ceilings | None:
    """The ceilings in a manifest: the accelerator's where it has one, else the CPU's with the `threads` of the engine (else
    with the most), each the best of all that were measured with as many threads or fewer. An engine whose `device` is "cpu" is
    held against the CPU's alone. None where none were measured, or what is there cannot be read."""
    found = manifest.get("ceilings")
    if not isinstance(found, Mapping) or not isinstance(found.get("devices"), list):
        return None
    rows = (_ceilings(row, found.get("others_cpu")) for row in found["devices"])
    read = [row for row in rows if row is not None]
    accelerators, cpus = ([row for row in read if (row.threads is None) is is_one] for is_one in (True, False))
    if accelerators and device != "cpu":
        return accelerators[0]
    same = [row for row in cpus if row.threads == threads]
    chosen = same[0] if same else max(cpus, key=_threads, default=None)
    return None if chosen is None else _raised(chosen, [row for row in cpus if _threads(row) <= _threads(chosen)])


def _threads(row: Ceilings) -> int:
    return row.threads or 0


def _raised(chosen: Ceilings, fewer: Sequence[Ceilings]) -> Ceilings:
    """More threads give no less than fewer: where they were seen to, other work held them up."""

    def best(rates: Iterable[Rate]) -> Rate:
        return max(rates, key=lambda rate: rate.best)

    gemm = {name: best(row.gemm[name] for row in fewer if name in row.gemm) for name in chosen.gemm}
    return replace(chosen, read=best(r.read for r in fewer), copy=best(r.copy for r in fewer), gemm=gemm)


def _ceilings(row: Any, others: Any) -> Ceilings | None:
    try:
        return Ceilings(
            device=str(row["device"]),
            name=str(row["name"]),
            threads=row.get("threads"),
            read=_rate(row["read"]),
            copy=_rate(row["copy"]),
            gemm={str(name): _rate(rate) for name, rate in row["gemm"].items()},
            memory_bytes=row.get("memory_bytes"),
            others_cpu=others if isinstance(others, float | int) else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _rate(data: Mapping[str, Any]) -> Rate:
    rate = Rate(float(data["best"]), float(data["median"]), int(data["n"]))
    if not rate.best > 0 or not rate.median > 0:
        raise ValueError("a ceiling is above 0")
    return rate
