"""Who else uses the CPU while something is measured: where others do, what a clock says is theirs as well."""

from __future__ import annotations


class CPUWatch:
    """The share of the machine's CPU that other processes (or other machines on the same hardware) use, from now on. Children of
    this process that have ended are its own."""

    def __init__(self) -> None:
        self._before = self._read()

    def others(self) -> float:
        busy, everything, own = (now - then for now, then in zip(self._read(), self._before, strict=True))
        return max(0.0, busy - own) / everything if everything > 0 else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float]:
        import psutil

        machine, process = psutil.cpu_times(), psutil.Process().cpu_times()
        # Guests are counted in user already.
        everything = sum(machine) - getattr(machine, "guest", 0.0) - getattr(machine, "guest_nice", 0.0)
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        own = process.user + process.system + process.children_user + process.children_system
        return everything - idle, everything, own
