"""What may be set, and to what: the search space of each backend, a table row a setting.

A row gives the values worth trying for one workload, load and machine, the most promising first. A backend's space is every
row whose setting its adapter can pass on. `--vary` and lists in an engine's entry say it by hand.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import Any

from pydantic import ValidationError

from backends.base import Backend, EngineSettings
from harness.axes import split_words, value_list
from harness.axis_labels import OPTIONS, label_of, public_options, short_words
from harness.experiment import EngineSpec, Experiment, describe_validation
from harness.loads import BatchLoad, ConcurrencyLoad
from results.errors import UnknownNameError, UsageError

Values = Mapping[str, Any]
# Of a larger space no more combinations than these are looked at.
MOST_DRAWN = 4096
_DEFAULT = object()


class Memory(StrEnum):
    """What a larger value does to the memory that an engine needs."""

    MORE = "more"
    OTHER = "other"  # it changes with the value, nobody says how
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Facts:
    """What values are chosen by: requests in flight at the most (None: an open loop), tokens of a usual prompt, cores this
    process may use, whether there is a GPU."""

    in_flight: int | None
    prompt: int
    cores: int
    gpu: bool


def seqs(f: Facts) -> Sequence[int]:
    if f.in_flight is None:
        return (64, 256, 16, 128, 32, 512)
    # More than are in flight are never seen.
    return [n for n in (f.in_flight, f.in_flight // 2, f.in_flight // 4) if n]


def step_tokens(f: Facts) -> Sequence[int]:
    """Up to the first budget that takes every prompt which can wait at once."""
    budgets = (2048, 8192, 512, 16384, 1024, 4096) if f.gpu else (512, 2048, 128, 256, 1024, 4096)
    waiting = (f.in_flight or 64) * f.prompt
    enough = min((b for b in sorted(budgets) if b >= waiting), default=max(budgets))
    return [b for b in budgets if b <= enough]


def threads(f: Facts) -> Sequence[int]:
    return [] if f.gpu else list(dict.fromkeys(n for n in (f.cores, f.cores - 1, f.cores // 2) if n))


@dataclass(frozen=True, slots=True)
class Row:
    """A setting that is searched by default. `only` names the backends for which it is; () for all that can be told it."""

    setting: str
    values: Callable[[Facts], Sequence[Any]]
    only: tuple[str, ...] = ()


# What changes the answers (kv_dtype, quantisation, dtype) is tried only where --vary names it.
ROWS: tuple[Row, ...] = (
    Row("max_num_seqs", seqs),
    Row("max_num_batched_tokens", step_tokens),
    Row("prefix_caching", lambda f: (False, True)),
    # The kernels of vLLM's CPU build take multiples of 32 alone.
    Row("block_size", lambda f: (32, 16, 64, 128) if f.gpu else (32, 64, 128)),
    Row("chunked_prefill", lambda f: (True, False)),
    Row("threads", threads),
    Row("cuda_graphs", lambda f: (True, False) if f.gpu else ()),
    Row("memory_fraction", lambda f: (0.95, 0.9) if f.gpu else ()),
    Row("admission", lambda f: ("reserve-max", "on-demand"), ("reference",)),
    # Its two policies, by what they promise a request: GUARANTEED_NO_EVICT and MAX_UTILIZATION.
    Row("admission", lambda f: ("reserve-oracle", "on-demand"), ("tensorrt_llm",)),
)
MEMORY: Mapping[str, Memory] = {
    **dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_cache_tokens"), Memory.MORE),
    **dict.fromkeys(("kv_cache_bytes", "memory_fraction"), Memory.MORE),
    **dict.fromkeys(("prefix_caching", "chunked_prefill", "threads", "scheduler_policy", "admission"), Memory.SAME),
    **dict.fromkeys(("batching", "block_size", "seed"), Memory.SAME),
}


@dataclass(frozen=True, slots=True)
class Space:
    """The values of each setting (or `options`) that is searched, the most promising first.

    Words of options are as they may be written down; `secret` gives those that an engine is started with, where they hold a
    secret. So a key that was changed goes on with the same search.
    """

    axes: Mapping[str, Sequence[Any]]
    secret: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict, repr=False)

    def engine(self, base: EngineSpec, values: Values) -> EngineSpec:
        """The engine of a trial of these values."""
        engine = with_values(base, values)
        words = tuple(values.get(OPTIONS, ()))
        return engine.model_copy(update={"options": (*base.options, *self.secret.get(words, words))})

    @property
    def size(self) -> int:
        """How many combinations there are, each setting left at its default among them, less the defaults themselves."""
        return math.prod(1 + len(values) for values in self.axes.values()) - 1

    def combinations(self, seed: int) -> Iterator[Values]:
        """All of them in an order of the seed's draw; of a space beyond counting `MOST_DRAWN` draws, doubles among them."""
        draw = random.Random(seed)
        choices = [[(name, value) for value in (_DEFAULT, *values)] for name, values in self.axes.items()]
        drawn = list(product(*choices)) if self.size < MOST_DRAWN else None
        if drawn is not None:
            draw.shuffle(drawn)
        for chosen in drawn or (tuple(map(draw.choice, choices)) for _ in range(MOST_DRAWN)):
            if values := {name: value for name, value in chosen if value is not _DEFAULT}:
                yield values


