"""Lines of a log as no engine writes them: pieces cut out, doubled, and other text put in their place."""

from __future__ import annotations

from hypothesis import strategies as st

_OTHERS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["-", "1e999", "5.0.5.0", "99", "0000", "-15", "9" * 30, "9" * 5000, "NaN", "\N{ARABIC-INDIC DIGIT FIVE}"]
    ),
    st.integers(-(10**20), 10**20).map(str),
)


def damaged(data: st.DataObject, lines: list[str]) -> list[str]:
    """The same lines with up to six of their pieces (mostly numbers) exchanged."""
    out = list(lines)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(out) - 1))
        line = out[at]
        numbers = [i for i, sign in enumerate(line) if sign.isdigit()]
        start = data.draw(st.sampled_from(numbers) if numbers else st.just(0))
        out[at] = line[:start] + data.draw(_OTHERS) + line[start + data.draw(st.integers(0, 12)) :]
    return out
