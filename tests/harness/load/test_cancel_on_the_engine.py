"""The client ends an answer after so many tokens, and the reference engine stops working on it: all in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from backends.reference.chat import load_chat_template
from backends.reference.config import read_model_config
from backends.reference.engine import Engine
from backends.reference.owner import OwnerThread
from backends.reference.request import Scheduled
from backends.reference.runner import StepResult
from backends.reference.server import Server
from backends.reference.service import Service
from backends.reference.tokenizer import load_tokenizer
from backends.reference.truth import NoTruth
from results.schema import ENDED_BY_PLAN
from tests.backends.reference.hash_model import HashRunner, hash_engine
from tests.harness.load.support import body, run_load
from tests.waiting import LONG_S, wait_until

WANTED = 4


class HeldRunner(HashRunner):
    """After the tokens that are wanted it is within the next step until `told` says that the client's leaving is known."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.steps, self.told = 0, threading.Event()

    def run(self, items: Sequence[Scheduled]) -> StepResult:
        self.steps += 1
        if self.steps > WANTED:
            assert self.told.wait(LONG_S)
        made = super().run(items)
        return StepResult([token % 256 for token in made.tokens])


@contextmanager
def serving(engine: Engine, folder: Path) -> Iterator[tuple[str, Service]]:
    """The engine's own HTTP server in a thread; its URL, and the service behind it."""
    ready, ended = threading.Event(), asyncio.Event()
    made: dict[str, Any] = {}

    async def serve() -> None:
        service = Service(engine, OwnerThread(), NoTruth())
        config = read_model_config(folder)
        facts = {"max_model_len": 4096, "kv_bytes_per_token": 1, "weight_bytes": 1}
        server = Server(service, load_tokenizer(folder), load_chat_template(folder), config, "m", facts)
        runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.update(loop=asyncio.get_running_loop(), service=service, url=f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await ended.wait()
        service.stop(10)
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(LONG_S)
    try:
        yield made["url"], made["service"]
    finally:
        made["loop"].call_soon_threadsafe(ended.set)
        thread.join(LONG_S)


def test_the_engine_stops_after_the_step_under_way_and_has_its_blocks_back(tmp_path: Path, tiny_dir: Path) -> None:
    engine = hash_engine()
    runner = HeldRunner(engine.scheduler.blocks.block_size)
    engine.runner = runner
    with serving(engine, tiny_dir) as (url, service):
        ran = run_load(url, tmp_path, cancel_after=WANTED, bodies=[body(2000, prompt=[1, 2, 3])], tokens=2000)
        wait_until(lambda: service.finished["abort"] == 1, "the service knows that the client is gone")
        runner.told.set()
        wait_until(lambda: not engine.scheduler.has_work, "the engine is idle")
        (row,) = ran.requests
        assert (row["outcome"], row["finish_reason"], row["output_tokens"]) == ("ok", ENDED_BY_PLAN, WANTED)
        assert runner.steps <= WANTED + 1
        assert engine.scheduler.blocks.num_allocated == 0
