"""The table of figures: what each shows, of which measures, and what to look for in it. A new figure is a row."""

from __future__ import annotations

from dataclasses import dataclass

from reports.scales import Axis

REALISED = Axis("realised batch (requests running together)", log=2)


@dataclass(frozen=True, slots=True)
class Layer:
    """One measure drawn in a panel: `line` (dashed as its colour is), `ghost` (thin, dotted) or `points`."""

    measure: str
    style: str = "line"
    words: str = ""


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """One plot: its layers share an axis. `guides` are measures drawn as level lines."""

    title: str
    layers: tuple[Layer, ...]
    guides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """What a figure shows and what to look for in it. Panels share both axes. `label_points` writes the load beside each;
    `by_engine` gives each engine a panel of its own, for marks that would lie on top of each other. A line of fewer than
    `needs` points cannot show what `reading` tells to look for (`shows`). `front` lays a band under the points of a workload that
    no other beats on both axes. `{load}` in a title is the run's kind of load. On a phone a figure of `detail` is shut until asked for.
    """

    id: str
    title: str
    reading: str
    x: str
    x_axis: Axis
    y_axis: Axis
    panels: tuple[PanelSpec, ...]
    label_points: bool = False
    wide: bool = False
    by_engine: bool = False
    needs: int = 2
    shows: str = "how it moves with load"
    front: bool = False
    detail: bool = False


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "throughput",
        "Output throughput against {load}, for each input length",
        "Look for the bend: left of it the next request is nearly free, because the weights are read once for all requests; "
        "right of it each request is paid in full.",
        "batch_realised",
        REALISED,
        Axis("output tokens/s"),
        (PanelSpec("", (Layer("output_tokens_per_s"),)),),
        wide=True,
        needs=3,
        shows="a bend",
    ),
    FigureSpec(
        "tradeoff",
        "Throughput of all against the speed each user sees",
        "Up and to the right is better. Each step along a line trades one user's speed for the speed of all; labels give the load.",
        "user_tokens_per_s",
        Axis("tokens/s each user sees (1000 / TPOT p50)"),
        Axis("output tokens/s, all users"),
        (PanelSpec("", (Layer("output_tokens_per_s"),)),),
        label_points=True,
        shows="a trade",
        front=True,
    ),
    FigureSpec(
        "tpot",
        "Time per output token against {load}",
        "Look for a flat start: as long as the line is level, more users cost each of them nothing.",
        "batch_realised",
        REALISED,
        Axis("TPOT p50, ms"),
        (PanelSpec("", (Layer("tpot_ms_p50"),)),),
    ),
    FigureSpec(
        "tradeoff-gpu",
        "The same for each GPU",
        "What a GPU yields against what a user gets: here engines on different numbers of GPUs can be held against each other.",
        "user_tokens_per_s",
        Axis("tokens/s each user sees (1000 / TPOT p50)"),
        Axis("output tokens/s of each GPU"),
        (PanelSpec("", (Layer("output_tokens_per_s_per_gpu"),)),),
        label_points=True,
        wide=True,
        shows="a trade",
        front=True,
    ),
    FigureSpec(
        "ttft",
        "Time to first token against {load}",
        "Look for growth in proportion to batch times input: prompts then wait for each other. A p90 far above p50 means a queue.",
        "batch_realised",
        REALISED,
        Axis("TTFT, ms"),
        (PanelSpec("p50", (Layer("ttft_ms_p50"),)), PanelSpec("p90", (Layer("ttft_ms_p90"),))),
        wide=True,
    ),
    FigureSpec(
        "phases",
        "Prefill and decode rates against {load}",
        "Compare the panels: prefill fills the arithmetic units with a single prompt and gains little from a batch; decode "
        "reads all weights for each step and lives from sharing that among requests.",
        "batch_realised",
        REALISED,
        Axis("tokens/s"),
        (
            PanelSpec("Prefill", (Layer("prefill_tokens_per_s"),)),
            PanelSpec("Decode", (Layer("decode_tokens_per_s"),)),
        ),
        wide=True,
        detail=True,
    ),
    FigureSpec(
        "memory",
        "KV cache: what the formula predicts and what the engine holds",
        "Look for marks on their dotted line: the formula then explains the memory. Above it, blocks may be reserved or not returned. "
        "Where a line passes the weights, the cache is the larger reader.",
        "batch_realised",
        REALISED,
        Axis("bytes, largest during the cell", log=2, binary=True),
        (
            PanelSpec(
                "",
                (
                    Layer("kv_bytes_predicted", "ghost", "predicted by the formula"),
                    Layer("kv_bytes_engine", "points", "held, as the engine says"),
                ),
                ("weight_bytes", "kv_pool_bytes"),
            ),
        ),
        wide=True,
        by_engine=True,
        needs=1,
        detail=True,
    ),
)
