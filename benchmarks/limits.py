"""Cells forced into each limiting factor: does the report name it, and does the throughput follow that resource?

    python benchmarks/limits.py [--model random-tiny] [--only kv ...] [--pairs 3] [--out benchmarks/recorded]

Each arm is one cell of the reference engine under a load and settings that leave one thing to hold it. The factor comes from
the cell's shares (summary.json, `limits`); the elasticity from `dyno why`, which reruns the cell with that resource changed.
`--no-why` leaves the reruns out. Every arm is a run of its own under --runs, and is completed by the same command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.manifest import host_facts

SMALL = ("--concurrency", "8", "--requests", "48", "--input-len", "32", "--output-len", "64")


@dataclass(frozen=True, slots=True)
class Arm:
    """What is forced: the side and factor to be named, the engine's settings, the load, and the resource that stands for it.

    `think_s` makes the client wait after each answer. None for `resource`: nothing turns it.
    """

    name: str
    side: str
    factor: tuple[str, ...]
    resource: str | None
    load: tuple[str, ...] = SMALL
    settings: dict[str, Any] = field(default_factory=dict)
    options: str = ""
    think_s: float | None = None
    model: str | None = None


ARMS = (
    Arm(
        "offered load 1",
        "batch",
        ("offered_load",),
        "offered load",
        ("--concurrency", "1", "--requests", "24", *SMALL[4:]),
    ),
    Arm("max_num_seqs 2", "batch", ("max_num_seqs",), "max_num_seqs", settings={"max_num_seqs": 2}),
    Arm(
        "tiny pool, on demand",
        "batch",
        ("kv_capacity",),
        "kv_cache_tokens",
        (*SMALL[:2], "--requests", "24", *SMALL[4:]),
        {"threads": 2, "kv_cache_tokens": 320, "max_model_len": 256},
        model="smollm2-135m",
    ),
    Arm(
        "tiny pool, reserve max",
        "batch",
        ("kv_reservation",),
        "kv_cache_tokens",
        settings={"kv_cache_tokens": 768, "max_model_len": 256},
        options="--admission reserve-max",
    ),
    Arm(
        "token budget 16",
        "batch",
        ("token_budget",),
        "max_num_batched_tokens",
        ("--concurrency", "8", "--requests", "24", "--input-len", "128", "--output-len", "16"),
        {"threads": 2, "max_num_batched_tokens": 16},
        model="smollm2-135m",
    ),
    Arm(
        "a slow client",
        "batch",
        ("client",),
        "offered load",
        think_s=1.0,
        load=(*SMALL[:2], "--requests", "32", *SMALL[4:]),
    ),
    Arm(
        "long prompts",
        "step",
        ("compute",),
        "threads",
        ("--concurrency", "4", "--requests", "16", "--input-len", "1024", "--output-len", "1"),
        {"threads": 2},
        model="smollm2-135m",
    ),
    Arm(
        "one thread",
        "step",
        ("compute",),
        "threads",
        ("--concurrency", "4", "--requests", "12", "--input-len", "512", "--output-len", "8"),
        {"threads": 1},
        model="smollm2-135m",
    ),
    Arm(
        "batch 1, two threads",
        "step",
        ("undetermined", "bandwidth"),
        None,
        ("--concurrency", "1", "--requests", "6", "--input-len", "64", "--output-len", "32"),
        {"threads": 2},
        model="smollm2-135m",
    ),
)


def dyno(*words: str) -> str:
    """Run a `dyno` command; its standard output. A sweep with SUSPECT cells ends well."""
    done = subprocess.run([sys.executable, "-m", "harness.cli", *words], capture_output=True, text=True, timeout=900)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"dyno {' '.join(words)}: {done.stderr}")
    return done.stdout


def experiment(arm: Arm, model: str, folder: Path) -> tuple[str, ...]:
    """The words of the sweep. A pause of the client is in no flag: the experiment file has it."""
    settings = {"threads": 1, **arm.settings}
    words = ",".join(f"{name}={value}" for name, value in settings.items())
    engine = f"label=r,backend=reference,{words}" + (f",options={arm.options}" if arm.options else "")
    asked = ("sweep", "--engine", engine, "--model", arm.model or model, *arm.load, "--out", str(folder), "--quiet")
    if arm.think_s is None:
        return asked
    from harness.experiment import load_experiment

    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "plain"
        dyno(*asked[:-3], "--out", str(plain), "--quiet")
        found = load_experiment(plain / "experiment.yaml")
    slow = tuple(load.model_copy(update={"think_s": arm.think_s}) for load in found.loads)
    file = folder.with_suffix(".yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(found.model_copy(update={"loads": slow}).to_yaml())
    return ("sweep", str(file), "--out", str(folder), "--quiet")


def measure(arm: Arm, model: str, runs: Path, pairs: int, budget: str | None) -> dict[str, Any]:
    """The row of an arm."""
    folder = runs / arm.name.replace(" ", "-").replace(",", "")
    if not (folder / "summary.json").exists():
        dyno(*experiment(arm, model, folder))
    cell = json.loads((folder / "summary.json").read_text())["cells"][0]
    found = cell["limits"][arm.side]
    row = {
        "arm": arm.name,
        "model": arm.model or model,
        "side": arm.side,
        "forced": list(arm.factor),
        "named": found["factor"],
        "shares": found["shares"],
        "evidence": found["evidence"],
        "tokens_per_s": cell["whole"]["output_tokens_per_s"],
        "right": found["factor"] in arm.factor,
    }
    if arm.resource and pairs:
        words = ["why", str(folder), cell["id"], "--pairs", str(pairs), "--only", arm.resource, "--quiet", "--json"]
        told = json.loads(dyno(*words, *(["--budget", budget] if budget else [])))
        row["elasticity"] = told["elasticities"][0]
    return row


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown."""
    lines = [
        "| forced | side | named | shares | resource | from, to | d ln T / d ln R | pairs | it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shares = ", ".join(
            f"{s['name']} {100 * s['share']:.0f} % ({100 * s['low']:.0f} to {100 * s['high']:.0f})"
            for s in row["shares"][:3]
        )
        e = row.get("elasticity")
        tail = "| - | - | - | - | - |"
        if e and e["elasticity"] is not None:
            between = "" if e["low"] is None else f" [{e['low']:.2f}, {e['high']:.2f}]"
            tail = f"| {e['resource']} | {e['from']:.4g}, {e['to']:.4g} | {e['elasticity']:.2f}{between} | {e['pairs']} | {e['verdict']} |"
        mark = "" if row["right"] else " (!)"
        lines.append(f"| {row['arm']} ({row['model']}) | {row['side']} | {row['named']}{mark} | {shares} {tail}")
    return lines


