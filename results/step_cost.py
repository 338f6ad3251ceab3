"""What one engine step must compute and read, operator by operator, and the least time it can take.

Operators run one after the other, so the least time of a step is the *sum* over operators of max(FLOPs / P, bytes / BW):
attention that waits for memory does not hide behind a GEMM that computes. Conventions: 2 FLOPs a multiply-add; every weight
that is used is read once a step, embedding rows not counted (a tied table is read as the LM head); KV is read once a
sequence and written once a token; activations stay on the chip. It is a lower bound in all of these.

Symbols: L layers, q query heads, k KV heads, d head_dim, T tokens in the step, C context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from results.arithmetic import DTYPE_BITS, KVLayout, dtype_name, kv_dtype_name, kv_layout, model_dtype
from results.errors import UsageError
from results.experts import Experts, experts
from results.parameters import Config, head_dim, kv_heads, parameters, positive_int, text_config

GEMMS = ("attention projections", "FFN", "experts", "LM head", "norms")
ATTENTION = "attention"
# int4 weights come with a 16-bit scale and zero for every so many of them.
INT4_GROUP = 128


@dataclass(frozen=True, slots=True)
class Peaks:
    """Ceilings of one device for one model in one format: FLOP/s of its GEMMs and of attention, bytes/s of its memory."""

    gemm_flops: float
    attention_flops: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as its steps see it: weights by operator (elements), and what attention costs a token and a context token.

    `score` and `prefill_score` are FLOPs of one layer's attention for one token over one token of context (decode, prefill).
    """

    projections: int
    dense_ffn: int
    experts: Experts | None
    head: int
    norms: int
    growing: int
    windowed: int
    window: int | None
    kv: KVLayout
    kv_heads: int
    score: int
    prefill_score: int
    latent: bool

    @property
    def streamed(self) -> int:
        """Parameters that a token can need: all but the input embedding (N')."""
        return self.projections + self.dense_ffn + (self.experts.total if self.experts else 0) + self.head + self.norms

    @property
    def active(self) -> int:
        """Of those, what one token goes through."""
        idle = self.experts.layers * (self.experts.count - self.experts.per_token) if self.experts else 0
        return self.streamed - (idle * self.experts.parameters if self.experts else 0)


@dataclass(frozen=True, slots=True)
class Format:
    """In what the model is held: dtype of weights and KV cache, and over how many devices it is split."""

    weights: str
    kv: str
    tensor_parallel: int = 1

    @property
    def weight_bytes(self) -> float:
        """Bytes a weight takes; int4 with its scale and zero."""
        bits = float(DTYPE_BITS[self.weights])
        return (bits + 32.0 / INT4_GROUP if self.weights == "int4" else bits) / 8

    @property
    def kv_bytes(self) -> float:
        return DTYPE_BITS[self.kv] / 8


@dataclass(frozen=True, slots=True)
class Group:
    """`sequences` alike in a step: each computes `new` tokens, after which it has `context`; `sampled` of them get a token."""

    sequences: float
    new: float
    context: float
    sampled: bool = True


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of operator over all layers of a step: its work on one device, and the least time for it."""

    name: str
    flops: float
    bytes: float
    compute_s: float
    bandwidth_s: float

    @property
    def seconds(self) -> float:
        return max(self.compute_s, self.bandwidth_s)

    @property
    def bound(self) -> str:
        """`compute` or `bandwidth`: what this operator waits for at best."""
        return "compute" if self.compute_s > self.bandwidth_s else "bandwidth"


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step's operators, per device."""

    operators: tuple[Operator, ...]

    @property
    def flops(self) -> float:
        return math.fsum(o.flops for o in self.operators)

    @property
    def bytes(self) -> float:
        return math.fsum(o.bytes for o in self.operators)

    @property
    def seconds(self) -> float:
        """The least time: the sum over operators."""
        return math.fsum(o.seconds for o in self.operators)

    def seconds_bound_by(self, what: str) -> float:
        """Of it, the time in operators bound by `compute` or `bandwidth`."""
        return math.fsum(o.seconds for o in self.operators if o.bound == what)

    @property
    def compute_share(self) -> float:
        """The part of the least time in operators that are bound by compute, 0 to 1."""
        return self.seconds_bound_by("compute") / self.seconds if self.seconds else 0.0


def format_of(config: Config, dtype: str = "auto", kv_dtype: str = "auto", tensor_parallel: int = 1) -> Format:
    """`auto` is what the model was published in, for the cache what the activations are in. Raises UsageError."""
    weights = model_dtype(config) if dtype == "auto" else dtype_name(dtype)
    return Format(weights, kv_dtype_name(kv_dtype, weights, config), tensor_parallel)


