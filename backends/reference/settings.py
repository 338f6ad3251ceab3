"""The command line of the server, and how automatic values are resolved."""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from backends.reference.config import DTYPES, EngineSettings, ModelConfig
from backends.reference.policies import ADMISSION, BATCHING
from backends.reference.switches import KV_CACHE, KV_LAYOUTS, STANDARD, Switches, check_switches
from results.errors import UsageError

KERNELS = ("auto", "off", "avx512", "avx2", "plain")
DEFAULT_KV_BYTES = 1 << 30
DEFAULT_BUDGET = 2048


@dataclass(frozen=True, slots=True)
class ServerArguments:
    """The command line as typed; None is automatic."""

    model: Path
    host: str
    port: int
    served_model_name: str | None
    dtype: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int | None
    block_size: int
    kv_cache_tokens: int | None
    kv_cache_bytes: int | None
    threads: int | None
    seed: int
    load_format: str
    truth_dir: Path | None
    profile_dir: Path | None
    profile_steps: int
    log_level: str
    admission: str
    batching: str
    chunked_prefill: bool | None
    kv_layout: str
    kv_cache: str
    prefix_caching: bool
    kernels: str
    device: str

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.served_model_name or self.model.resolve().name


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{message[:1].upper()}{message[1:]}; see --help.")


