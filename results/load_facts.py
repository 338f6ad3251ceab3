"""What is known of how a cell's load was sent, for the rules about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from results.schema import ENDED_BY_PLAN, CountSource, Outcome

if TYPE_CHECKING:
    from results.events import Requests


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What the rules of this file read. `arrivals` is that of the summary, None for closed loops."""

    arrivals: Mapping[str, Any] | None = None
    long: int = 0
    long_example: str = ""
    ended_by_plan: int = 0
    by_chunks: int = 0
    by_chunks_fewer: int = 0
    usage_disagrees: int = 0
    no_done: int = 0
    ran_out: bool = False
    descriptor_cap: int | None = None
    max_in_flight: int | None = None
    ttft_ms_p50: float | None = None
    # Whose prompt had been sent before in the cell.
    prompts_repeated: int = 0
    # Why nothing was answered before the load; empty where something was, or nobody kept it.
    cold: str = ""
    # Other machines that sent, as their load workers told of them.
    nodes: Sequence[Mapping[str, Any]] = ()


def load_facts(
    requests: Requests, client: Mapping[str, Any], arrivals: Mapping[str, Any] | None, whole: Mapping[str, Any] | None
) -> LoadFacts:
    """From a cell's requests and what its client recorded of itself."""
    by_plan = requests.finish_reason == ENDED_BY_PLAN
    answered = (requests.outcome == str(Outcome.OK)) & ~by_plan
    over = answered & (requests.output_tokens_asked > 0) & (requests.output_tokens > requests.output_tokens_asked)
    by_chunks = (requests.outcome == str(Outcome.OK)) & (requests.count_source == str(CountSource.CHUNKS))
    # One that ended for its length held all the tokens asked for, in fewer chunks.
    fewer = by_chunks & (requests.finish_reason == "length") & (requests.output_tokens < requests.output_tokens_asked)
    example = ""
    if over.any():
        at = int(np.flatnonzero(over)[0])
        example = f"e.g. {requests.output_tokens[at]} tokens where {requests.output_tokens_asked[at]} were asked for"
    return LoadFacts(
        arrivals=arrivals,
        long=int(over.sum()),
        long_example=example,
        ended_by_plan=int(by_plan.sum()),
        by_chunks=int(by_chunks.sum()),
        by_chunks_fewer=int(fewer.sum()),
        usage_disagrees=_count(client.get("usage_disagrees")) or 0,
        no_done=_count(client.get("no_done")) or 0,
        ran_out=client.get("ran_out_of_requests") is True,
        descriptor_cap=_count(client.get("descriptor_cap")),
        max_in_flight=_count(client.get("max_in_flight")),
        ttft_ms_p50=((whole or {}).get("ttft_ms") or {}).get("p50"),
        prompts_repeated=_count(client.get("prompts_repeated")) or 0,
        cold=_cold(client),
        nodes=client.get("nodes") or (),
    )


def _cold(client: Mapping[str, Any]) -> str:
    warm_up, why = client.get("warm_up"), client.get("warm_up_why")
    if isinstance(warm_up, Mapping) and _count(warm_up.get("ok")) == 0:
        return f"0 of its {warm_up.get('requests')} requests were answered in full"
    return str(why) if why else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
