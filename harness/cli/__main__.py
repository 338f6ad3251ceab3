"""`python -m harness.cli` is `dyno`."""

from harness.cli import main

main()
