"""Views of which the page shows one at a time: the first stands in the page, all of them packed beside it, so that a page of
many cells stays small. The page unpacks them by itself (DecompressionStream); it asks nothing of anybody."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Packed:
    """`names` of the views in the list to choose from, `packed` the views, `chosen` the one that stands in the page as `first`.
    `left_out` counts those for which there was no room."""

    names: list[str]
    packed: list[str]
    chosen: int
    first: Markup
    left_out: int = 0


def pack(names: Sequence[str], draw: Callable[[int], Markup], chosen: int, most_bytes: int) -> Packed:
    """Draw each view, pack it and forget it; those after the first that would pass `most_bytes` together are left out."""
    first = draw(chosen)
    shown = _pack(first)
    room = most_bytes - len(shown)
    kept: list[tuple[int, str]] = []
    for at in range(len(names)):
        text = shown if at == chosen else _pack(draw(at))
        room -= 0 if at == chosen else len(text)
        if at == chosen or room >= 0:
            kept.append((at, text))
    places = [at for at, _ in kept]
    return Packed(
        [names[at] for at in places], [text for _, text in kept], places.index(chosen), first, len(names) - len(kept)
    )


def _pack(view: str) -> str:
    return base64.b64encode(zlib.compress(view.encode(), 9)).decode()
