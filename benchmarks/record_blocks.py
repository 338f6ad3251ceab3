"""Numbers of real cells as test data: blocks of A/A runs (`aa_pairs.py`), and the requests of one long cell.

    dyno sweep --backend reference --model random-tiny --concurrency 8 --requests 4000 --input-len 64 --output-len 32 --out LONG
    python benchmarks/record_blocks.py runs/aa LONG --beside "nothing else" [--out tests/data/recorded_blocks.json]

Rates are those of whole sessions in the order they ran, both labels together: they are one engine. Latencies stand in the
order of their first and last tokens. `--beside` says what else the machine did.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from results.events import Floats, Ints, read_requests
from results.report_shapes import load_words
from results.scope import span_ms, tpot_ms
from results.store import RunStore
from results.summary import build_summary

OUT = Path(__file__).resolve().parents[1] / "tests" / "data" / "recorded_blocks.json"
MOST_REQUESTS = 2000


def points(folder: Path) -> list[dict[str, Any]]:
    """Output tokens/s of every block at each load, oldest first."""
    found: dict[str, list[float]] = {}
    for run in sorted(folder.glob("pair-*")):
        for cell in build_summary(RunStore.open(run))["cells"]:
            if cell["whole"]:
                where = load_words(cell["load"]["mode"], cell["load"]["value"])
                found.setdefault(where, []).append(round(cell["whole"]["output_tokens_per_s"], 1))
    return [{"load": load, "output_tokens_per_s": rates} for load, rates in sorted(found.items())]


def latencies(run: Path) -> dict[str, list[float]]:
    """TTFT, TPOT and E2E (ms) of the first requests of a run's only cell, each in the order of its own event."""
    r = read_requests(next((run / "cells").glob("*")))
    ok = r.outcome == "ok"

    def ordered(values: Floats, at: Ints) -> list[float]:
        kept = values[np.argsort(at, kind="stable")]
        return [round(float(v), 2) for v in kept[np.isfinite(kept)][:MOST_REQUESTS]]

    return {
        "ttft_ms": ordered(span_ms(r.sent, r.first_token, ok), r.first_token),
        "tpot_ms": ordered(tpot_ms(r, ok), r.last_token),
        "e2e_ms": ordered(span_ms(r.sent, r.last_token, ok), r.last_token),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("long", type=Path)
    parser.add_argument("--beside", required=True)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    host = RunStore.open(asked.long).manifest["host"]
    document = {
        "about": f"Real cells of the reference engine on a CPU, beside {asked.beside}; made by benchmarks/record_blocks.py",
        "machine": {name: host[name] for name in ("cpu", "cores_usable")},
        "model": "random-tiny, 64 tokens in, 32 out, lengths +-20 %",
        "points": points(asked.pairs),
        "requests": latencies(asked.long),
    }
    text = json.dumps(document, separators=(",", ":")).replace('],"', '],\n"').replace('{"', '\n{"')
    asked.out.write_text(text.strip() + "\n", encoding="utf-8")
    print(asked.out, {p["load"]: len(p["output_tokens_per_s"]) for p in document["points"]})


if __name__ == "__main__":
    main()