def most_in_flight(experiment: Experiment) -> int | None:
    """Requests in flight at the most; None where a load is an open loop."""
    closed = [load.in_flight for load in experiment.loads if isinstance(load, BatchLoad | ConcurrencyLoad)]
    return max(closed) if len(closed) == len(experiment.loads) else None


def facts_of(experiment: Experiment, cores: int, gpu: bool) -> Facts:
    """What the values are chosen by."""
    return Facts(
        in_flight=most_in_flight(experiment),
        prompt=max(workload.expected_input for workload in experiment.workloads),
        cores=cores,
        gpu=gpu,
    )


def space_for(
    backend: Backend, base: EngineSpec, facts: Facts, named: Mapping[str, Sequence[Any]]
) -> tuple[Space, list[str]]:
    """The space of one engine, and what of `named` its backend has no way to set. Where anything is named (by `--vary`, or as
    lists in the engine's entry) that alone is searched; else what the engine's entry sets is never changed."""
    if not named:
        rows = [
            row for row in ROWS if row.setting in backend.settings and backend.name in (row.only or (backend.name,))
        ]
        own = base.settings.asked()
        found = {row.setting: list(row.values(facts)) for row in rows if row.setting not in own}
        return Space({setting: values for setting, values in found.items() if values}), []
    can = {name: list(values) for name, values in named.items() if name == OPTIONS or name in backend.settings}
    given = can.get(OPTIONS, [])
    public = public_options(given, base.options)
    secret = {tuple(p): tuple(words) for p, words in zip(public, given, strict=True) if p != words}
    # No words are the engine as it is: that is no change, so no value.
    axes = {name: [words for words in public if words] if name == OPTIONS else values for name, values in can.items()}
    return Space({name: values for name, values in axes.items() if values}, secret), [
        name for name in named if name not in can
    ]


def parse_vary(texts: Sequence[str]) -> dict[str, list[Any]]:
    """`max_num_seqs=4,16,64`, `max_num_seqs=4..64`, `chunked_prefill=on,off`, `options=--enforce-eager,` (with and without).

    Raises UsageError and UnknownNameError."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, sign, given = text.partition("=")
        name = key.strip().replace("-", "_")
        if not sign or not given:
            raise UsageError(f"--vary {text!r} is not SETTING=VALUE,VALUE. Example: --vary max_num_seqs=4,16,64.")
        if name in found:
            raise UsageError(f"--vary names {name} twice: give all its values at once.")
        parts = [part.strip().replace("\0", ",") for part in given.replace("\\,", "\0").split(",")]
        values = [v for part in parts for v in (value_list(name, part) or [part])]
        found[name] = checked_values(name, values)
    return found


def checked_values(name: str, values: Sequence[Any]) -> list[Any]:
    """The values of a setting as the settings hold them, doubles dropped; words of `options` split. Raises UsageError,
    UnknownNameError."""
    if name == OPTIONS:
        made: list[Any] = [split_words(f"--vary {name}", v) if isinstance(v, str) else list(v) for v in values]
    elif name not in EngineSettings.model_fields:
        raise UnknownNameError("setting", name, [*EngineSettings.model_fields, OPTIONS])
    else:
        try:
            made = [getattr(EngineSettings.model_validate({name: value}), name) for value in values]
        except ValidationError as error:
            raise UsageError(f"{describe_validation(error.errors())}.") from error
    return value_list(name, made) or []


def with_values(base: EngineSpec, values: Values) -> EngineSpec:
    """The engine of a trial: the base with these settings, labelled by them; words of `options` come after its own."""
    if not values:
        return base
    settings = base.settings.model_copy(update={k: v for k, v in values.items() if k != OPTIONS})
    options = (*base.options, *values.get(OPTIONS, ()))
    label = label_of(base.label, ordered(values))
    return base.model_copy(update={"label": label, "settings": settings, "options": options})


def ordered(values: Values) -> dict[str, Any]:
    """In the one order of settings, whoever named them: an engine has one label."""
    return {name: values[name] for name in (*EngineSettings.model_fields, OPTIONS) if name in values}


def shown(values: Values) -> str:
    """`seqs=16 chunked=off`, as in the label of its engine; `its defaults` for nothing."""
    return " ".join(short_words(ordered(values))) or "its defaults"


def at_least(values: Values, failed: Values, defaults: Values) -> bool:
    """Whether an engine with these values needs at least the memory of one that ran out of it: no setting that takes more
    memory is smaller, and none that changes it otherwise differs. `defaults` are the values of what neither names; where a
    default is not known, a setting of which only one is named cannot be compared."""
    for name in {*values, *failed}:
        a, b = values.get(name, defaults.get(name)), failed.get(name, defaults.get(name))
        kind = MEMORY.get(name, Memory.OTHER)
        if a == b or kind is Memory.SAME:
            continue
        if kind is Memory.OTHER or a is None or b is None or a < b:
            return False
    return True