def parse_arguments(argv: list[str] | None, prog: str = "python -m backends.reference") -> ServerArguments:
    """Read the command line; UsageError names the flag that is wrong."""
    parser = _Parser(
        prog=prog,
        description="The reference engine as an OpenAI-compatible server.",
        epilog=f"example: {prog} ~/models/smollm2-135m --port 8000 --kv-cache-tokens 32768",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL_DIR", help="Hugging Face model folder")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=_port, default=8000, help="port to listen on; 0 takes a free one and prints it")
    add("--served-model-name", metavar="NAME", help="name in the API (default: the folder's)")
    add(
        "--dtype", choices=("auto", *DTYPES), default="auto", help="of weights, activations and KV; auto is the model's"
    )
    add("--max-model-len", type=_positive, help="longest prompt + output (default: the model's, or what the KV holds)")
    add("--max-num-seqs", type=_positive, default=256, help="requests in a step at most")
    add(
        "--max-num-batched-tokens",
        type=_positive,
        help=f"tokens in a step at most (default: {DEFAULT_BUDGET}, or max-model-len if more and prompts are not chunked)",
    )
    add("--block-size", type=_positive, default=16, help="tokens in a KV block")
    pool = parser.add_mutually_exclusive_group()
    pool.add_argument("--kv-cache-tokens", type=_positive, help="size of the KV pool in tokens")
    pool.add_argument("--kv-cache-bytes", type=_positive, help="size of the KV pool in bytes")
    add("--threads", type=_positive, help="compute threads (default: the cores this process may use)")
    add("--seed", type=int, default=0, help="for dummy weights and for requests without a seed")
    add("--load-format", choices=("auto", "dummy"), default="auto", help="dummy draws weights from N(0, 0.02)")
    add("--truth-dir", type=Path, metavar="DIR", help="write the truth log (token stamps, step composition) there")
    add(
        "--profile-dir",
        type=Path,
        metavar="DIR",
        help="profile with torch after POST /start_profile, written at the end",
    )
    add("--profile-steps", type=_positive, default=64, metavar="N", help="steps that are profiled at most")
    add(
        "--kernels",
        choices=KERNELS,
        default="auto",
        help="compiled kernels: the best that fits, none, or a form by name",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu", help="what computes; cuda is the first that PyTorch sees")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="of the log on stderr")
    _add_switches(parser)
    return ServerArguments(**vars(parser.parse_args(argv)))


def _add_switches(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("switches, each of which isolates one mechanism").add_argument
    on_off = argparse.BooleanOptionalAction
    add(
        "--admission",
        choices=tuple(ADMISSION),
        default=STANDARD.admission,
        help="memory a request is promised when it enters: none, or all that it could use",
    )
    add(
        "--batching",
        choices=tuple(BATCHING),
        default=STANDARD.batching,
        help="static runs a batch until all in it finished, with finished rows dropped or computed on",
    )
    add("--chunked-prefill", action=on_off, help="cut prompts to the step's budget (default: yes, with a KV cache)")
    add("--kv-layout", choices=KV_LAYOUTS, default=STANDARD.kv_layout, help="contiguous: max-model-len slots a request")
    add("--kv-cache", choices=KV_CACHE, default=STANDARD.kv_cache, help="off computes the whole sequence every step")
    add("--prefix-caching", action=on_off, default=STANDARD.prefix_caching, help="share the KV of equal beginnings")


def resolve(arguments: ServerArguments, config: ModelConfig) -> EngineSettings:
    """Every automatic value made definite. UsageError when the pool cannot hold what it must, with the numbers."""
    dtype = config.dtype if arguments.dtype == "auto" else arguments.dtype
    if dtype not in DTYPES:
        raise UsageError(f"The model's dtype {dtype} is not supported; choose --dtype {', '.join(DTYPES)}.")
    model_len = arguments.max_model_len or config.max_position
    if model_len > config.max_position:
        raise UsageError(f"--max-model-len {model_len} is more than the model's {config.max_position} positions.")
    switches = _switches(arguments)
    tokens, model_len = (0, model_len) if switches.kv_cache == "off" else _pool(arguments, config, dtype, model_len)
    return EngineSettings(
        dtype=dtype,
        max_model_len=model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=_budget(arguments, switches, model_len),
        block_size=arguments.block_size,
        kv_cache_tokens=tokens,
        threads=arguments.threads or len(os.sched_getaffinity(0)),
        seed=arguments.seed,
        load_format=arguments.load_format,
        switches=switches,
        kernels=arguments.kernels,
        device=arguments.device,
    )


def _switches(arguments: ServerArguments) -> Switches:
    chunked = arguments.chunked_prefill
    switches = Switches(
        arguments.admission,
        arguments.batching,
        arguments.kv_cache == "on" if chunked is None else chunked,
        arguments.kv_layout,
        arguments.kv_cache,
        arguments.prefix_caching,
    )
    check_switches(switches)
    return switches


def _budget(arguments: ServerArguments, switches: Switches, model_len: int) -> int:
    """Tokens a step; a prompt that is not cut must fit."""
    budget = arguments.max_num_batched_tokens
    if switches.chunked_prefill:
        return budget or DEFAULT_BUDGET
    if budget is not None and budget < model_len:
        raise UsageError(
            f"Without chunked prefill a whole prompt must fit a step, but --max-num-batched-tokens {budget} is less than "
            f"the {model_len} tokens of the longest request; raise it, or lower --max-model-len."
        )
    return budget or max(DEFAULT_BUDGET, model_len)


def _pool(arguments: ServerArguments, config: ModelConfig, dtype: str, model_len: int) -> tuple[int, int]:
    """Tokens in the KV pool, and the longest request, which an automatic pool may shorten."""
    per_token = config.kv_bytes_per_token(dtype)
    tokens = _pool_tokens(arguments, model_len, per_token)
    tokens = tokens // arguments.block_size * arguments.block_size
    if tokens < 1:
        raise UsageError(
            f"The KV pool holds less than one block of {arguments.block_size} tokens "
            f"({arguments.block_size * per_token} bytes at {per_token} bytes a token); raise --kv-cache-tokens."
        )
    if tokens < model_len:
        if arguments.max_model_len:
            raise UsageError(
                f"The KV pool holds {tokens} tokens, fewer than one request of --max-model-len {model_len}; "
                f"raise --kv-cache-tokens to at least {_round_up(model_len, arguments.block_size)} or lower "
                "--max-model-len."
            )
        model_len = tokens
    available = psutil.virtual_memory().available
    if tokens * per_token > available:
        raise UsageError(
            f"The KV pool of {tokens} tokens needs {tokens * per_token} bytes, but {available} bytes of memory are "
            "available; lower --kv-cache-tokens."
        )
    return tokens, model_len


def _pool_tokens(arguments: ServerArguments, model_len: int, per_token: int) -> int:
    """The asked size; else what all requests at their longest would need, but no more than 1 GiB."""
    if arguments.kv_cache_tokens:
        return arguments.kv_cache_tokens
    if arguments.kv_cache_bytes:
        return arguments.kv_cache_bytes // per_token
    longest = _round_up(model_len, arguments.block_size)
    return min(DEFAULT_KV_BYTES // per_token, arguments.max_num_seqs * longest)


def settings_as_json(
    settings: EngineSettings, config: ModelConfig, *, kernels: str, attention: str, linear: str, weight_bytes: int
) -> dict[str, Any]:
    """The answer of /v1/dyno/settings: what is used, not what was asked."""
    import torch

    plain = asdict(settings)
    return {
        **plain.pop("switches"),
        **plain,
        "kv_cache": settings.switches.kv_cache == "on",
        "kv_dtype": settings.dtype,
        "kv_bytes_per_token": config.kv_bytes_per_token(settings.dtype),
        "num_blocks": settings.num_blocks,
        "weight_bytes": weight_bytes,
        "architecture": config.architecture,
        "kernels": kernels,
        "attention": attention,
        "linear": linear,
        "scheduler": "fcfs",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"must be 0 to 65535, not {value}")
    return value
