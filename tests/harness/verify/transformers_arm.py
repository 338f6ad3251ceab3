"""transformers in this process as an arm of `verify`: the oracle that shares no code with any engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.verify.arm import TOP_OUTPUT, TOP_SCORED, Scores
from results.agreement import Position


class TransformersArm:
    """Greedy decoding by transformers, without batching or generation settings: one forward a token."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32, label: str = "transformers") -> None:
        from transformers import AutoModelForCausalLM

        self.label = label
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        self._dtype = str(dtype)
        # It computes each prompt by itself, so what it said once it would say again.
        self._said: dict[tuple[int, ...], list[Position]] = {}

    @property
    def about(self) -> Mapping[str, Any]:
        return {"backend": "transformers", "dtype": self._dtype}

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], length: int, *, together: bool) -> list[list[Position]]:
        for prompt in map(tuple, prompts):
            if prompt not in self._said:
                self._said[prompt] = self._one(list(prompt), length)
        return [self._said[tuple(prompt)] for prompt in prompts]

    def _one(self, ids: list[int], length: int) -> list[Position]:
        made: list[Position] = []
        cache = None
        fresh = ids
        for _ in range(length):
            said = self._model(torch.tensor([fresh]), past_key_values=cache, use_cache=True)
            cache = said.past_key_values
            made.append(position(said.logits[0, -1], None, TOP_OUTPUT))
            fresh = [made[-1].token]
        return made

    @torch.inference_mode()
    def score(self, texts: Sequence[Sequence[int]]) -> Scores:
        scored = []
        for text in texts:
            logits = self._model(torch.tensor([list(text)])).logits[0]
            scored.append([position(logits[i - 1], text[i], TOP_SCORED) for i in range(1, len(text))])
        return Scores(scored)


def position(logits: torch.Tensor, token: int | None, count: int) -> Position:
    """A position from its logits [vocabulary]: of `token`, or of the likeliest."""
    scores = torch.log_softmax(logits.float(), dim=-1)
    values, ids = scores.topk(count)
    chosen = int(ids[0]) if token is None else token
    return Position(chosen, float(scores[chosen]), dict(zip(ids.tolist(), values.tolist(), strict=True)))
