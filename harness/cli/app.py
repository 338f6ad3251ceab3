"""The `dyno` command's entry: it imports nothing itself, so that Ctrl-C is answered while everything else is imported."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run what the command line says; an interrupt is one line and exit code 130, whenever it comes."""
    # `kill` ends a sweep as Ctrl-C does: what was measured is kept, no server is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from harness.cli.commands import run

        run()
    except KeyboardInterrupt:
        print("dyno: interrupted.", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
