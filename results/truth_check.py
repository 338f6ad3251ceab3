"""Whether the engine's step log holds all that the client got: one that was cut off must not be believed."""

from __future__ import annotations

import numpy as np

from results.events import Ints
from results.scope import ScopeData
from results.truth import Steps

# Of what should be there this much may be missing: the last step may end after the client saw its tokens.
_MARGIN_SHARE = 0.01
_MARGIN_STEPS = 2


def decodes_needed(delivered: Ints) -> float:
    """Tokens that only a decode can have made: all but the first of each request, which the prefill makes."""
    return float((delivered - 1)[delivered > 0].sum())


def missing_steps(data: ScopeData, steps: Steps | None) -> str | None:
    """What is wrong with `steps`, those of the cell (None: it has none although the engine keeps a log), or None.

    Only a lack tells: an engine may well decode more than arrives, for requests that fail or for rows it pads.
    """
    needed = decodes_needed(data.delivered)
    if needed <= 0:
        return None
    if steps is None or not len(steps):
        return (
            f"the step log has no step of this cell, in which {needed:.0f} tokens after the first ones were delivered"
        )
    # A preempted request is prefilled again, and that makes its next token without a decode.
    found = float(steps.decodes.sum() + np.maximum(steps.preempted, 0).sum())
    if needed - found <= max(_MARGIN_STEPS * data.width, _MARGIN_SHARE * needed):
        return None
    return f"the step log holds {found:.0f} decodes; {needed:.0f} tokens after the first ones were delivered"
