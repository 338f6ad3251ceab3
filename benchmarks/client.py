"""How wrong is the load client, and how wrong are others? All against a server of known schedule, on this machine, now.

    python benchmarks/client.py [--repeats 3] [--peer vllm=VENV/bin/python] [--peer aiperf=...] [--no-peers]

Each level is a closed loop of so many streams with so many ms between tokens, TTFT 100 ms, 100 tokens a request. The truth
is the server's own send stamps (harness/truth), and an error is the difference of percentiles. Our CPU time is the load
worker's from the first send to committed Parquet; a peer's is that of all its processes, start-up and report included.

Peers are told by the Python they are installed in: vllm (`vllm bench serve`), aiperf, guidellm, inference-perf (from Python
3.12 on); vLLM's is found by itself where `make vllm-venv` put it. The result goes to benchmarks/recorded/client-DATE.{md,json}.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.calibration.level import Level, LevelResult, run_level
from harness.calibration.store import machine
from harness.certify.card import Card
from harness.certify.certify import certify
from harness.models.cache import cache_root
from harness.truth.process import TruthServer
from harness.truth.schedule import Schedule
from results.errors import DynoError

TTFT_MS, TOKENS, PROMPT = 100.0, 100, 128
# Streams, ms between tokens, rounds: as many requests as a p99 needs (368), and a few seconds.
LEVELS = ((64, 10.0, 6), (256, 10.0, 3), (1024, 20.0, 2))
BARS = {"TTFT p50": 1.0, "TTFT p99": 5.0, "us/token": 15.0}
PEER_TIMEOUT_S = 240.0

# The `vllm` command of a build that is not called vllm fails before it reads its arguments; the client behind it works.
_VLLM_BENCH = (
    "import argparse; from vllm.benchmarks import serve; "
    "parser = argparse.ArgumentParser(); serve.add_cli_args(parser); serve.main(parser.parse_args())"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One run of one tool at one level: errors in ms, tokens it counted less the true number, CPU us a token."""

    tool: str
    streams: int
    gap_ms: float
    true_p50: float | None = None
    true_p99: float | None = None
    error_p50: float | None = None
    error_p99: float | None = None
    tokens_off: int | None = None
    us_per_token: float | None = None
    arrival_p99: float | None = None
    late_p99: float | None = None
    failed: str | None = None


def vllm(python: str, streams: int, requests: int, folder: Path) -> list[str]:
    words = [python, "-c", _VLLM_BENCH, "--backend", "openai", "--base-url", "{url}", "--model", "{model}"]
    words += ["--tokenizer", "{tokenizer}", "--dataset-name", "random", "--random-input-len", str(PROMPT)]
    words += ["--random-output-len", str(TOKENS), "--num-prompts", str(requests), "--max-concurrency", str(streams)]
    words += [
        "--ignore-eos",
        "--ready-check-timeout-sec",
        "0",
        "--disable-tqdm",
        "--save-result",
        "--result-dir",
        "{out}",
    ]
    return [*words, "--percentile-metrics", "ttft,tpot", "--metric-percentiles", "50,99"]


def aiperf(python: str, streams: int, requests: int, folder: Path) -> list[str]:
    words = [_beside(python, "aiperf"), "profile", "--model", "{model}", "--tokenizer", "{tokenizer}", "--url", "{url}"]
    words += ["--endpoint-type", "completions", "--streaming", "--concurrency", str(streams)]
    words += ["--request-count", str(requests), "--synthetic-input-tokens-mean", str(PROMPT)]
    words += ["--output-tokens-mean", str(TOKENS), "--output-tokens-stddev", "0", "--extra-inputs", "ignore_eos:true"]
    return [*words, "--ui", "none", "--artifact-dir", "{out}"]


def guidellm(python: str, streams: int, requests: int, folder: Path) -> list[str]:
    words = [_beside(python, "guidellm"), "run", "--backend", "kind=openai_http,target={url},model={model}"]
    words += ["--profile", f"kind=concurrent,streams={streams}", "--constraint", f"kind=max_requests,count={requests}"]
    words += ["--tokenizer", "kind=huggingface_auto,model={tokenizer}"]
    words += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS}"]
    return [*words, "--output", "kind=json,path={out}/result.json", "--disable-console"]


def inference_perf(python: str, streams: int, requests: int, folder: Path) -> list[str]:
    def fixed(n: int) -> dict[str, Any]:
        return {"type": "fixed", "min": n, "max": n, "mean": n, "std_dev": 0, "total_count": requests}

    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {"type": "random", "input_distribution": fixed(PROMPT), "output_distribution": fixed(TOKENS)},
        "load": {"type": "concurrent", "stages": [{"num_requests": requests, "concurrency_level": streams}]},
        "server": {"type": "vllm", "model_name": "dyno-truth", "ignore_eos": True},
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "per_request": False}},
    }
    path = folder / "inference-perf.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    words = [_beside(python, "inference-perf"), "--config_file", str(path), "--server.base_url", "{url}"]
    return [*words, "--tokenizer.pretrained_model_name_or_path", "{tokenizer}", "--storage.local_storage.path", "{out}"]


