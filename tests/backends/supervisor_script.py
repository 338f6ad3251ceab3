"""A harness in small, to be killed by tests: starts a server, tells its pids, and waits for a line or a signal.

`python -m tests.backends.supervisor_script PORT LOG GRACE_S READY_S COMMAND...`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from backends.base import LaunchPlan
from backends.http_probe import get
from backends.process import ServerProcess


def main() -> None:
    port, log = int(sys.argv[1]), Path(sys.argv[2])
    url = f"http://127.0.0.1:{port}"
    with ServerProcess.start(LaunchPlan(tuple(sys.argv[5:])), log, float(sys.argv[3]), port=port) as server:
        server.wait_ready(url, "/health", float(sys.argv[4]))
        pids = server.pids()
        try:
            print(json.dumps({"pids": pids}), flush=True)
            sys.stdin.readline()
        except KeyboardInterrupt:
            # What a harness does first on Ctrl-C is its own choice: the server must still be there.
            print(json.dumps({"interrupted": True, "health": get(url, "/health").status}), flush=True)
        print(json.dumps({"exit": server.stop()}), flush=True)


if __name__ == "__main__":
    main()