def main() -> None:
    """Measure, print, write limits.md and limits.json; exit 1 where a factor was not named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random-tiny")
    parser.add_argument("--only", nargs="*", default=[], metavar="ARM", help="arms whose names contain this")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--budget", help="of each arm's reruns: no pair is begun that would not fit (1s: what is there)"
    )
    parser.add_argument("--no-why", action="store_true", help="no reruns: the named factors alone")
    parser.add_argument("--runs", type=Path, help="folder for the runs (default: thrown away)")
    parser.add_argument("--out", type=Path, help="folder for limits.md and limits.json")
    asked = parser.parse_args()
    arms = [arm for arm in ARMS if not asked.only or any(part in arm.name for part in asked.only)]
    with tempfile.TemporaryDirectory() as scratch:
        runs, pairs = asked.runs or Path(scratch), 0 if asked.no_why else asked.pairs
        rows = [measure(arm, asked.model, runs, pairs, asked.budget) for arm in arms]
    host = {name: value for name, value in host_facts().items() if name != "executable"}
    words = [
        "# Cells forced into each limiting factor",
        "",
        f"`python benchmarks/limits.py` on {host['cpu']}, {host['cores_usable']} cores, shared by client "
        "and engine. Shares of time with 95 % intervals; elasticity over pairs of cells, 95 %.",
        "",
        *table(rows),
    ]
    print("\n".join(words))
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "limits.md").write_text("\n".join(words) + "\n")
        (asked.out / "limits.json").write_text(json.dumps({"host": host, "rows": rows}, indent=1) + "\n")
    raise SystemExit(0 if all(row["right"] for row in rows) else 1)


if __name__ == "__main__":
    main()
