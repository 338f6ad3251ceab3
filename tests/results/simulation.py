"""A server of known schedule, simulated: its requests, steps, tokens and samples follow from arithmetic.

It works prompt first: a waiting prompt is prefilled in a step of its own, and only when none waits all running requests
decode one token in a step. Every time is a whole number of ns, every stamp is exact:

    prefill step   = prefill_ns_per_token x prompt tokens
    decode step    = step_ns + per_sequence_ns x requests running
    first token    = end of the prefill step; token k+1 = end of the k-th decode step after it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.clock import NS_PER_S

# A Llama of 2 x 4 layers x 2 KV heads x 16 x 2 bytes = 512 bytes of KV a token.
MODEL_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
KV_BYTES_PER_TOKEN = 512
BLOCK_SIZE = 16
POOL_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class Schedule:
    """How fast the synthetic server is."""

    prefill_ns_per_token: int = 100_000
    step_ns: int = 10_000_000
    per_sequence_ns: int = 500_000

    def prefill_step(self, tokens: int) -> int:
        return self.prefill_ns_per_token * tokens

    def decode_step(self, running: int) -> int:
        return self.step_ns + self.per_sequence_ns * running

    def slower(self, factor: float) -> Schedule:
        return Schedule(*(round(v * factor) for v in (self.prefill_ns_per_token, self.step_ns, self.per_sequence_ns)))


@dataclass(slots=True)
class Simulated:
    """One request of a simulated cell."""

    request_id: str
    slot: int
    input_len: int
    output_len: int
    sent: int
    stamps: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.stamps[-1]


@dataclass(slots=True)
class Simulation:
    """A simulated cell: its requests, the server's steps, who made which token in which step, and who left the queue when."""

    requests: list[Simulated]
    steps: list[dict[str, int]]
    tokens: list[dict[str, Any]]
    scheduled: list[dict[str, Any]]
    started: int
    ended: int


