"""The engine's switches, and which combinations of them make sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from backends.reference.policies import ADMISSION, BATCHING, Chunked, Policies, WholePrompts
from results.errors import UsageError

KV_LAYOUTS = ("paged", "contiguous")
KV_CACHE = ("on", "off")


@dataclass(frozen=True, slots=True)
class Switches:
    """One value of each switch; the defaults are what an engine of today does, less the prefix cache."""

    admission: str = "on-demand"
    batching: str = "continuous"
    chunked_prefill: bool = True
    kv_layout: str = "paged"
    kv_cache: str = "on"
    prefix_caching: bool = False

    def policies(self) -> Policies:
        """The scheduler's strategies."""
        chunking = Chunked() if self.chunked_prefill else WholePrompts()
        return Policies(ADMISSION[self.admission](), BATCHING[self.batching](), chunking)


STANDARD = Switches()

# The values that do not go together, and why; every other combination is legal.
CONFLICTS: tuple[tuple[Mapping[str, object], str], ...] = (
    (
        {"kv_cache": "off", "chunked_prefill": True},
        "a chunk needs the KV of those before it, so without a KV cache prompts are computed whole: "
        "--no-chunked-prefill",
    ),
    ({"kv_cache": "off", "prefix_caching": True}, "without a KV cache there is nothing to share"),
    ({"kv_cache": "off", "kv_layout": "contiguous"}, "without a KV cache there is nothing to lay out"),
    *(
        ({"kv_cache": "off", "admission": name}, "without a KV cache there is no memory to reserve")
        for name in ADMISSION
        if name != "on-demand"
    ),
    (
        {"batching": "static-pad", "prefix_caching": True},
        "a finished row that is computed on would write into blocks that others share",
    ),
    (
        {"kv_layout": "contiguous", "prefix_caching": True},
        "a request's contiguous run belongs to it alone, so blocks cannot be shared",
    ),
    *(
        (
            {"kv_layout": "contiguous", "admission": name},
            "the contiguous layout itself reserves max_model_len tokens for each request",
        )
        for name in ADMISSION
        if name != "on-demand"
    ),
)


def conflict(switches: Switches) -> str | None:
    """Why this combination is not legal; None when it is."""
    for values, reason in CONFLICTS:
        if all(getattr(switches, name) == value for name, value in values.items()):
            return f"{' with '.join(_flag(name, value) for name, value in values.items())}: {reason}"
    return None


def check_switches(switches: Switches) -> None:
    """UsageError for a combination that makes no sense."""
    reason = conflict(switches)
    if reason is not None:
        raise UsageError(f"These switches do not go together, {reason}.")


def legal_combinations() -> list[Switches]:
    """All of them."""
    every = product(ADMISSION, BATCHING, (True, False), KV_LAYOUTS, KV_CACHE, (False, True))
    return [switches for values in every if conflict(switches := Switches(*values)) is None]


def _flag(name: str, value: object) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {value}"
