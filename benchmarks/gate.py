"""Does `dyno regress` cry when it should, and only then?

    python -P benchmarks/gate.py truth [--gates 10] [--only 3] [--at-once 4]
                                                                 a truth server against itself, and against one 10 % slower
    python -P benchmarks/gate.py engine                          the reference engine against one with a delay in its step
    python -P benchmarks/gate.py recorded [--gates 300]          gates over recorded blocks of one engine
    python -P benchmarks/gate.py show                            what was found so far

Gates of truth servers mostly wait for their schedules, so several are measured beside each other: each is the noise of the
others. Everything measured is a run under --out, so a command can be given again to complete it; `--record` writes what was
found under benchmarks/recorded/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from harness.truth.process import TruthServer
from harness.truth.schedule import Schedule
from results.regression import PASS, REGRESSION, GateOptions, judge
from results.regression_metrics import chosen
from results.regression_runs import GateRun
from results.store import RunStore

HERE = Path(__file__).resolve().parent
RECORDED = HERE.parent / "tests" / "data" / "recorded_blocks.json"
DYNO = [sys.executable, "-m", "harness.cli"]
RATE, TPOT, CPU = "output_tokens_per_s", "tpot_ms_p50", "cpu_s_per_token"
KEPT = ("metric", "kind", "ratio", "low", "high", "n_blocks", "margin", "effect", "mde", "blocks_needed", "verdict", "why")  # fmt: skip
SLOWER = 1.10
# Of the reference engine: the margin, the slowdown that is put in, the blocks of the first look and the most that there is time for.
CPU_MARGIN, CPU_SLOWER, PILOT, MOST_THAT_FIT = 0.15, 0.40, 5, 20
# Gates over recorded blocks of one engine: margin, blocks, and the least share that must pass. The first three are what one would
# ask of a quiet machine; these blocks scatter by a quarter, so only the last can tell.
RECORDED_GATES = ((0.05, 5, 0.0), (0.10, 5, 0.0), (0.15, 5, 0.0), (0.30, 20, 0.9))


def truth_gate(folder: Path, factor: float, seed: int) -> dict[str, Any]:
    """One whole gate, new sessions and all: a truth server as the base, one whose schedule is `factor` slower as candidate.

    Its one metric is TPOT p50, at the usual 5 %: of a schedule it is what was asked for. Output tokens/s of cells this short (24
    requests) holds the client's starts and the last requests' tail besides, which take more blocks to tell from 5 %.
    """
    base = Schedule(ttft_ms=30, gap_ms=8, jitter=0.2, seed=seed)
    cand = Schedule(ttft_ms=30 * factor, gap_ms=8 * factor, jitter=0.2, seed=seed + 1000)
    load = ["--concurrency", "4", "--requests", "24", "--input-len", "16", "--output-len", "32", "--blocks", "5"]
    with TruthServer(base) as one, TruthServer(cand) as two:
        engines = [f"label={label},backend=openai,url={s.url}" for label, s in (("base", one), ("cand", two))]
        words = [
            "--engine",
            engines[0],
            "--engine",
            engines[1],
            "--model",
            "dyno-truth",
            "--tokenizer",
            "llama-7b",
            *load,
        ]
        sweep([*words, "--seed", str(seed), "--out", str(folder), "--telemetry", "none"])
        return regress(folder, "--metric", TPOT, "--confirm")


def truth_gates(out: Path, numbers: Sequence[int], at_once: int) -> bool:
    """Each numbered gate of equal schedules and of unlike ones that was not measured yet; whether all said what they should."""

    def one(name: str, factor: float, told: str, number: int) -> bool:
        folder = out / f"truth-{name}-{number:02d}"
        if not (folder / "gate.json").exists():
            began = time.monotonic()
            truth_gate(folder, factor, 10 * number)
            print(f"{folder.name}: {_verdict(folder)} after {time.monotonic() - began:.0f} s", flush=True)
        right = _verdict(folder) == told
        if not right:
            print(f"{folder.name}: {_verdict(folder)}, NOT {told}", flush=True)
        return right

    kinds = (("aa", 1.0, PASS), ("slower", SLOWER, REGRESSION))
    with ThreadPoolExecutor(at_once) as pool:
        made = [pool.submit(one, *kind, number) for number in numbers for kind in kinds]
        told = [gate.result() for gate in made]
    return all(told)


def _verdict(folder: Path) -> str:
    return str(json.loads((folder / "gate.json").read_bytes())["verdict"])


def engine_gate(folder: Path, delay_ms: float, blocks: int, seed: int, *margins: str) -> dict[str, Any]:
    """The reference engine as the base, and with `delay_ms` more a step as the candidate."""
    slow = f"{sys.executable} -P {HERE / 'slow_reference.py'}"
    engines = [
        "label=base,backend=reference,threads=1",
        f"label=cand,backend=reference,threads=1,command={slow},options=--step-delay-ms {delay_ms:g}",
    ]
    load = ["--concurrency", "4", "--requests", "32", "--input-len", "64", "--output-len", "32"]
    words = ["--engine", engines[0], "--engine", engines[1], "--model", "random-tiny", *load]
    sweep([*words, "--blocks", str(blocks), "--seed", str(seed), "--out", str(folder)])
    return regress(folder, *margins, "--confirm")


def sweep(words: list[str]) -> None:
    done = subprocess.run([*DYNO, "sweep", *words, "--quiet"], check=False, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        raise SystemExit(f"dyno sweep ended with status {done.returncode}.")


def regress(folder: Path, *words: str) -> dict[str, Any]:
    """What the gate says, kept beside the run."""
    command = [*DYNO, "regress", f"{folder}:base", f"{folder}:cand", *words, "--json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"dyno regress ended with status {done.returncode}.")
    found: dict[str, Any] = {**json.loads(done.stdout), "exit_code": done.returncode}
    (folder / "gate.json").write_text(json.dumps(found))
    return found


def recorded_gate(point: int, margin: float, blocks: int, gates: int, seed: int = 7) -> Counter[str]:
    """Verdicts of gates that draw all their blocks, those of new sessions too, from recorded ones of one engine: nothing differs."""
    rates = np.array(json.loads(RECORDED.read_bytes())["points"][point][RATE])
    draw, found = np.random.default_rng(seed), Counter[str]()
    metrics = chosen([RATE], {RATE: margin})
    for _ in range(gates):
        verdict = ""
        for _look in ("first", "confirmation"):
            picked = draw.permutation(len(rates))[: 2 * blocks]
            base, cand = (dict(enumerate(rates[part].tolist())) for part in (picked[:blocks], picked[blocks:]))
            verdict = judge(metrics[0], base, cand, True, GateOptions(metrics))[2]
            if verdict != REGRESSION:
                break
        found[verdict] += 1
    return found


def recorded_gates(gates: int) -> list[dict[str, Any]]:
    """Each setting at both loads. `right`: no false alarm, and as many pass as must."""
    rows = []
    for point in (0, 1):
        for margin, blocks, least in RECORDED_GATES:
            found = recorded_gate(point, margin, blocks, gates)
            right = not found[REGRESSION] and found[PASS] >= least * gates
            rows.append({"point": point, "margin": margin, "blocks": blocks, "verdicts": dict(found), "right": right})
    return rows


def engine(out: Path) -> None:
    """Measure equal engines first, read from their gate how many blocks it announces, then gate a slower one at that many."""
    words = ["--metric", CPU, "--margin", f"{CPU}={CPU_MARGIN:g}", "--effect", f"{CPU_SLOWER:g}"]
    same = engine_gate(out / "engine-pilot", 0, PILOT, 1, *words)
    if same["faults"]:
        raise SystemExit(f"The pilot tells nothing: {'; '.join(same['faults'])}.")
    (row,) = same["points"]
    blocks = row["blocks_needed"]
    print(
        f"equal engines: {same['verdict']}, {CPU} of {row['n_blocks']} pairs {row['ratio']} [{row['low']}, {row['high']}]"
    )
    if blocks is None or blocks > MOST_THAT_FIT:
        raise SystemExit(
            f"The pilot's spread is too large: it announces {blocks or 'more than 1000'} blocks to tell {CPU_SLOWER:.0%} from the "
            f"margin of {CPU_MARGIN:.0%}, and {MOST_THAT_FIT} fit. A quieter machine would tell."
        )
    # So much a step that CPU seconds a token grow by the effect.
    cells = [c for c in GateRun.read(RunStore.open(out / "engine-pilot")).facts.cells if c["engine"] == "base"]
    delay_ms = 1000 * CPU_SLOWER * float(np.mean([c["counters"][CPU] / steps_per_token(c) for c in cells]))
    found = engine_gate(out / "engine-slow", delay_ms, blocks, 2, *words)
    print(f"{delay_ms:.2f} ms more a step: {found['verdict']} at the {blocks} blocks announced")


def steps_per_token(cell: Mapping[str, Any]) -> float:
    """Steps of the engine a token of the cell, asked or delivered."""
    whole = cell["whole"]
    share = whole["output_tokens"] / (whole["input_tokens"] + whole["output_tokens"])
    return float(cell["counters"]["steps_per_output_token"] * share)


def show(out: Path) -> dict[str, Any]:
    """All gates found under `out`, by name."""
    found = {}
    for path in sorted(out.glob("*/gate.json")):
        gate = json.loads(path.read_bytes())
        rows = [{k: p[k] for k in KEPT} for p in gate["points"]]
        found[path.parent.name] = {"verdict": gate["verdict"], "exit_code": gate["exit_code"], "rows": rows}
    for name, gate in found.items():
        ratios = ", ".join(f"{r['metric']} {r['ratio']:.3f}" for r in gate["rows"] if r["ratio"])
        print(f"{name:24s} {gate['verdict']:12s} {ratios}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("truth", "engine", "recorded", "show"))
    parser.add_argument("--gates", type=int, help="10 of each kind, 300 of recorded blocks")
    parser.add_argument("--only", type=int, help="this gate only (1 is the first)")
    parser.add_argument("--at-once", type=int, default=4, help="so many gates of truth servers beside each other")
    parser.add_argument("--out", type=Path, default=Path("runs/gate"))
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    if asked.what == "truth":
        numbers = [asked.only] if asked.only else list(range(1, (asked.gates or 10) + 1))
        right = truth_gates(asked.out, numbers, asked.at_once)
        print(f"{len(numbers)} gates of each kind: {'all' if right else 'NOT all'} as they should be")
    elif asked.what == "engine":
        engine(asked.out)
    elif asked.what == "recorded":
        rows = recorded_gates(asked.gates or 300)
        for row in rows:
            told = "" if row["right"] else ": NOT as it should be"
            print(f"point {row['point']}, margin {row['margin']:.0%}, {row['blocks']} blocks: {row['verdicts']}{told}")
        if not all(row["right"] for row in rows):
            raise SystemExit(1)
    else:
        show(asked.out)
    if asked.record:
        path = HERE / "recorded" / "gate.json"
        document = {
            "made_by": "benchmarks/gate.py",
            "date": datetime.now(UTC).date().isoformat(),
            # What was measured elsewhere before stands where it was not measured again.
            "gates": json.loads(path.read_bytes())["gates"] | show(asked.out),
            "recorded_blocks": recorded_gates(300),
        }
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
