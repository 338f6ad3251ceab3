"""Draws prefill and decode with the KV cache growing, from the truth log of a run with the reference engine.

    dyno sweep --engine label=reference,backend=reference,max_num_batched_tokens=128,kv_cache_tokens=1536 \\
        --model smollm2-135m --concurrency 4 --requests 12 --input-len 320 --output-len 40 --out runs/figure
    python benchmarks/kv_figure.py runs/figure docs/prefill-decode.svg

Three bands over one time axis, for the run's first cell: each request's wait, prefill and tokens; what each step
computed; and how much of the KV pool is allocated and holds tokens.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from results.events import Requests, read_requests
from results.store import RunStore
from results.truth import Steps, Tokens, read_steps, read_tokens

WIDTH, LEFT, RIGHT = 900, 96, 16
PREFILL, DECODE, WAIT, HELD, ALLOCATED = "#2f6db3", "#d9772b", "#c9cdd3", "#4f9d69", "#a9cfb5"
INK, FAINT = "#24292f", "#e3e6ea"


@dataclass(slots=True)
class Band:
    """A strip of the picture: maps ns to x, and values from 0 to `top` to y. Collects shapes as SVG text."""

    first: int
    last: int
    y: float
    height: float
    top: float
    shapes: list[str] = field(default_factory=list)

    def x(self, stamp: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (stamp - self.first) / (self.last - self.first)

    def at(self, value: float) -> float:
        return self.y + self.height * (1 - value / self.top)

    def bar(self, start: float, end: float, low: float, high: float, colour: str) -> None:
        x, width = self.x(start), max(self.x(end) - self.x(start), 0.4)
        y, height = self.at(high), self.at(low) - self.at(high)
        self.shapes.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')

    def rule(self, value: float, label: str, dashed: bool = False) -> None:
        y = self.at(value)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        colour = INK if dashed else FAINT
        self.shapes.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{colour}"{dash} fill="none"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        )

    def title(self, text: str) -> None:
        self.shapes.append(f'<text x="{LEFT}" y="{self.y - 8:.1f}" font-weight="600">{text}</text>')


def draw_requests(band: Band, requests: Requests, tokens: Tokens) -> None:
    """A lane a request: until its first token, then a tick for each."""
    order = np.argsort(requests.sent)
    for lane, row in enumerate(order):
        mine = tokens.sampled[tokens.request_id == requests.request_id[row]]
        low, high = band.top - lane - 0.85, band.top - lane - 0.15
        band.bar(requests.sent[row], mine.min(), low, high, PREFILL)
        band.bar(mine.min(), mine.max(), (low + high) / 2 - 0.05, (low + high) / 2 + 0.05, DECODE)
        for stamp in mine:
            band.bar(stamp, stamp, low, high, DECODE)
    band.title(f"{len(order)} requests: sent to first token, then a tick for each token")


def draw_steps(band: Band, steps: Steps) -> None:
    """What each step computed."""
    for start, end, prefill, decodes in zip(steps.start, steps.end, steps.prefill_tokens, steps.decodes, strict=True):
        band.bar(start, end, 0, prefill, PREFILL)
        band.bar(start, end, prefill, prefill + decodes, DECODE)
    for value in (0, band.top):
        band.rule(value, f"{value:,.0f}")
    band.title("tokens computed in each step (its width is its time)")


def draw_kv(band: Band, steps: Steps, block_size: int) -> None:
    """The pool at each step's end."""
    ends = np.append(steps.start[1:], band.last)
    for start, end, blocks, held in zip(steps.start, ends, steps.blocks_allocated, steps.tokens_held, strict=True):
        band.bar(start, end, 0, blocks * block_size, ALLOCATED)
        band.bar(start, end, 0, held, HELD)
    band.rule(0, "0")
    band.rule(band.top, f"{band.top:,.0f}", dashed=True)
    band.title("KV pool in tokens: allocated in blocks, and holding a token (dashed: the whole pool)")


def legend(y: float) -> str:
    """Colours and their words, and the axis' unit."""
    entries = [(PREFILL, "prefill"), (DECODE, "decode"), (HELD, "KV with a token"), (ALLOCATED, "KV allocated")]
    parts, x = [], LEFT
    for colour, words in entries:
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15}" y="{y}">{words}</text>')
        x += 40 + 7 * len(words)
    return "".join(parts)


def axis(band: Band, y: float) -> str:
    """Ticks in seconds from the first request."""
    length = (band.last - band.first) / 1e9
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60) if length / s <= 10)
    parts = []
    for number in range(int(length / step) + 1):
        x = band.x(band.first + number * step * 1e9)
        parts.append(f'<path d="M{x:.1f} {y}v5" stroke="{INK}"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{number * step:g} s</text>')
    return "".join(parts)


def picture(requests: Requests, steps: Steps, tokens: Tokens, block_size: int, what: str) -> str:
    """The whole SVG."""
    first, last = int(requests.sent.min()), int(max(tokens.sampled.max(), steps.end.max()))
    lanes = len(requests.sent)
    bands = [
        Band(first, last, 62, 14 * lanes, lanes),
        Band(first, last, 62 + 14 * lanes + 40, 110, float((steps.prefill_tokens + steps.decodes).max())),
        Band(first, last, 62 + 14 * lanes + 190, 110, float(steps.blocks_total[0] * block_size)),
    ]
    draw_requests(bands[0], requests, tokens)
    draw_steps(bands[1], steps)
    draw_kv(bands[2], steps, block_size)
    bottom = bands[2].y + bands[2].height
    shapes = "\n".join(shape for band in bands for shape in band.shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 52:.0f}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}" role="img" aria-label="{what}">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="600">{what}</text>\n'
        f"{shapes}\n{axis(bands[2], bottom + 4)}\n{legend(bottom + 44)}\n</svg>\n"
    )


def main() -> None:
    """Read a run, write a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run with the reference engine")
    parser.add_argument("out", type=Path, help="SVG to write")
    asked = parser.parse_args()
    store = RunStore.open(asked.run)
    cell = store.cells()[0]
    requests = read_requests(store.cell_dir(cell.id))
    session = store.session_dir(cell.session)
    ids = set(requests.request_id)
    tokens, steps = read_tokens(session), read_steps(session, int(requests.sent.min()))
    if tokens is None or steps is None:
        parser.error(f"{session} has no truth log; only the reference engine writes one")
    tokens = tokens.take(np.array([name in ids for name in tokens.request_id]))
    settings = next(record["settings"] for record in store.sessions() if record["id"] == cell.session)
    budget, block_size = (int(settings[name]["value"]) for name in ("max_num_batched_tokens", "block_size"))
    what = f"{cell.model} on {cell.engine}: {len(requests)} requests, at most {budget} tokens a step"
    asked.out.write_text(picture(requests, steps, tokens, block_size, what))


if __name__ == "__main__":
    main()