def simulate(
    load: Mapping[str, Any],
    lengths: Sequence[tuple[int, int]],
    schedule: Schedule,
    started: int,
    prefix: str = "r",
    first_step: int = 0,
) -> Simulation:
    """Run `lengths` (input, output) under a batch or concurrency load. The client answers an end at once."""
    planned = [(f"{prefix}{i:05d}", *pair) for i, pair in enumerate(lengths)]
    width = load["batch"] if load["mode"] == "batch" else load["concurrency"]
    sim = Simulation([], [], [], [], started, started)
    waiting: list[Simulated] = []
    running: list[Simulated] = []
    now = started + 1_000_000

    def send(slot: int, at: int) -> None:
        request_id, input_len, output_len = planned.pop(0)
        request = Simulated(request_id, slot, input_len, output_len, at)
        sim.requests.append(request)
        waiting.append(request)

    for slot in range(min(width, len(planned))):
        send(slot, now)
    while waiting or running:
        start = now
        prefilling = waiting.pop(0) if waiting else None
        if prefilling:
            now += schedule.prefill_step(prefilling.input_len)
            made = [prefilling]
            running.append(prefilling)
        else:
            now += schedule.decode_step(len(running))
            made = list(running)
        step = first_step + len(sim.steps)
        if prefilling:
            sim.scheduled.append({"request_id": prefilling.request_id, "step": step, "start": start})
        for request in made:
            sim.tokens.append(
                {
                    "request_id": request.request_id,
                    "index": len(request.stamps),
                    "step": step,
                    "sampled": now,
                    "written": now,
                }
            )
            request.stamps.append(now)
        # Before this step's tokens: a token's keys and values are written when it is fed back.
        held = sum(r.input_len + len(r.stamps) - 1 for r in running)
        blocks = sum(-(-(r.input_len + len(r.stamps) - 1) // BLOCK_SIZE) for r in running)
        sim.steps.append(
            {
                "step": step,
                "start": start,
                "end": now,
                "prefill_tokens": prefilling.input_len if prefilling else 0,
                "decodes": 0 if prefilling else len(made),
                "prefills": 1 if prefilling else 0,
                "running": len(running),
                "waiting": len(waiting),
                "preempted": 0,
                "context_tokens": held,
                "blocks_allocated": blocks,
                "blocks_total": POOL_TOKENS // BLOCK_SIZE,
                "tokens_held": held,
                "blocks_reserved": blocks,
            }
        )
        finished = [r for r in running if len(r.stamps) == r.output_len]
        running = [r for r in running if len(r.stamps) < r.output_len]
        if load["mode"] == "concurrency":
            for request in finished:
                if planned:
                    send(request.slot, now)
        elif planned and not running and not waiting:
            for slot in range(min(width, len(planned))):
                send(slot, now)
    sim.ended = now + 1_000_000
    return sim


def request_rows(sim: Simulation) -> list[dict[str, Any]]:
    """Rows of requests.parquet, all answered in full."""
    return [
        {
            "request_id": r.request_id,
            "slot": r.slot,
            "worker": 0,
            "intended": r.sent,
            "queued": r.sent,
            "connect_start": None,
            "connect_end": None,
            "sent": r.sent,
            "first_byte": r.stamps[0],
            "first_token": r.stamps[0],
            "last_token": r.stamps[-1],
            "end": r.end,
            "outcome": "ok",
            "http_status": 200,
            "error": None,
            "input_tokens_planned": r.input_len,
            "input_tokens_counted": r.input_len,
            "output_tokens_asked": r.output_len,
            "output_tokens": r.output_len,
            "tokens_in_first_chunk": 1,
            "count_source": "ids",
            "finish_reason": "length",
        }
        for r in sim.requests
    ]


def chunk_rows(sim: Simulation) -> list[dict[str, Any]]:
    """Rows of chunks.parquet: one token a chunk, then finish and usage at the time of the last."""
    rows: list[dict[str, Any]] = []
    for r in sim.requests:
        base = {"request_id": r.request_id, "lag": 50_000, "bytes": 200}
        rows += [{**base, "t": t, "kind": "text", "tokens": 1} for t in r.stamps]
        rows += [{**base, "t": r.end, "kind": kind, "tokens": 0} for kind in ("finish", "usage")]
    return rows


def sample_rows(sim: Simulation, interval: int = NS_PER_S // 4) -> list[dict[str, Any]]:
    """Rows of samples.parquet: the server's gauges and counters and the host's, from start to end."""
    times = [*range(sim.started, sim.ended, interval), sim.ended]
    rows: list[dict[str, Any]] = []
    for t in times:
        done = [s for s in sim.steps if s["end"] <= t]
        now = next((s for s in sim.steps if s["start"] <= t < s["end"]), None)
        held = now["tokens_held"] if now else 0
        blocks = now["blocks_allocated"] if now else 0
        made = sum(1 for token in sim.tokens if token["sampled"] <= t)
        values: dict[tuple[str, str], float] = {
            ("server", "running"): now["running"] if now else 0,
            ("server", "waiting"): now["waiting"] if now else 0,
            ("server", "kv_usage"): blocks * BLOCK_SIZE / POOL_TOKENS,
            ("server", "kv_pool_bytes"): POOL_TOKENS * KV_BYTES_PER_TOKEN,
            ("server", "kv_allocated_bytes"): blocks * BLOCK_SIZE * KV_BYTES_PER_TOKEN,
            ("server", "kv_held_bytes"): held * KV_BYTES_PER_TOKEN,
            ("server", "kv_capacity_tokens"): POOL_TOKENS,
            ("server", "prompt_tokens_total"): sum(s["prefill_tokens"] for s in done),
            ("server", "generation_tokens_total"): made,
            ("server", "preemptions_total"): 0,
            ("server", "weight_bytes"): 360_000,
            ("host", "server_cpu_s"): 1.9 * (t - sim.started) / NS_PER_S,
            ("host", "server_rss_bytes"): 400 * 2**20,
            ("host", "host_cpu_fraction"): 0.97,
        }
        rows += [
            {"source": s, "metric": m, "device": None, "t0": t, "t1": t, "value": float(v), "reason": None}
            for (s, m), v in values.items()
        ]
    return rows
