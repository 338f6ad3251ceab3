"""All workloads as one tagged union: an experiment file names one by its `type`. Each is a `WorkloadLike`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from workloads.conversations import ConversationsWorkload
from workloads.prefix import PrefixWorkload
from workloads.random import RandomWorkload
from workloads.texts import JsonlWorkload, ShareGPTWorkload
from workloads.traces import TraceWorkload

Workload = Annotated[
    RandomWorkload | PrefixWorkload | ConversationsWorkload | ShareGPTWorkload | JsonlWorkload | TraceWorkload,
    Field(discriminator="type"),
]