# The tokenizer is a folder of this machine: nothing is to be asked of a hub while others are timed.
_OFFLINE = {"HF_HUB_OFFLINE": "1"}
# How a peer is called: its Python, streams, requests and a folder for its files; and the environment it needs.
PEERS: dict[str, tuple[Callable[[str, int, int, Path], list[str]], dict[str, str]]] = {
    "vllm": (vllm, {**_OFFLINE, "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"}),
    "aiperf": (aiperf, {}),  # with the hub off it takes a folder for a name
    "guidellm": (guidellm, _OFFLINE),
    "inference-perf": (inference_perf, _OFFLINE),
}


def _beside(python: str, program: str) -> str:
    return str(Path(python).parent / program)


def ours(result: LevelResult) -> Row:
    """A run of our own client as a row."""
    error = result.error
    p50, p99 = error.ttft_error_ms
    failed = f"{error.lost} requests lost" if error.lost else None
    return Row(
        tool="dyno",
        streams=result.level.streams,
        gap_ms=result.level.gap_ms,
        true_p50=error.true_ttft_ms.p50,
        true_p99=error.true_ttft_ms.p99,
        error_p50=p50,
        error_p99=p99,
        tokens_off=error.tokens_wrong,
        us_per_token=result.cpu_us_per_token,
        arrival_p99=error.arrival_ms.p99,
        late_p99=error.late_ms.p99,
        failed=failed,
    )


def peer(name: str, card: Card, streams: int, gap_ms: float) -> Row:
    """A peer's error card as a row."""
    p50, p99, tokens = card.row("TTFT p50"), card.row("TTFT p99"), card.row("output tokens")
    return Row(
        tool=f"{name} {card.version or ''}".strip(),
        streams=streams,
        gap_ms=gap_ms,
        true_p50=p50.true,
        true_p99=p99.true,
        error_p50=p50.error,
        error_p99=p99.error,
        tokens_off=None if tokens.error is None else round(tokens.error),
        us_per_token=card.cpu_us_per_token,
        late_p99=card.late_ms_p99,
    )


def measure(
    levels: Sequence[tuple[int, float, int]], repeats: int, peers: dict[str, str], say: Callable[[Row], None]
) -> list[Row]:
    """All rows: our client in turn over the levels, so that no level has all the quiet time; then each peer once a level."""
    rows = []

    def keep(row: Row) -> None:
        rows.append(row)
        say(row)

    with TruthServer() as server:
        for repeat in range(repeats):
            for streams, gap_ms, rounds in levels:
                keep(ours(run_level(server, Level(streams, gap_ms, TOKENS, rounds, TTFT_MS), seed=repeat)))
    for name, python in peers.items():
        command, env = PEERS[name]
        for streams, gap_ms, rounds in levels:
            with tempfile.TemporaryDirectory(prefix="dyno-client-") as folder:
                try:
                    words = command(python, streams, streams * rounds, Path(folder))
                    schedule = Schedule(ttft_ms=TTFT_MS, gap_ms=gap_ms)
                    card = certify(words, Path(folder), schedule, timeout_s=PEER_TIMEOUT_S, env=env)
                    keep(peer(name, card, streams, gap_ms))
                except DynoError as error:
                    print(error, file=sys.stderr, flush=True)  # its log is gone with the folder
                    keep(Row(tool=name, streams=streams, gap_ms=gap_ms, failed=str(error).splitlines()[0][:200]))
    return rows


