"""What sampling costs: CPU time of the sampling child by source and interval, and how long its calls take.

    python benchmarks/sampler_cost.py [--seconds 20] [--stand-in] [--json]

With a GPU the driver's own library is used, and beside the CPU time the time inside NVML calls is told (they take locks in the
driver that the engine wants, too). `--stand-in` plays a board from tests/nvml: then only the binding's and our own cost is real.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from harness.telemetry.choose import choose
from harness.telemetry.device_config import DeviceConfig
from harness.telemetry.process import SamplerProcess
from harness.telemetry.sampler import SamplerConfig
from harness.telemetry.settings import Telemetry, TelemetrySource

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for tests/nvml

INTERVALS = (0.1, 0.25, 0.5)
# Times each NVML call of a sampler: the median of so many rounds.
_CALLS = """
import json, statistics, time
from harness.telemetry.nvml import NvmlSampler
from harness.telemetry.nvml_calls import open_nvml
import sys

class Timed:
    def __init__(self, calls):
        self.calls, self.nvml, self.times = calls, calls.nvml, {}
    def __getattr__(self, name):
        return getattr(self.calls, name)
    def __call__(self, name, *args):
        began = time.perf_counter_ns()
        try:
            return self.calls(name, *args)
        finally:
            self.times.setdefault(name, []).append(time.perf_counter_ns() - began)

timed = Timed(open_nvml())
sampler = NvmlSampler(sys.argv[1:], calls=timed)
timed.times.clear()
for _ in range(20):
    time.sleep(0.21)
    for device in sampler._devices:
        device.due.clear()
    sampler.sample()
print(json.dumps({name: [len(t), statistics.median(t) / 1000, max(t) / 1000] for name, t in timed.times.items()}))
"""


def child_cost(config: SamplerConfig, folder: Path, seconds: float) -> dict[str, float]:
    """CPU share of one sampling child once it runs, and the bytes it writes a second."""
    child = SamplerProcess(config, folder / "sampler.log")
    try:
        child.settle()
        time.sleep(1.0)
        process, path = psutil.Process(child.pid), Path(config.out)
        cpu, size, began = process.cpu_times(), path.stat().st_size, time.monotonic()
        time.sleep(seconds)
        after, wall = process.cpu_times(), time.monotonic() - began
        used = after.user + after.system - cpu.user - cpu.system
        return {
            "cpu_share_of_one_core": used / wall,
            "cpu_share_of_machine": used / wall / (psutil.cpu_count() or 1),
            "bytes_per_s": (path.stat().st_size - size) / wall,
        }
    finally:
        child.stop()


def measure(seconds: float) -> dict[str, Any]:
    """Every interval with and without the device, and the calls one by one."""
    choice = choose(Telemetry(source=TelemetrySource.NVML))
    if not choice.devices:
        raise SystemExit(f"No GPU to sample ({choice.words}). --stand-in plays one.")
    rows = []
    for interval in INTERVALS:
        for name in ("host", "host and device"):
            device = DeviceConfig("nvml", interval, choice.devices) if name != "host" else None
            with tempfile.TemporaryDirectory() as folder:
                config = SamplerConfig(
                    out=f"{folder}/samples.jsonl", interval_s=interval, root_pid=os.getpid(), device=device
                )
                rows.append({"what": name, "interval_s": interval, **child_cost(config, Path(folder), seconds)})
    said = subprocess.run(
        [sys.executable, "-c", _CALLS, *(d.uuid for d in choice.devices)],
        capture_output=True, text=True, check=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    return {
        "devices": [d.name for d in choice.devices],
        "cores": psutil.cpu_count(),
        "machine": platform.machine(),
        "seconds": seconds,
        "rows": rows,
        "calls_us": json.loads(said.stdout),
    }


def show(found: dict[str, Any]) -> str:
    """The same as Markdown."""
    out = [
        f"Devices: {', '.join(found['devices'])}; {found['cores']} cores; {found['seconds']:g} s each.",
        "",
        "| sampled | every | CPU of one core | of the machine | written |",
        "|---|---:|---:|---:|---:|",
    ]
    out += [
        f"| {r['what']} | {r['interval_s'] * 1000:.0f} ms | {r['cpu_share_of_one_core']:.2%} | {r['cpu_share_of_machine']:.2%} "
        f"| {r['bytes_per_s'] / 1024:.1f} KiB/s |"
        for r in found["rows"]
    ]
    out += ["", "| NVML call | calls | median | longest |", "|---|---:|---:|---:|"]
    out += [
        f"| {name} | {n} | {median:.1f} us | {most:.1f} us |" for name, (n, median, most) in found["calls_us"].items()
    ]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.stand_in and "NVML_STUB_SCRIPT" not in os.environ:
        from tests.nvml.stub import Script, Stub

        if shutil.which("cc") is None:
            raise SystemExit("The stand-in needs a C compiler (cc).")
        folder = Path(tempfile.mkdtemp())
        stub = Stub(folder)
        environment = {**os.environ, **stub.environment(Script().board())}
        stub.close()
        # The library's folder must be in the environment when the interpreter starts.
        code = subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode
        shutil.rmtree(folder, ignore_errors=True)
        raise SystemExit(code)
    found = measure(asked.seconds)
    print(json.dumps(found, indent=2) if asked.json else show(found))


if __name__ == "__main__":
    main()
