"""`python -m harness.cli` is `dyno`."""

from harness.cli.app import main

main()
