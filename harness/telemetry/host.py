"""The host while an engine runs: CPU of the whole machine, CPU time and resident memory of the server's process tree."""

from __future__ import annotations

import psutil

from backends.start_watch import cpu_seconds
from harness.telemetry.sample import Sample
from results.clock import now_ns

# Walking the process tree costs milliseconds; workers of an engine come and go with its start, not with requests.
_TREE_REFRESH_NS = 2_000_000_000


class HostSampler:
    """Samples the machine and, where the server runs on it, the tree under `root_pid`; and of `api_pid`, the process that
    answers requests in its main thread, that thread."""

    source = "host"

    def __init__(self, root_pid: int | None, api_pid: int | None = None) -> None:
        self._root, self._api = root_pid, api_pid
        self._tree: list[psutil.Process] = []
        self._tree_read = 0
        # CPU time of processes that have left the tree stays counted: the sum must never fall.
        self._seen_cpu: dict[tuple[int, float], float] = {}
        self._last_cpu = psutil.cpu_times()
        self._last_t = now_ns()

    def sample(self) -> list[Sample]:
        """One reading of everything; never raises for processes that come and go."""
        return [*self._machine(), *self._server(), *self._api_thread()]

    def _api_thread(self) -> list[Sample]:
        """A counter of CPU seconds: all streams of most servers go through that one thread."""
        if self._api is None:
            return []
        used = cpu_seconds(self._api, self._api)
        why = None if used else "the process that answers requests is gone, or not ours to look at"
        return [Sample.gauge(self.source, "server_api_thread_s", used or None, why)]

    def _machine(self) -> list[Sample]:
        t, cpu = now_ns(), psutil.cpu_times()
        busy, total = _busy_and_total(cpu)
        busy0, total0 = _busy_and_total(self._last_cpu)
        t0, self._last_t, self._last_cpu = self._last_t, t, cpu
        share = (busy - busy0) / (total - total0) if total > total0 else None
        why = None if share is not None else "no CPU time passed between two readings"
        return [
            Sample(self.source, "host_cpu_fraction", t0, t, share, why),
            # With the server's and the client's own CPU time taken off, what is left is what somebody else used.
            Sample(self.source, "host_busy_s", t, t, busy),
            Sample(self.source, "host_cpus", t, t, float(psutil.cpu_count() or 1)),
        ]

    def _server(self) -> list[Sample]:
        names = ("server_cpu_s", "server_rss_bytes")
        if self._root is None:
            return [Sample.gauge(self.source, n, None, "the server was not started by this run") for n in names]
        t = now_ns()
        if t - self._tree_read > _TREE_REFRESH_NS:
            self._tree, self._tree_read = _tree(self._root), t
        rss, alive = 0, 0
        for process in self._tree:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    rss += process.memory_info().rss
                    self._seen_cpu[(process.pid, process.create_time())] = times.user + times.system
                    alive += 1
            except psutil.Error:
                continue
        if not alive:
            return [Sample.gauge(self.source, n, None, "no process of the server is alive") for n in names]
        return [
            Sample(self.source, names[0], t, t, sum(self._seen_cpu.values())),
            Sample(self.source, names[1], t, t, float(rss)),
        ]


def _busy_and_total(times: object) -> tuple[float, float]:
    fields: dict[str, float] = times._asdict()  # type: ignore[attr-defined]  # psutil's named tuple differs by system
    # guest time is already inside user time on Linux.
    total = sum(v for k, v in fields.items() if k not in ("guest", "guest_nice"))
    return total - fields.get("idle", 0.0) - fields.get("iowait", 0.0), total


def _tree(root_pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(root_pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
