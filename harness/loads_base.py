"""What all loads have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

# More requests than this in one cell are a mistake: they are planned ahead.
MOST_REQUESTS = 2_000_000
FEWEST_REQUESTS = 16


class LoadBase(BaseModel):
    """What all loads have: where they end."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    duration_s: float | None = Field(None, gt=0, le=7 * 24 * 3600)

    @model_serializer(mode="wrap")
    def _without_nulls(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """An option that is not given leaves no trace, so that a new one renames no cell."""
        given = {name: value for name, value in handler(self).items() if value is not None}
        return {"mode": given.pop("mode"), **given}

    def arrivals(self, seed: int) -> list[int] | None:
        """When requests are to be sent, in ns after the start; None where the server's answers (or the workload) decide."""
        return None
