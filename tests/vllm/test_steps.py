"""What vLLM logs of its steps is what the client got: token by token, and step by step where arrivals alone are asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from harness.conformance import Bench
from harness.experiment import Timeouts
from harness.load.build import PlannedBody, build_plan
from harness.load.process import LoadProcess
from harness.loads import ConcurrencyLoad
from harness.step_log import StepLog
from results.events import read_chunks, read_requests
from results.records import SessionRecord
from results.step_log import read_logged
from results.tokens import token_chunks
from results.xray import XRay, xray
from results.xray_check import against_log

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
STREAMS, REQUESTS, PROMPT, OUTPUT = 4, 12, 40, 24


def test_every_token_of_a_load_is_in_a_step_of_the_log(bench: Bench, tmp_path: Path) -> None:
    bodies = [
        PlannedBody(
            id=f"s{n}",
            body=orjson.dumps(bench.body(bench.prompt(PROMPT), OUTPUT)),
            input_tokens=PROMPT,
            output_tokens=OUTPUT,
        )
        for n in range(REQUESTS)
    ]
    load = ConcurrencyLoad(concurrency=STREAMS, requests=REQUESTS)
    plan = build_plan(
        load, bodies, url=bench.server.url, folder=tmp_path / "load", timeouts=Timeouts(), ignore_eos=True
    )
    record = SessionRecord(id="s", engine="vllm", backend="vllm", block=0, model="smol", url=bench.server.url)
    log = StepLog(bench.backend, record, bench.server.log)
    log.begin()
    with LoadProcess() as worker:
        worker.start(plan, tmp_path)
        result = worker.wait(300)
    assert log.keep(tmp_path) == []
    assert result.outcomes["ok"] == REQUESTS
    requests, chunks = read_requests(tmp_path), read_chunks(tmp_path)
    steps = read_logged(tmp_path, requests)
    assert steps is not None
    assert int(steps.prefill_tokens.sum()) == REQUESTS * PROMPT
    # A prompt's step gives its first token.
    assert int(steps.decodes.sum()) == int(requests.output_tokens.sum()) - REQUESTS
    assert int(steps.decodes.max()) <= STREAMS
    assert (np.diff(steps.step) == 1).all()
    assert (steps.start <= steps.end).all()
    assert requests.sent.min() <= steps.start[0]
    assert steps.end[-1] <= result.ended
    seen = xray(requests, token_chunks(requests, chunks))
    # On a busy machine arrivals may be too scattered to tell.
    if isinstance(seen, XRay):
        found = against_log(seen, steps)
        assert abs(found["steps_error"]) < 0.2
