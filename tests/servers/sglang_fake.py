"""A fake `sglang.launch_server`: strict about its flags, 503 while it starts, its own metrics and `/server_info`.

python tests/servers/sglang_fake.py --model-path M --port P ...
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.servers.openai_fake import FakeServer
from tests.servers.openai_fake_steps import Received, json_answer
from tests.servers.openai_fake_tokens import TokenSchedule

_STARTING_POLLS = 2


class SGLangServer(TokenSchedule):
    """Its pages."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(model=options.served_model_name, max_model_len=options.context_length, interval_s=0.001)
        self.options, self.polls = options, 0

    def page(self, request: Received) -> list[Any] | None:
        if request.path == "/health":
            self.polls += 1
            return json_answer("", 503 if self.polls <= _STARTING_POLLS else 200)
        if request.path == "/server_info":
            told = {
                **vars(self.options),
                "version": "0.5.23",
                "max_total_num_tokens": self.options.max_total_tokens or 65536,
            }
            return json_answer(told)
        if request.path == "/metrics":
            rows = {
                "sglang:num_running_reqs": self.running,
                "sglang:num_queue_reqs": 0,
                "sglang:token_usage": 0.0,
                "sglang:prompt_tokens_total": self.prompt_tokens,
                "sglang:generation_tokens_total": self.generated,
            }
            return json_answer("".join(f"{name} {value}\n" for name, value in rows.items()), content_type="text/plain")
        return super().page(request)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch_server.py", allow_abbrev=False)
    add = parser.add_argument
    add("--model-path", required=True)
    add("--served-model-name", required=True)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--dtype", default="auto")
    add("--kv-cache-dtype", default="auto")
    add("--context-length", type=int, default=2048)
    add("--max-running-requests", type=int, default=256)
    add("--max-total-tokens", type=int)
    add("--mem-fraction-static", type=float, default=0.8)
    add("--page-size", type=int, default=1)
    add("--schedule-policy", default="fcfs", choices=["lpm", "random", "fcfs", "dfs-weight", "priority"])
    add("--tp-size", type=int, default=1)
    add("--quantization")
    add("--random-seed", type=int, default=0)
    add("--load-format", default="auto")
    add("--chunked-prefill-size", type=int, default=8192)
    add("--max-prefill-tokens", type=int, default=16384)
    add("--sampling-defaults", choices=["openai", "model"], default="model")
    add("--log-level-http")
    add("--speculative-algorithm", choices=["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"])
    add("--speculative-draft-model-path")
    add("--speculative-num-steps", type=int)
    add("--speculative-eagle-topk", type=int)
    add("--speculative-num-draft-tokens", type=int)
    add("--attention-backend", default="flashinfer")
    add("--stream-interval", type=int, default=1)
    for switch in ("--enable-metrics", "--disable-radix-cache", "--disable-cuda-graph", "--disable-overlap-schedule"):
        add(switch, action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with FakeServer(SGLangServer(options), host=options.host, port=options.port) as server:
        print(
            f"max_total_num_tokens={options.max_total_tokens or 65536}, chunked_prefill_size={options.chunked_prefill_size}, "
            f"max_prefill_tokens={options.max_prefill_tokens}, max_running_requests={options.max_running_requests}, "
            f"context_len={options.context_length}, available_gpu_mem=1.00 GB",
            flush=True,
        )
        print("The server is fired up and ready to roll!", flush=True)
        signal.sigwait(ends)
        server.errors.clear()


if __name__ == "__main__":
    main()
