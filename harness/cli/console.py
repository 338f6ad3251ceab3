"""The console commands print to."""

from __future__ import annotations

import os
import sys

from rich.console import Console


class CalmConsole(Console):
    """A console whose reader may go away (`dyno sweep | head`): the work goes on, in silence."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        stream = sys.stderr if self.stderr else sys.stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
