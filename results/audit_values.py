"""How a row of the audit reads its value from what an engine tells, and how values are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from results.arithmetic import DTYPE_BITS, dtype_name
from results.audit_facts import ASKED, COMPUTED, ENDPOINT, EngineFacts, Told
from results.errors import UsageError

_OFF = ("", "none", "null", "off", "false", "no", "disabled")


def off(value: Any) -> Any:
    """The many ways of saying that something is not used, as False; True as "on"; else the text."""
    if not value or (isinstance(value, str) and value.strip().lower() in _OFF):
        return False
    return "on" if value is True else str(value).strip().lower()


def one_dtype(value: Any) -> str:
    """One spelling of a dtype; a name that is not known here stays as it is."""
    try:
        return dtype_name(str(value))
    except UsageError:
        return str(value).strip().lower()


def bits(value: Any) -> float | None:
    found = DTYPE_BITS.get(one_dtype(value))
    return None if found is None else float(found)


def _concrete(told: Told) -> Told:
    """`auto` is no value: the engine chose, and did not say what."""
    return Told() if isinstance(told.value, str) and told.value.strip().lower() == "auto" else told


def dtype(engine: EngineFacts) -> Told:
    return _concrete(engine.told("dtype"))


def kv_dtype(engine: EngineFacts) -> Told:
    """`auto` follows the dtype of the model unless the checkpoint is quantised."""
    told, own = engine.told("kv_dtype", "kv_cache_dtype"), dtype(engine)
    quantised = engine.told("quantisation", "quantization")
    if told.known and told.value == "auto" and own.known and quantised.known and off(quantised.value) is False:
        return Told(own.value, COMPUTED)
    return _concrete(told)


def kv_tokens(engine: EngineFacts) -> Told:
    return _times(engine, "kv_cache_tokens", "kv_cache_bytes", lambda size, each: size // each)


def kv_bytes(engine: EngineFacts) -> Told:
    return _times(engine, "kv_cache_bytes", "kv_cache_tokens", lambda tokens, each: tokens * each)


def _times(engine: EngineFacts, wanted: str, other: str, work_out: Callable[[int, int], int]) -> Told:
    """A KV size as read back; else worked out from the other one and the bytes of a token; else as it was asked."""
    told, source, each = engine.told(wanted), engine.told(other), engine.told("kv_bytes_per_token")
    read_back = told.known and told.source != ASKED
    if not read_back and source.known and isinstance(source.value, int) and isinstance(each.value, int) and each.value:
        return Told(work_out(source.value, each.value), ASKED if source.source == ASKED else COMPUTED)
    return told


def versions(engine: EngineFacts) -> Told:
    return Told(dict(engine.versions), ENDPOINT) if engine.versions else Told()


def lower(value: Any) -> str:
    return str(value).strip().lower()


def sizes(value: Any) -> Any:
    """A list of whole numbers in one order; anything else as it is."""
    return sorted(set(value)) if whole_numbers(value) else value


def whole_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(n, int) for n in value)


def amount(value: Any) -> float | None:
    """Where a value stands in the order of its kind: numbers as they are, False before True, lists by their largest."""
    if whole_numbers(value):
        return float(max(value))
    return float(value) if isinstance(value, int | float) else None


def unordered(value: Any) -> None:
    """For names: none is more than another."""
