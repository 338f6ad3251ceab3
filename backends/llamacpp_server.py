"""`python -m backends.llamacpp_server FOLDER [--program "llama-server"] FLAGS`: llama.cpp's server on a Hugging Face folder.

Makes the folder's GGUF where there is none, then becomes the program, or, without one, serves through the package xllamacpp,
which holds the same server as a library. The flags are llama-server's own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends.llamacpp_gguf import TYPES, gguf_of
from results.errors import DynoError

_KV_TYPES = {"f32": "GGML_TYPE_F32", "f16": "GGML_TYPE_F16", "bf16": "GGML_TYPE_BF16", "q8_0": "GGML_TYPE_Q8_0"}


def cache_folder() -> Path:
    """Where written GGUFs are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dyno" / "gguf"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="llamacpp_server", allow_abbrev=False)
    made.add_argument("folder", type=Path)
    made.add_argument("--program")
    made.add_argument("--dtype", choices=TYPES, default=TYPES[0])
    return made


def served(words: Sequence[str]) -> argparse.Namespace:
    """The flags that the library is set by. Raises SystemExit for others."""
    made = argparse.ArgumentParser(prog="llamacpp_server", allow_abbrev=False)
    add = made.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080)
    add("--alias", default="")
    add("--ctx-size", type=int, default=0)
    add("--parallel", type=int, default=1)
    add("--batch-size", type=int, default=2048)
    add("--ubatch-size", type=int, default=512)
    add("--threads", type=int)
    add("--threads-batch", type=int)
    add("--cache-type-k", choices=tuple(_KV_TYPES), default="f16")
    add("--cache-type-v", choices=tuple(_KV_TYPES), default="f16")
    add("--cache-ram", type=int, default=8192)
    add("--seed", type=int)
    add("--metrics", action="store_true")
    add("--no-cache-prompt", action="store_true")
    add("--fit", choices=("on", "off"), default="on")
    return made.parse_args(words)


def main() -> int:
    own, flags = parser().parse_known_args()
    try:
        print(f"llama.cpp: looking for a GGUF of {own.folder} in {own.dtype}", flush=True)
        gguf = gguf_of(own.folder, own.dtype, cache_folder())
    except DynoError as error:
        print(f"error: {error}", flush=True)
        return 1
    except ImportError as error:
        print(f"error: making a GGUF needs the package gguf (pip install 'llm-dyno[models]'): {error}", flush=True)
        return 1
    print(f"llama.cpp: serving {gguf}", flush=True)
    if own.program:
        words = [*shlex.split(own.program), "--model", str(gguf), *flags]
        os.execvp(words[0], words)
    return _serve(gguf, served(flags))


def _serve(gguf: Path, flags: argparse.Namespace) -> int:
    try:
        import xllamacpp
    except ImportError as error:
        print(f"error: {error}. Install xllamacpp, or name a llama-server in DYNO_LLAMACPP_COMMAND.", flush=True)
        return 1
    parameters = _parameters(xllamacpp, gguf, flags)
    ends = {signal.SIGTERM, signal.SIGINT}
    # Held back in every thread and then waited for: a handler could run too late to end a wait that has begun.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = xllamacpp.Server(parameters)
    print(f"xllamacpp {getattr(xllamacpp, '__version__', '')} listening on {server.listening_address}", flush=True)
    signal.sigwait(ends)
    print("cleaning up before exit...", flush=True)
    del server
    return 0


def _parameters(xllamacpp: Any, gguf: Path, flags: argparse.Namespace) -> Any:
    made = xllamacpp.CommonParams()
    made.model.path = str(gguf)
    made.hostnames = [flags.host]
    made.port = flags.port
    made.model_alias = {flags.alias} if flags.alias else set()
    made.n_ctx, made.n_parallel = flags.ctx_size, flags.parallel
    made.n_batch, made.n_ubatch = flags.batch_size, flags.ubatch_size
    made.fit_params = flags.fit == "on"
    made.endpoint_metrics, made.endpoint_props, made.ui = flags.metrics, True, False
    made.cache_prompt, made.cache_ram_mib = not flags.no_cache_prompt, flags.cache_ram
    for name in ("cache_type_k", "cache_type_v"):
        setattr(made, name, getattr(xllamacpp.ggml_type, _KV_TYPES[getattr(flags, name)]))
    if flags.threads:
        made.cpuparams.n_threads = flags.threads
        made.cpuparams_batch.n_threads = flags.threads_batch or flags.threads
    if flags.seed is not None:
        made.sampling.seed = flags.seed
    return made


if __name__ == "__main__":
    sys.exit(main())
