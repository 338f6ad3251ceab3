"""What `dyno roofline` holds a model against: a device by its datasheet, or the machine here by what is measured of it now."""

from __future__ import annotations

from dataclasses import dataclass

from harness.ceilings import measure_ceilings
from results.ceilings import BUSY, ceilings_of
from results.device_specs import device_spec
from results.errors import EnvironmentProblemError, UnknownNameError
from results.roofline import Machine
from results.step_cost import Format, peaks_for

# A median try further below the best one than this was disturbed.
_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class Target:
    """`basis` says of what the ceilings are. Of measured ones: `spread` is how far the median try lies below the best (the widest of
    reading and GEMMs), `others_cpu` the share of the CPU that other work used meanwhile, and `warning` what that means."""

    name: str
    words: str
    basis: str
    machine: Machine
    formula_bytes_per_s: float | None = None
    median_bytes_per_s: float | None = None
    spread: float | None = None
    others_cpu: float | None = None
    warning: str = ""


def target_of(device: str, form: Format, fraction: float) -> Target:
    """`this` is measured, which takes some seconds. Raises UnknownNameError, EnvironmentProblemError."""
    return _this(form, fraction) if device.strip().lower() == "this" else _listed(device, form, fraction)


def _listed(device: str, form: Format, fraction: float) -> Target:
    try:
        spec = device_spec(device)
    except UnknownNameError as error:
        raise UnknownNameError(error.kind, error.name, error.known, "`this` measures the machine here.") from None
    peaks = peaks_for(form, spec.flops, spec.bytes_per_s)
    formula = None if spec.formula_bandwidth is None else spec.formula_bandwidth * 1e9
    return Target(spec.name, spec.words, "datasheet", Machine(peaks, spec.memory_bytes, fraction), formula)


def _this(form: Format, fraction: float) -> Target:
    measured = measure_ceilings()
    found = ceilings_of({"ceilings": measured})
    if found is None or found.memory_bytes is None:
        raise EnvironmentProblemError("The ceilings of this machine could not be read; name a device with --device.")
    spread, others = max(rate.spread for rate in (found.read, *found.products)), measured["others_cpu"]
    return Target(
        "this",
        found.name,
        found.words_for(form.weights),
        Machine(peaks_for(form, found.flops, found.bytes_per_s, form.weights), found.memory_bytes, fraction),
        median_bytes_per_s=max(found.read.median, found.copy.median),
        spread=spread,
        others_cpu=others,
        warning=_warning(spread, others),
    )


def _warning(spread: float, others: float) -> str:
    signs = [f"other work used {100 * others:.0f} % of the CPU"] if others > BUSY else []
    signs += [f"the median of the tries lies {100 * spread:.0f} % below the best"] if spread > _SPREAD else []
    if not signs:
        return ""
    return (
        f"The machine was busy while it was measured ({' and '.join(signs)}): these ceilings are too low. Measure again when it is "
        "quiet."
    )
