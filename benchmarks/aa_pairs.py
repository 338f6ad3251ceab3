"""Five real A/A pairs: the same engine twice under two labels, compared as if they were two. Nothing should differ.

    python benchmarks/aa_pairs.py [--pairs 5] [--blocks 5] [--model random-tiny] [--only 2] [--out runs/aa]

Each pair is a run of its own (`dyno sweep`, engines a and b of equal settings, alternating sessions), so the command can be
given again to complete it. Prints what `dyno compare` says of each pair, and with --record writes the pairs and the blocks
they rest on beside the others under benchmarks/recorded/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results.comparison import Comparison, Options
from results.comparison_runs import RunFacts, compare_run
from results.comparison_words import ratio_words
from results.store import RunStore
from results.summary import build_summary

RESULTS = Path(__file__).parent / "recorded"
DYNO = [sys.executable, "-m", "harness.cli"]
LOADS = ["--concurrency", "4,8", "--requests", "96", "--input-len", "64", "--output-len", "32"]


def measure(folder: Path, model: str, blocks: int, seed: int) -> None:
    """One pair. A run that is complete is left as it is."""
    engines = ["--engine", "label=a,backend=reference", "--engine", "label=b,backend=reference"]
    words = [*DYNO, "sweep", *engines, "--model", model, *LOADS, "--blocks", str(blocks), "--seed", str(seed)]
    subprocess.run([*words, "--out", str(folder), "--quiet"], check=True)


def judged(folder: Path, confidence: float) -> tuple[Comparison, dict[str, Any]]:
    store = RunStore.open(folder)
    summary = build_summary(store)
    return compare_run(RunFacts(store.name, summary, store.manifest), Options(confidence=confidence))[0], summary


def blocks_of(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The numbers of every cell that the comparison rests on."""
    return [
        {
            "engine": c["engine"],
            "block": c["block"],
            "concurrency": c["load"]["value"],
            "verdict": c["verdict"],
            "codes": [r["code"] for r in c["reasons"] if r["severity"] != "note"],
            "output_tokens_per_s": round(c["whole"]["output_tokens_per_s"], 2),
            "ttft_ms_p50": round(c["whole"]["ttft_ms"]["p50"], 3),
            "tpot_ms_p50": round(c["whole"]["tpot_ms"]["p50"], 4),
        }
        for c in summary["cells"]
        if c["whole"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", type=int, help="measure this pair only (1 is the first)")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--model", default="random-tiny")
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--out", type=Path, default=Path("runs/aa"))
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    for pair in range(1, asked.pairs + 1):
        if asked.only in (None, pair):
            measure(asked.out / f"pair-{pair}", asked.model, asked.blocks, pair)
    found = []
    for pair in range(1, asked.pairs + 1):
        folder = asked.out / f"pair-{pair}"
        if not (folder / "manifest.json").exists():
            continue
        comparison, summary = judged(folder, asked.confidence)
        rows = [comparison.overall, *comparison.primary] if comparison.overall else comparison.primary
        for row in rows:
            print(
                f"pair {pair}  {row.load or 'all points':12}  {ratio_words(row):24} {row.n_blocks} blocks  {row.verdict}"
            )
        found.append({"pair": pair, "comparison": comparison.to_dict(), "blocks": blocks_of(summary)})
    if asked.record:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"aa_pairs-{datetime.now(UTC):%Y-%m-%d}.json"
        host = RunStore.open(asked.out / "pair-1").manifest["host"]
        machine = {name: host[name] for name in ("cpu", "cores_usable")}
        document = {"machine": machine, "command": "python benchmarks/aa_pairs.py --record", "model": asked.model}
        path.write_text(json.dumps({**document, "pairs": found}, indent=1) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
