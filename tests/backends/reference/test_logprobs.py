"""Log probabilities against transformers' own: of the output and of the prompt, whatever the chunks and preemptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backends.reference.build import BuiltEngine
from backends.reference.messages import NewToken, Sampling, Submit
from tests.backends.reference.test_model import TINY, built, random_prompts, save_llama

OUTPUT = 12


def run(engine: BuiltEngine, prompts: list[list[int]], sampling: Sampling) -> list[list[NewToken]]:
    made: list[list[NewToken]] = [[] for _ in prompts]
    for key, prompt in enumerate(prompts):
        engine.engine.submit(Submit(key, f"r{key}", prompt, OUTPUT, sampling))
    while engine.engine.scheduler.has_work:
        for token in engine.engine.step():
            made[token.key].append(token)
    return made


def expected_scores(reference: Any, tokens: list[int]) -> torch.Tensor:
    """Row i scores token i + 1."""
    with torch.inference_mode():
        scores: torch.Tensor = torch.log_softmax(reference(torch.tensor([tokens])).logits[0].float(), dim=-1)
    return scores


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_num_batched_tokens": 7}, {"kv_cache_tokens": 112, "max_model_len": 112, "block_size": 4}],
    ids=str,
)
def test_logprobs_of_prompt_and_output_equal_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    reference = save_llama(tmp_path)
    prompts = random_prompts((1, 2, 40, 45), TINY["vocab_size"])
    engine = built(tmp_path, **settings)
    made = run(engine, prompts, Sampling(temperature=0.9, seed=3, logprobs=3, prompt_logprobs=2))
    assert (engine.engine.scheduler.num_preemptions > 0) == ("kv_cache_tokens" in settings)
    for prompt, tokens in zip(prompts, made, strict=True):
        output = [token.token for token in tokens]
        scores = expected_scores(reference, prompt + output)
        told = tokens[0].prompt_logprobs
        assert told is not None
        assert len(told) == len(prompt) - 1
        assert all(token.prompt_logprobs is None for token in tokens[1:])
        entries = [*told, *(token.logprobs for token in tokens)]
        for row, (entry, token) in enumerate(zip(entries, [*prompt[1:], *output], strict=True)):
            assert entry is not None
            assert entry.token == token
            assert entry.logprob == pytest.approx(scores[row, token].item(), abs=1e-3)
            assert entry.rank == 1 + (scores[row] > scores[row, token]).sum()
            best = scores[row].topk(2 if row < len(told) else 3)
            assert [token for token, _ in entry.top] == best.indices.tolist()
            assert [logprob for _, logprob in entry.top] == pytest.approx(best.values.tolist(), abs=1e-3)


def test_long_prompt_is_scored_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.reference.logprobs._ROWS", 16)
    reference = save_llama(tmp_path)
    (prompt,) = random_prompts((50,), TINY["vocab_size"])
    ((first, *_),) = run(built(tmp_path), [prompt], Sampling(prompt_logprobs=0))
    scores = expected_scores(reference, prompt)
    assert first.prompt_logprobs is not None
    assert [entry.logprob for entry in first.prompt_logprobs] == pytest.approx(
        [scores[row, token].item() for row, token in enumerate(prompt[1:])], abs=1e-3
    )
    assert all(entry.top == () for entry in first.prompt_logprobs)


def test_nothing_is_told_that_was_not_asked_for(tmp_path: Path) -> None:
    save_llama(tmp_path)
    (tokens,) = run(built(tmp_path), [[1, 2, 3]], Sampling())
    assert {(token.logprobs, tuple(token.prompt_logprobs or ())) for token in tokens} == {(None, ())}
