"""The conformance suite: each promise of the adapter contract as a small check against a real server.

`dyno backends check NAME` runs it; so can a test of a third party's adapter, see `run_suite` and docs/adapters.md.
"""

from harness.conformance.base import Bench, Check, CheckFailedError, NotClaimedError, Outcome, Result
from harness.conformance.suite import CHECKS, check_backend, run_check, run_suite

__all__ = [
    "CHECKS",
    "Bench",
    "Check",
    "CheckFailedError",
    "NotClaimedError",
    "Outcome",
    "Result",
    "check_backend",
    "run_check",
    "run_suite",
]
