"""What a search that is completed later goes on from."""

from __future__ import annotations

from pathlib import Path

from harness.tune.ledger import Ledger, Trial


def test_only_the_defaults_are_tried_again_where_they_failed(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, {})
    trials = [Trial("e", {}, "the defaults"), Trial("e", {"max_num_seqs": 4}, "why")]
    ledger.add(trials)
    for trial in trials:
        ledger.fail(trial, {"class": "crash", "words": "it died", "evidence": "", "advice": ""})
    again = list(Ledger.open(tmp_path, {}).trials())
    assert [trial.failure and trial.failure["words"] for trial in again] == [None, "it died"]