def markdown(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """The tables: our repeats as median (lowest to highest), peers as they were."""
    lines = [
        "# What load clients make of a known schedule",
        "",
        f"{about['cpu']}, {about['cpus']} cores, {about['system']}, Python {about['python']}; {about['date']}; "
        f"load average at the start {about['load_average']:.2f}.",
        "",
        f"`{about['command']}`",
        "",
        f"TTFT {TTFT_MS:g} ms, {TOKENS} tokens a request, closed loops, client and server on the same cores. True figures are the "
        f"server's own send stamps; errors are differences of percentiles in ms. Dyno: median of {about['repeats']} runs (lowest to "
        "highest), CPU of the load worker from first send to committed Parquet. Others: one run, CPU of all their processes with "
        "start-up and report.",
        "",
        "| streams | ms between tokens | tool | requests | true TTFT p50 / p99 | error p50 | error p99 | tokens off | CPU us a token |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for streams, gap_ms in dict.fromkeys((row.streams, row.gap_ms) for row in rows):
        here = [row for row in rows if (row.streams, row.gap_ms) == (streams, gap_ms)]
        for tool in dict.fromkeys(row.tool for row in here):
            lines.append(
                _line([row for row in here if row.tool == tool], streams, gap_ms, about["requests"][str(streams)])
            )
    lines += ["", *bars(rows), ""]
    return "\n".join(lines)


def _line(rows: Sequence[Row], streams: int, gap_ms: float, requests: int) -> str:
    failed = next((row.failed for row in rows if row.failed), None)
    head = f"| {streams:,} | {gap_ms:g} | {rows[0].tool} | {requests:,} "
    if failed and rows[0].true_p50 is None:
        return f"{head}| {failed.replace('|', '/')} | | | | |"

    def spread(name: str, digits: int) -> str:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        if not values:
            return "-"
        middle = f"{statistics.median(values):.{digits}f}"
        return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"

    true = f"{spread('true_p50', 1)} / {spread('true_p99', 1)}"
    off = sum(row.tokens_off or 0 for row in rows)
    cells = (true, spread("error_p50", 3), spread("error_p99", 3), str(off), spread("us_per_token", 1))
    return head + "".join(f"| {cell} " for cell in cells) + "|"


def bars(rows: Sequence[Row]) -> list[str]:
    """Our own bars, by the median of the repeats, in words."""
    lines = []
    for streams, gap_ms in dict.fromkeys((row.streams, row.gap_ms) for row in rows if row.tool == "dyno"):
        here = [row for row in rows if row.tool == "dyno" and row.streams == streams]
        found = {
            "TTFT p50": statistics.median(abs(row.error_p50 or 0) for row in here),
            "TTFT p99": statistics.median(abs(row.error_p99 or 0) for row in here),
            "us/token": statistics.median(row.us_per_token or 0 for row in here),
        }
        parts = [
            f"{name} {found[name]:.2f} ({'within' if found[name] <= bar else 'ABOVE'} {bar:g})"
            for name, bar in BARS.items()
        ]
        lost = sum(bool(row.failed or row.tokens_off) for row in here)
        parts.append("every token counted" if not lost else f"{lost} runs with lost or miscounted requests")
        lines.append(f"- {streams:,} streams, {gap_ms:g} ms: {', '.join(parts)}.")
    return lines


def about_machine(levels: Sequence[tuple[int, float, int]], repeats: int) -> dict[str, Any]:
    from harness.manifest import git_facts, host_facts

    facts, where = host_facts(), machine()
    return {
        "cpu": where["cpu"],
        "cpus": where["cpus"],
        "system": facts["system"],
        "python": facts["python"],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load_average": os.getloadavg()[0],
        "commit": git_facts(Path.cwd())["commit"],
        "command": " ".join(
            ["python", *(word if "/" not in word or word.startswith("bench") else _short(word) for word in sys.argv)]
        ),
        "repeats": repeats,
        "requests": {str(streams): streams * rounds for streams, _, rounds in levels},
    }


def _short(word: str) -> str:
    """A path in a command without the folders of this machine."""
    name, equals, path = word.rpartition("=")
    return f"{name}{equals}.../{Path(path).name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help=f"one of {', '.join(PEERS)}")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--streams", default=None, help="only these levels, e.g. 64,256")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "recorded")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a tool that runs is ended with us
    found = cache_root().parent / "vllm-venv" / "bin" / "python"
    peers = {"vllm": str(found)} if found.exists() else {}
    for text in args.peer:
        name, _, python = text.partition("=")
        if name not in PEERS or not Path(python).exists():
            parser.error(f"--peer {text}: NAME is one of {', '.join(PEERS)}, PYTHON a file that is there")
        peers[name] = python
    wanted = {int(n) for n in args.streams.split(",")} if args.streams else None
    levels = [level for level in LEVELS if wanted is None or level[0] in wanted]
    about = about_machine(levels, args.repeats)

    def say(row: Row) -> None:
        if row.failed:
            print(f"{row.streams:5} {row.tool:22} {row.failed}", flush=True)
            return
        words = f"TTFT error p50 {row.error_p50:9.3f} p99 {row.error_p99:9.3f} ms  tokens off {row.tokens_off}"
        print(f"{row.streams:5} {row.tool:22} {words}  {row.us_per_token:6.1f} us/token", flush=True)

    rows = measure(levels, args.repeats, {} if args.no_peers else peers, say)
    args.out.mkdir(parents=True, exist_ok=True)
    text = markdown(rows, about)
    stem = args.out / f"client-{about['date']}"
    stem.with_suffix(".md").write_text(text)
    stem.with_suffix(".json").write_text(
        json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    )
    print(f"\n{text}\n{stem}.md")


if __name__ == "__main__":
    main()
