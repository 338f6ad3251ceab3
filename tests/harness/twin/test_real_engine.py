"""The twin's scheduler beside the real engine, a tiny model that computes: what each step holds is the same. No time is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.http_probe import ServerURL
from backends.reference.config import read_model_config
from backends.reference.switches import Switches
from harness.cell_plan import planned_requests
from harness.load.build import mode_of
from harness.load.plan import LoadPlan
from harness.loads import BatchLoad
from harness.studies.arm import Arrival
from harness.studies.lab import Lab
from harness.twin.delays import Delays, Line
from harness.twin.settings import scheduler_settings
from harness.twin.simulate import plan_of, simulate
from tests.harness.twin.support import LENGTHS, RESOLVED, TRUTH, VOCABULARY, cell_of
from workloads.lengths import UniformLength
from workloads.random import RandomWorkload

# All requests are there before the first step, as they are where an engine is called in its own process.
AT_ONCE = Delays(Line(), Line(), Line(), Line())
SMALL = {"kv_cache_tokens": 1024, "max_model_len": 512}


@pytest.mark.parametrize(
    ("asked", "switches", "preempts"),
    [
        ({}, {}, False),
        ({"max_num_seqs": 5}, {}, False),
        ({"max_num_batched_tokens": 32}, {}, False),
        ({"chunked_prefill": False}, {"chunked_prefill": False}, False),
        ({**SMALL, "block_size": 32}, {}, True),
        (SMALL, {}, True),
        ({**SMALL, "admission": "max-utilization"}, {}, True),
        ({**SMALL, "admission": "no-evict"}, {"admission": "reserve-oracle"}, False),
        ({**SMALL, "kv_layout": "contiguous"}, {"kv_layout": "contiguous"}, False),
        ({"max_num_seqs": 5, "batching": "static-drop"}, {"batching": "static-drop"}, False),
        ({"max_num_seqs": 5, "batching": "static-pad"}, {"batching": "static-pad"}, False),
    ],
    ids=str,
)
def test_the_twins_steps_hold_what_the_real_engines_do(
    tiny_dir: Path, asked: dict[str, Any], switches: dict[str, Any], preempts: bool
) -> None:
    cell = cell_of(BatchLoad(batch=24, waves=1), **asked)
    workload = RandomWorkload(input_len=LENGTHS, output_len=UniformLength(low=4, high=60))
    requests = list(planned_requests(cell.model_copy(update={"workload": workload}), VOCABULARY))
    plan = LoadPlan(ServerURL("http", "h", 0), mode_of(cell.load, len(requests)), plan_of(requests), "")
    twin = simulate(plan, requests, scheduler_settings("reference", RESOLVED, asked), TRUTH, AT_ONCE, 0)

    lab = Lab("random-tiny", tiny_dir, read_model_config(tiny_dir))
    pool = {name: asked.get(name, RESOLVED[name]) for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")}
    settings = lab.settings(
        asked.get("max_model_len", RESOLVED["max_model_len"]),
        kv_cache_tokens=asked.get("kv_cache_tokens", RESOLVED["kv_cache_tokens"]),
        switches=Switches(**switches),
        **pool,
    )
    real = lab.run("real", settings, [Arrival(0, list(r.prompt), r.output_len) for r in requests])

    assert len(twin.steps) == len(real.steps)
    assert twin.preemptions == real.preemptions
    assert (real.preemptions > 0) is preempts
    assert max(step[6] for step in twin.steps) == max(step.running for step in real.steps)
    # Prompt tokens, decodes, prompts, running, waiting, preempted, context, blocks: each step of them.
    assert [tuple(step[3:11]) for step in twin.steps] == [tuple(step[3:11]) for step in real.steps]
