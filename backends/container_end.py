"""Removes a session's container: run by the keeper once the `run` command has ended, however it ended.

A script of its own, standard library only, that imports nothing of the package: `container_end.py RUNTIME LABEL CIDFILE SECONDS`. What
it prints goes to the server's log: how the container ended, whether the kernel ended it for its memory, what could not be done.
"""

from __future__ import annotations

import subprocess
import sys
import time

TRY_S = 10.0
STATE = "exit {{.State.ExitCode}}, out of memory {{.State.OOMKilled}}, error {{json .State.Error}}"


def run(*words: str) -> tuple[bool, str]:
    """Whether it went well, and what it said."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRY_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, (done.stdout if done.returncode == 0 else done.stderr).strip()


def ours(runtime: str, label: str, cidfile: str) -> tuple[bool, list[str]]:
    """The containers of the session: by label, and the one whose id was written down. False where nobody can tell."""
    found: set[str] = set()
    try:
        with open(cidfile, encoding="utf-8") as file:
            found.add(file.read().strip())
    except OSError:
        pass
    told, listed = run(runtime, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}")
    return told, sorted((found | set(listed.split() if told else ())) - {""})


def remove(runtime: str, container: str) -> str | None:
    """None when it is gone, else what stands against it. How it ended is said beforehand."""
    told, state = run(runtime, "inspect", "--format", STATE, container)
    if told:
        print(f"dyno: the container {container[:12]} ended: {state}", flush=True)
        if "out of memory true" in state:
            print("dyno: the container was ended by the kernel: out of memory (OOMKilled)", flush=True)
    elif "no such" in state.lower():
        return None
    gone, why = run(runtime, "rm", "--force", "--volumes", container)
    return None if gone or "no such" in why.lower() else why


def main() -> int:
    runtime, label, cidfile, seconds = sys.argv[1:]
    deadline = time.monotonic() + float(seconds)
    while True:
        told, containers = ours(runtime, label, cidfile)
        trouble = [why for container in containers if (why := remove(runtime, container)) is not None]
        if told and not trouble:
            return 0
        if time.monotonic() > deadline:
            print(
                f"dyno: the container could not be removed: {(trouble or ['the runtime does not answer'])[0]}",
                flush=True,
            )
            return 1
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
