"""What is said against a cell by what its device did."""

from __future__ import annotations

from results.device_facts import DeviceFacts
from results.reason_rules import CellFacts, Finding, Severity

# Readings with a slowdown of the hardware's own, of all readings.
THROTTLED_SHARE = 0.02
POWER_CAPPED_SHARE = 0.05
# SM clock, (largest - smallest) / mean.
CLOCK_SPREAD = 0.10


def _facts(f: CellFacts) -> DeviceFacts:
    return f.device or DeviceFacts()


def lost(f: CellFacts) -> Finding | None:
    why = _facts(f).lost
    return Finding(why) if why else None


def telemetry_lost(f: CellFacts) -> Finding | None:
    why = _facts(f).telemetry_lost
    return Finding(why) if why else None


def throttled(f: CellFacts) -> Finding | None:
    shares = {name: share for name, share in _facts(f).throttled.items() if share > THROTTLED_SHARE}
    if not shares:
        return None
    return Finding(", ".join(f"{name} in {share:.0%} of the readings" for name, share in shares.items()))


def power_capped(f: CellFacts) -> Finding | None:
    share = _facts(f).power_capped
    return Finding(f"in {share:.0%} of the readings") if share > POWER_CAPPED_SHARE else None


def clock_spread(f: CellFacts) -> Finding | None:
    facts = _facts(f)
    if facts.clock_spread is None or facts.clock_range is None or facts.clock_spread <= CLOCK_SPREAD:
        return None
    low, high = facts.clock_range
    evidence = f"SM clock between {low:.0f} and {high:.0f} MHz ({facts.clock_spread:.0%} of its mean)"
    # A power cap moves the clock by itself, and is told on its own.
    capped = facts.power_capped > POWER_CAPPED_SHARE
    return Finding(f"{evidence}; the power cap moves it" if capped else evidence, Severity.NOTE if capped else None)


def foreign_process(f: CellFacts) -> Finding | None:
    n = _facts(f).foreign
    return Finding(f"{n:.0f} processes that are not the server's were on the device") if n else None


def not_empty(f: CellFacts) -> Finding | None:
    before = _facts(f).baseline
    return Finding(f"in use before the server was launched: {before}") if before else None


def counter_restarted(f: CellFacts) -> Finding | None:
    n = _facts(f).counter_restarted
    return Finding(f"{n} times") if n else None


def instance(f: CellFacts) -> Finding | None:
    which = _facts(f).mig
    return Finding(which) if which else None


def doubtful_device(f: CellFacts) -> Finding | None:
    words = _facts(f).warnings
    return Finding("; ".join(words)) if words else None


def no_device(f: CellFacts) -> Finding | None:
    facts = _facts(f)
    if facts.sampled:
        return None
    return Finding(facts.why_none or "no device was sampled")
