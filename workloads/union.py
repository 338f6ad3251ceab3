"""All workloads as one tagged union: an experiment file names one by its `type`."""

from __future__ import annotations

from workloads.random import RandomWorkload

# A union of one so far; pydantic's discriminator goes here with the second.
Workload = RandomWorkload
