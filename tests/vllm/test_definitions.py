"""Our numbers by vLLM's definitions are those that vLLM's own client makes of the same stream at the same times."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import pytest

from results.definitions import vllm_numbers
from tests.results.recorded_stream import INPUT_TOKENS, events, messages
from tests.vllm.conftest import VARIABLE

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
# Its client reads a made-up connection whose clock stands at the recorded time of each event.
REPLAY = """
import asyncio, json, sys
from types import SimpleNamespace
from vllm.benchmarks import serve
from vllm.benchmarks.lib import endpoint_request_func as client

now = 0.0
client.time = SimpleNamespace(perf_counter=lambda: now)

class Answer:
    status, reason = 200, "OK"
    def __init__(self, events):
        self.events, self.content = events, self
    async def iter_any(self):
        global now
        for at, event in self.events:
            now = at
            yield event.encode()
    async def __aenter__(self):
        return self
    async def __aexit__(self, *error):
        return None

async def outputs(recorded):
    global now
    out = []
    for answer in recorded["answers"]:
        now = answer["start"]
        session = SimpleNamespace(post=lambda **ignored: Answer(answer["events"]))
        asked = client.RequestFuncInput(
            prompt="x", api_url="http://h/v1/chat/completions", prompt_len=recorded["input"], output_len=9, model="m"
        )
        out.append(await client.async_request_openai_chat_completions(asked, session))
    return out

recorded = json.load(sys.stdin)
made = asyncio.run(outputs(recorded))
assert all(o.success for o in made), [o.error for o in made]
found, _ = serve.calculate_metrics([None] * len(made), made, recorded["duration"], None, [99.0], {})
numbers = {"completed": found.completed, "total_output_tokens": found.total_output, "total_input_tokens": found.total_input,
           "request_throughput": found.request_throughput, "output_throughput": found.output_throughput,
           "total_token_throughput": found.total_token_throughput}
for name in ("ttft", "tpot", "itl", "e2el"):
    for point in ("mean", "median", "std"):
        numbers[f"{point}_{name}_ms"] = float(getattr(found, f"{point}_{name}_ms"))
    numbers[f"p99_{name}_ms"] = float(dict(getattr(found, f"percentiles_{name}_ms"))[99.0])
print("\\n" + json.dumps(numbers))
"""


def test_one_recorded_stream_gives_the_same_numbers_in_vllms_client() -> None:
    ours = vllm_numbers(*events())
    asked = {"answers": messages(), "input": INPUT_TOKENS, "duration": ours["duration"]}
    done = subprocess.run(
        [shlex.split(os.environ[VARIABLE])[0], "-c", REPLAY],
        input=json.dumps(asked),
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert len(theirs) == 22
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=1e-6), name