def shape_of(config: Config) -> Shape:
    """The model's shape from its config.json. Raises UsageError for families whose parameters or KV are not known."""
    count, routed, text = parameters(config), experts(config), text_config(config)
    layers = positive_int(text, "num_hidden_layers", "n_layer")
    heads = positive_int(text, "num_attention_heads", "n_head")
    layout = kv_layout(config)
    windowed = 0 if layout.window is None else round(layers * layout.windowed / layout.per_token)
    vocabulary, width = (
        positive_int(text, "vocab_size"),
        positive_int(text, "word_embed_proj_dim", "hidden_size", "n_embd"),
    )
    latent = bool(text.get("kv_lora_rank"))
    if latent:
        rank, rope, nope, value = (
            positive_int(text, key) for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        )
        # Decode works in the latent space (absorbed): scores over rank + rope, values over rank. Prefill expands first.
        score, prefill_score = 2 * heads * (2 * rank + rope), 2 * heads * (nope + rope + value)
    else:
        score = prefill_score = 4 * heads * head_dim(text)
    return Shape(
        projections=count.attention,
        dense_ffn=count.ffn - (routed.total if routed else 0),
        experts=routed,
        head=vocabulary * width,
        norms=count.norms,
        growing=layers - windowed,
        windowed=windowed,
        window=layout.window,
        kv=layout,
        kv_heads=1 if latent else kv_heads(text),
        score=score,
        prefill_score=prefill_score,
        latent=latent,
    )


def step_cost(shape: Shape, form: Format, peaks: Peaks, groups: Sequence[Group]) -> StepCost:
    """The operators of one step. Communication between the devices of a tensor-parallel group is not in it."""
    tokens = math.fsum(g.sequences * g.new for g in groups)
    sampled = math.fsum(g.sequences for g in groups if g.sampled)
    size, split = form.weight_bytes, form.tensor_parallel
    found = [
        _gemm("attention projections", tokens, shape.projections, shape.projections, size, split, peaks),
        _gemm("FFN", tokens, shape.dense_ffn, shape.dense_ffn, size, split, peaks),
    ]
    if (moe := shape.experts) is not None:
        used = moe.layers * moe.per_token * moe.parameters
        read = moe.layers * moe.touched(tokens) * moe.parameters
        found.append(_gemm("experts", tokens, used, read, size, split, peaks))
    if sampled:
        found.append(_gemm("LM head", sampled, shape.head, shape.head, size, split, peaks))
    found.append(_gemm("norms", tokens, shape.norms, shape.norms, size, 1, peaks))
    found.append(_attention(shape, form, peaks, groups))
    return StepCost(tuple(o for o in found if o.flops or o.bytes))


def _gemm(name: str, rows: float, used: float, read: float, size: float, split: int, peaks: Peaks) -> Operator:
    flops, moved = 2.0 * rows * used / split, read * size / split if rows else 0.0
    return Operator(name, flops, moved, flops / peaks.gemm_flops, moved / peaks.bytes_per_s)


def _attention(shape: Shape, form: Format, peaks: Peaks, groups: Sequence[Group]) -> Operator:
    # A device holds k / tp KV heads, but never less than one: beyond k devices they are replicated, and MLA's latent is whole.
    kv_share = max(1.0, shape.kv_heads / form.tensor_parallel) / shape.kv_heads
    flops = moved = 0.0
    for g in groups:
        score = shape.score if g.new <= 1 else shape.prefill_score
        seen = shape.growing * _scores(g.new, g.context, None) + shape.windowed * _scores(
            g.new, g.context, shape.window
        )
        flops += g.sequences * score * seen / form.tensor_parallel
        held = shape.kv.growing * g.context
        if shape.window is not None:
            held += shape.kv.windowed * min(g.context, shape.window + g.new - 1)
        moved += g.sequences * (held + shape.kv.per_token * g.new) * form.kv_bytes * kv_share
    return Operator(ATTENTION, flops, moved, flops / peaks.attention_flops, moved / peaks.bytes_per_s)


def _scores(new: float, context: float, window: int | None) -> float:
    """Pairs of (new token, token it sees) of one sequence in one layer: causal, itself included."""
    before = max(0.0, context - new)
    if window is None or context <= window:
        return new * (before + context + 1) / 2
    growing = max(0.0, min(new, window - before))  # tokens whose window is not full yet
    return growing * (2 * before + growing + 1) / 2 + (new - growing) * window


def peaks_for(form: Format, flops: dict[str, float], bytes_per_s: float, activations: str = "bfloat16") -> Peaks:
    """The ceilings that a format meets. Weight-only int4 and int8 compute in 16 bit; fp8 at the fp8 rate where there is one.

    `flops`: FLOP/s by `bf16`, `fp8`, `fp32`. Attention runs in the activations' dtype. Raises UsageError without a rate.
    """
    plain = "fp32" if activations == "float32" and "fp32" in flops else "bf16"
    wanted = "fp8" if form.weights.startswith("fp8") else "fp32" if form.weights == "float32" else plain
    rate = flops.get(wanted) or flops.get("bf16") or flops.get("fp32")
    if not rate:
        raise UsageError(
            f"No FLOP/s known for {form.weights} weights; there are rates for: {', '.join(flops) or 'none'}."
        )
    return Peaks(rate, flops.get(plain) or rate, bytes_per_s)
