"""All workloads as one tagged union: an experiment file names one by its `type`."""

from __future__ import annotations

from workloads.random import RandomWorkload

# A union of one so far; the second joins with `Annotated[A | B, Field(discriminator="type")]`. Each is a `WorkloadLike`.
Workload = RandomWorkload
