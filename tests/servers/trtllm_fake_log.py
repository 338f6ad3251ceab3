"""The line that `print_iter_log` has the fake's loop write each time it comes round, as each version words it."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Mapping
from typing import Any

from backends.tensorrt_llm_reference import Era


class IterationLog:
    """`tick` where the loop comes round; `done` is what the round just behind held. What it waits for work counts to the next."""

    def __init__(self, era: Era) -> None:
        self._era, self._began, self._device = era, time.time(), "N/A"

    def tick(self, done: Mapping[str, Any]) -> None:
        os.write(1, (self._line(done, time.time()) + "\n").encode())
        self._began = time.time()

    def _line(self, done: Mapping[str, Any], now: float) -> str:
        # A container's clock shows UTC.
        at = datetime.datetime.fromtimestamp(now, datetime.UTC)
        took, batch = now - self._began, done["inflightBatchingStats"]
        states = {
            "num_ctx_requests": batch["numContextRequests"],
            "num_ctx_tokens": batch["numCtxTokens"],
            "num_generation_tokens": batch["numGenRequests"],
        }
        scheduled = batch["numContextRequests"] + batch["numGenRequests"]
        times = f"host_step_time = {took * 1000}ms, prev_device_step_time = {self._device}"
        if self._era is Era.V1_0:
            times = f"elapsed_time = {took}s"
        self._device = f"{took * 900}ms"
        head = f"{at:[%m/%d/%Y-%H:%M:%S]} [TRT-LLM] [I] iter = {done['iter']}, global_rank = 0, rank = 0, "
        stamp, currank = f"timestamp = {at:%Y-%m-%d %H:%M:%S}, ", f"currank_total_requests = {scheduled}/{scheduled}, "
        if self._era is Era.MAIN:
            return f"{head}num_scheduled_requests = {scheduled}, kv_cache_util = 0.100, {currank}{times}, {stamp}states = {states}"
        return f"{head}{currank}{times}, {stamp}num_scheduled_requests: {scheduled}, states = {states}"


class Silent(IterationLog):
    """No line was asked for."""

    def tick(self, done: Mapping[str, Any]) -> None:
        return
