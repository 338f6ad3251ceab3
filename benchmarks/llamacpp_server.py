"""llama.cpp's server on a model folder, as a peer to measure: `python benchmarks/llamacpp_server.py FOLDER --port 8081`.

Needs the packages xllamacpp and gguf. Serves the adapter's bfloat16 GGUF of the folder, made once, until interrupted, with a
place for each of 32 requests. Unlike the adapter's server it stays up while others are measured.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from backends.llamacpp_gguf import gguf_of
from backends.llamacpp_server import cache_folder

SLOTS, SLOT_TOKENS = 32, 1152


def main() -> None:
    """Serve until interrupted."""
    import xllamacpp

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8081)
    asked = parser.parse_args()
    path = gguf_of(asked.folder, "bfloat16", cache_folder())
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = str(path), [asked.folder.resolve().name]
    params.hostnames, params.port = ["127.0.0.1"], asked.port
    params.n_parallel, params.n_ctx, params.n_batch, params.n_ubatch = SLOTS, SLOTS * SLOT_TOKENS, 2048, 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    params.cache_prompt, params.endpoint_metrics = False, True
    server = xllamacpp.Server(params)
    print(f"ready on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
