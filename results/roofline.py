"""Where a model's decode can be at best on a device: tokens/s by batch and context, and what turns compute-bound when.

All of it is arithmetic over `step_cost`: a ceiling, never a forecast. Times are those of one decode step in which every
sequence has the same context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from results.arithmetic import kv_bytes
from results.errors import UsageError
from results.parameters import Config, kv_heads, parameters, positive_int, text_config
from results.step_cost import ATTENTION, Format, Group, Peaks, Shape, StepCost, shape_of, step_cost

# No engine decodes more sequences in a step.
LARGEST_BATCH = 1 << 17


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model runs on: ceilings of one device, its memory, and the part of it that an engine may take."""

    peaks: Peaks
    memory_bytes: int
    memory_fraction: float = 0.9


@dataclass(frozen=True, slots=True)
class Point:
    """One decode step at its best. `fits` says whether weights and KV of that batch fit the memory."""

    batch: int
    context: int
    step_s: float
    bound: str
    compute_share: float
    attention_share: float
    fits: bool

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model in a format on a machine."""

    config: Config
    shape: Shape
    form: Format
    machine: Machine
    block_size: int

    def step(self, batch: float, context: float) -> StepCost:
        """The cost of one decode step."""
        return step_cost(self.shape, self.form, self.machine.peaks, [Group(batch, 1, context)])

    def point(self, batch: int, context: int) -> Point:
        cost = self.step(batch, context)
        attention = sum(o.seconds for o in cost.operators if o.name == ATTENTION)
        bound = "compute" if cost.compute_share > 0.5 else "bandwidth"
        return Point(
            batch, context, cost.seconds, bound, cost.compute_share, attention / cost.seconds, self.fits(batch, context)
        )

    @property
    def weights_per_device(self) -> float:
        """Bytes of weights a device holds, the embedding table included."""
        return parameters(self.config).total * self.form.weight_bytes / self.form.tensor_parallel

    def kv_per_request(self, context: int) -> float:
        """Bytes of KV a request of that context takes on a device, in whole blocks."""
        whole = kv_bytes(self.config, self.form.kv, batch=1, seq_len=context, block_size=self.block_size)
        return whole * max(1.0, self.shape.kv_heads / self.form.tensor_parallel) / self.shape.kv_heads

    @property
    def kv_per_token(self) -> float:
        """Bytes of KV that one more token of a request takes on a device."""
        heads = max(1.0, self.shape.kv_heads / self.form.tensor_parallel)
        return self.shape.kv.per_token * self.form.kv_bytes * heads / self.shape.kv_heads

    def requests_that_fit(self, context: int, a_request: float | None = None) -> int:
        """How many requests of that context the memory holds beside the weights; 0 where not even the weights fit."""
        left = self.machine.memory_bytes * self.machine.memory_fraction - self.weights_per_device
        return max(0, int(left // (a_request or self.kv_per_request(context))))

    def fits(self, batch: int, context: int) -> bool:
        return batch <= self.requests_that_fit(context)

    def gemms_turn(self) -> int | None:
        """The smallest batch at which the GEMMs of a decode step take longer to compute than their weights to read."""

        def turned(batch: int) -> bool:
            gemms = [o for o in self.step(batch, 1).operators if o.name != ATTENTION]
            return sum(o.compute_s for o in gemms) >= sum(o.bandwidth_s for o in gemms)

        return smallest(turned)

    def step_turns(self, context: int) -> int | None:
        """The smallest batch at which more than half of a decode step's time is compute-bound; None is never: attention
        waits for memory at any batch, and takes the larger part."""
        return smallest(lambda batch: self.step(batch, context).compute_share > 0.5)

    def longest_compute_bound_context(self) -> int | None:
        """The longest context at which some batch makes the step compute-bound; None where none does."""
        if self.step_turns(1) is None:
            return None
        longest = text_config(self.config).get("max_position_embeddings")
        beyond = smallest(lambda context: self.step_turns(context) is None)
        limit = longest if isinstance(longest, int) else LARGEST_BATCH
        return min(limit, beyond - 1) if beyond else limit


def smallest(true_from: Callable[[int], bool]) -> int | None:
    """The least n >= 1 for which a condition holds that, once true, stays true; None where it is not up to LARGEST_BATCH."""
    if not true_from(LARGEST_BATCH):
        return None
    low, high = 0, LARGEST_BATCH
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if true_from(middle) else (middle, high)
    return high


def roofline(config: Config, form: Format, machine: Machine, block_size: int = 16) -> Roofline:
    """Raises UsageError for a family that cannot be counted and for a split its heads do not take."""
    heads = positive_int(text_config(config), "num_attention_heads", "n_head")
    if heads % form.tensor_parallel:
        raise UsageError(
            f"The model's {heads} query heads cannot be split over {form.tensor_parallel} devices; choose a divisor of {heads}."
        )
    return Roofline(config, shape_of(config), form, machine, block_size)


@dataclass(frozen=True, slots=True)
class Change:
    """What one change does to how many requests fit at a context, and to the ceiling with that many (at most `cap`). `why`: what
    keeps the ceiling where it was; empty where it moves."""

    words: str
    kv_bytes_per_request: float
    fit: int
    batch: int
    tokens_per_s: float | None
    why: str = ""


# Ceilings nearer to each other than this are called the same.
_SAME = 0.01


def changes(base: Roofline, context: int, cap: int) -> list[Change]:
    """As asked, and with one thing changed: KV heads (none shared), an fp8 cache, smaller weights, larger blocks."""
    variants: list[tuple[str, Roofline]] = [("as asked", base)]
    text = text_config(base.config)
    heads = positive_int(text, "num_attention_heads", "n_head")
    if not base.shape.latent and kv_heads(text) < heads and text.get("model_type") != "falcon":
        whole = {**text, "num_key_value_heads": heads}
        # The same weights: what is asked is what sharing KV heads buys in the cache.
        variants.append(("every head its own KV", replace(base, config=whole, shape=_with_kv_of(base.shape, whole))))
    if base.form.kv_bytes > 1:
        variants.append(("fp8 KV cache", replace(base, form=replace(base.form, kv="fp8"))))
    if base.form.weight_bytes > 1:
        variants.append(("int4 weights", replace(base, form=replace(base.form, weights="int4"))))
    variants += [
        (f"blocks of {size} tokens", replace(base, block_size=size)) for size in (128, 512) if size > base.block_size
    ]
    asked = _change(*variants[0], base, context, cap)
    found = [_change(words, variant, base, context, cap) for words, variant in variants[1:]]
    return [asked, *(replace(change, why=_why_same(change, asked, base, context, cap)) for change in found)]


def _with_kv_of(shape: Shape, config: Config) -> Shape:
    other = shape_of(config)
    return replace(shape, kv=other.kv, kv_heads=other.kv_heads)


def _change(words: str, variant: Roofline, base: Roofline, context: int, cap: int) -> Change:
    # A request ends anywhere in a block: by half of what a block is larger it holds more in the mean.
    more = (variant.block_size - base.block_size) / 2 * variant.kv_per_token
    a_request = replace(variant, block_size=base.block_size).kv_per_request(context) + more
    fit = variant.requests_that_fit(context, a_request)
    batch = min(fit, cap)
    rate = variant.point(batch, context).tokens_per_s if batch else None
    return Change(words, a_request, fit, batch, rate)


def _why_same(change: Change, asked: Change, base: Roofline, context: int, cap: int) -> str:
    if not change.tokens_per_s or not asked.tokens_per_s or abs(change.tokens_per_s / asked.tokens_per_s - 1) > _SAME:
        return ""
    point = base.point(asked.batch, context)
    if point.attention_share > 0.5:
        return f"{100 * point.attention_share:.0f} % of the step goes to reading KV, as long a token at any such batch"
    if change.batch == asked.batch == cap:
        return f"more fit than the {cap:,} that are counted"
    return f"the step is bound by {point.bound}, as long a token at any such batch"


def default_contexts(longest: int | None) -> list[int]:
    """Contexts worth a column: up to what the model takes."""
    columns = [512, 2048, 8192, 32_768, 131_072]
    kept = [c for c in columns if longest is None or c <= longest]
    if longest is not None and longest not in kept and len(kept) < len(columns):
        kept.append(longest)
    return kept or [longest or 512]


def grid(base: Roofline, batches: Sequence[int], contexts: Sequence[int]) -> list[Point]:
    """Every point of batches x contexts."""
    return [base.point(batch, context) for batch in batches for context in contexts]
