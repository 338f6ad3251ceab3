"""How well arrivals alone tell an engine's steps: the X-ray against the reference engine's own log.

    python benchmarks/xray.py [--model random-tiny smollm2-135m] [--streams 1 8] [--out benchmarks/recorded]

Each model is swept at each number of streams; of every cell, the steps recovered from the client's arrivals are held against
the truth log, as recorded and with noise added to each arrival (each one delayed by |N(0, sigma)|, as a network would).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.manifest import host_facts
from results.events import read_chunks, read_requests
from results.store import RunStore
from results.tokens import TokenChunks, token_chunks
from results.truth import read_steps, read_tokens
from results.xray import Refused, xray
from results.xray_check import check

JITTER_MS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
# Model -> at how many streams, and what is asked of it.
STREAMS = {"random-tiny": [1, 8, 64, 256], "smollm2-135m": [1, 8, 32]}
WORDS = {
    "random-tiny": ("--input-len", "32", "--output-len", "96"),
    "smollm2-135m": ("--input-len", "64", "--output-len", "48"),
}


def sweep(model: str, streams: list[int], folder: Path, settings: str) -> RunStore:
    """A run of one cell for each number of streams; one that lies there already is read."""
    if (folder / "summary.json").exists():
        return RunStore.open(folder)
    command = [sys.executable, "-m", "harness.cli", "sweep", "--engine", f"label=r,backend=reference,{settings}"]
    command += ["--model", model, "--concurrency", ",".join(map(str, streams)), *WORDS[model], "--quiet"]
    subprocess.run([*command, "--out", str(folder)], check=True, timeout=600)
    return RunStore.open(folder)


def delayed(chunks: TokenChunks, sigma_ms: float, seed: int = 0) -> TokenChunks:
    """Every arrival later by |N(0, sigma)|, never before the one before it in its stream: a connection keeps its order."""
    if sigma_ms == 0:
        return chunks
    noise = np.abs(np.random.default_rng(seed).normal(0.0, sigma_ms * 1e6, len(chunks))).astype(np.int64)
    t = chunks.t + noise
    base = int(t.min())
    # The running maximum within each stream, in one pass: streams are laid far apart.
    apart = chunks.request * (int(t.max()) - base + 1)
    return replace(chunks, t=np.maximum.accumulate(t - base + apart) - apart + base)


def rows_of(store: RunStore, model: str) -> list[dict[str, Any]]:
    """A row for each cell and jitter."""
    rows = []
    for cell in sorted(store.cells(), key=lambda c: int(c.load["concurrency"])):
        folder, session = store.cell_dir(cell.id), store.session_dir(cell.session)
        requests = read_requests(folder)
        chunks = token_chunks(requests, read_chunks(folder))
        tokens, steps = read_tokens(session), read_steps(session)
        if tokens is None or steps is None:
            raise SystemExit(f"{session} holds no truth log")
        for sigma in JITTER_MS:
            moved = delayed(chunks, sigma)
            found = xray(requests, moved)
            row: dict[str, Any] = {"model": model, "streams": int(cell.load["concurrency"]), "jitter_ms": sigma}
            if isinstance(found, Refused):
                rows.append({**row, "refused": found.reason})
                continue
            error = check(found, requests, moved, tokens, steps)
            rows.append({**row, "missed": found.missed_share, **(asdict(error) if error else {"refused": "no truth"})})
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown."""

    def percent(value: float | None, signed: bool = False) -> str:
        return "-" if value is None else f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"

    lines = [
        "| model | streams | jitter, ms | steps | found whole | number of steps | batch | step time "
        "| prompt steps seen / right | pauses / preempted |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        head = f"| {row['model']} | {row['streams']} | {row['jitter_ms']:g} |"
        if "refused" in row:
            lines.append(f"{head} refused: {row['refused']} | | | | | | |")
            continue
        lines.append(
            f"{head} {row['steps']:,} | {percent(row['exact'])} | {percent(row['steps_error'], True)} "
            f"| {percent(row['batch_error'], True)} | {percent(row['seconds_error'], True)} "
            f"| {percent(row['mixed_found'])} / {percent(row['mixed_right'])} | {row['pauses']} / {row['preempted']} |"
        )
    return lines


def main() -> None:
    """Measure, print, and write xray.md and xray.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["random-tiny", "smollm2-135m"], choices=sorted(WORDS))
    parser.add_argument("--streams", nargs="+", type=int, help="1 to 256 for the tiny model, to 32 for the other")
    parser.add_argument("--kv-cache-tokens", type=int, help="a small pool makes the engine preempt")
    parser.add_argument("--out", type=Path, help="folder for xray.md and xray.json")
    parser.add_argument("--keep", type=Path, help="folder for the runs (default: thrown away)")
    asked = parser.parse_args()
    settings = "threads=2" + (f",kv_cache_tokens={asked.kv_cache_tokens}" if asked.kv_cache_tokens else "")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for model in asked.model:
            folder = (asked.keep or Path(scratch)) / f"xray-{model}"
            rows += rows_of(sweep(model, asked.streams or STREAMS[model], folder, settings), model)
    host = {name: value for name, value in host_facts().items() if name != "executable"}
    words = [
        "# X-ray against the truth log",
        "",
        f"`python benchmarks/xray.py` on {host['cpu']}, {host['cores_usable']} cores, shared by client "
        "and engine. Found whole: true steps recovered with exactly their tokens. Number of steps, batch and step time are "
        "relative errors of the whole cell; prompt steps are those that decoded beside a prompt.",
        "",
        *table(rows),
    ]
    print("\n".join(words))
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "xray.md").write_text("\n".join(words) + "\n")
        (asked.out / "xray.json").write_text(json.dumps({"host": host, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
