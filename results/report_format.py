"""Numbers in words, the same in HTML, Markdown and terminal. An unknown number is a dash, never 0."""

from __future__ import annotations

UNKNOWN = "–"
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float | None) -> str:
    """Three significant digits, thousands told apart: 0.0123, 0.80, 1.50, 22.8, 228, 49,012."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    text = f"{value:.3g}"
    return f"{value:.2f}" if len(text) < len("0.00") and size > 0.05 else text


def compact(value: float) -> str:
    """As `number`, in at most six characters: 49,012, 123k, 36.9M."""
    for step, unit, limit in ((1e9, "G", 999.5e6), (1e6, "M", 999.5e3), (1e3, "k", 99_999.5)):
        if abs(value) >= limit:
            return f"{number(value / step)}{unit}"
    return number(value)


def count(value: float) -> str:
    """A number that is often whole: 16, 1,024, else with two decimals at most (7.93)."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}".rstrip("0").rstrip(".")


def size(value: float | None) -> str:
    """Bytes in binary units that are named as such: 270 MiB, 1.50 GiB."""
    if value is None:
        return UNKNOWN
    rest, unit = float(value), 0
    # What would be shown as 1,024 is one of the next unit; bytes are shown whole.
    while abs(rest) >= (1023.5 if unit else 1024) and unit < len(_BINARY) - 1:
        rest /= 1024
        unit += 1
    return f"{count(rest) if unit == 0 else number(rest)} {_BINARY[unit]}"


def seconds(value: float | None) -> str:
    """A duration in seconds: 0.42 s, 12.3 s, 4 min 05 s."""
    if value is None:
        return UNKNOWN
    if value >= 120:
        whole = round(value)
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{number(value)} s"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage: 0.25 is 25 %."""
    return UNKNOWN if fraction is None else f"{number(100 * fraction)} %"


def plural(n: int, noun: str, nouns: str | None = None) -> str:
    """`1 cell`, `6 cells`."""
    return f"{n:,} {noun if n == 1 else nouns or noun + 's'}"


def listed(items: list[str], most: int = 4) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 5 more`."""
    if len(items) > most:
        items = [*items[: most - 1], f"{len(items) - most + 1} more"]
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
