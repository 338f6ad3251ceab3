"""Reading fields of a JSON body, each checked, with errors in OpenAI's shape that name the field."""

from __future__ import annotations

import math
from typing import Any

import orjson


class ApiError(Exception):
    """An answer other than 200, in OpenAI's shape."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param

    def body(self) -> bytes:
        """The error object as JSON."""
        kind = {400: "BadRequestError", 404: "NotFoundError"}.get(self.status, "InternalServerError")
        return orjson.dumps(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}
        )


class Fields:
    """A JSON object's fields. null is the same as absent; ApiError 400 says what a field must be."""

    def __init__(self, plain: dict[str, Any]) -> None:
        self.plain = plain

    @property
    def has_any(self) -> bool:
        """True when there is a field."""
        return bool(self.plain)

    def get(self, name: str) -> Any:
        """The value as it is."""
        return self.plain.get(name)

    def flag(self, name: str) -> bool:
        """true or false; false when absent."""
        value = self.plain.get(name)
        if value is not None and not isinstance(value, bool):
            raise ApiError(400, f"{name} must be true or false, not {value!r}.", name)
        return bool(value)

    def whole_or_none(self, name: str, least: int | None = None, most: int | None = None) -> int | None:
        """A whole number within the bounds; None when absent."""
        value = self.plain.get(name)
        if value is None:
            return None
        wrong = isinstance(value, bool) or not isinstance(value, int)
        if wrong or (least is not None and value < least) or (most is not None and value > most):
            bounds = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
            raise ApiError(400, f"{name} must be a whole number{bounds}, not {value!r}.", name)
        return int(value)

    def whole(self, name: str, default: int, least: int) -> int:
        """A whole number, or the default when absent."""
        value = self.whole_or_none(name, least)
        return default if value is None else value

    def number(self, name: str, default: float, least: float, most: float, above: bool = False) -> float:
        """A number within the bounds, or the default when absent; with `above` it must be more than `least`."""
        value = self.plain.get(name)
        if value is None:
            return default
        wrong = isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
        if wrong or not least <= value <= most or (above and value == least):
            bounds = f"above {least} up to {most}" if above else f"from {least} to {most}"
            raise ApiError(400, f"{name} must be a number {bounds}, not {value!r}.", name)
        return float(value)

    def object(self, name: str) -> Fields:
        """An object; an empty one when absent."""
        value = self.plain.get(name)
        if value is not None and not isinstance(value, dict):
            raise ApiError(400, f"{name} must be an object, not {value!r}.", name)
        return Fields(value or {})
