"""A harness of its own, to be killed: starts the fake engine in a container, prints its port, and waits."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from backends.base import InContainer, LaunchPlan
from backends.container import sweep, wrap
from backends.container_process import ContainerProcess
from backends.container_spec import ContainerSpec


def main() -> None:
    folder, port, *words = sys.argv[1:]
    spec = ContainerSpec(image="engine:1.0", gpus="none")
    sweep(spec.runtime)
    plan = LaunchPlan((*words, "--port", port), {})
    made, box = wrap(plan, spec, InContainer(tuple(words)), [], Path(folder), int(port))
    process = ContainerProcess.start(made, Path(folder) / "server.log", 2.0, port=int(port))
    process.box = box
    process.wait_ready(f"http://127.0.0.1:{port}", timeout_s=120)
    print(json.dumps({"keeper": process._link.pid, "first": process.pid}), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
