"""Whether engines give the same tokens, in HTML, terminal and Markdown: the class with its words, where they part, doubts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.verify import Prompt, fixed_prompts, judge
from reports.console import print_report
from reports.html import render_html
from reports.markdown import render_markdown
from results.report_data import ReportData, load_report_data
from results.report_verify import same_tokens
from tests.harness.verify.test_observe_and_judge import PROMPTS, ToyArm, compared
from tests.reports.runs import grid, make_run
from tests.reports.test_html import Page
from workloads.base import Vocabulary

HOSTILE = '"><img src=x onerror=alert(1)>|`x`'


def document_of(a: str = "a", b: str = "b", noise: float = 0.05, **defects: Any) -> dict[str, Any]:
    return compared(ToyArm(a, noise=0.0), ToyArm(b, noise=noise, **defects), length=24)


def data_of(tmp_path: Path, document: dict[str, Any] | None, engines: tuple[str, ...] = ("a", "b")) -> ReportData:
    return load_report_data(make_run(tmp_path / "run", grid(engines, (1, 4), (128,)), verify=document))


def printed(data: ReportData) -> str:
    out = io.StringIO()
    print_report(data, Console(file=out, width=80))
    return " ".join(out.getvalue().split())


def section(data: ReportData) -> str:
    return render_html(data).split('<section id="tokens"')[1].split("</section>")[0]


def words(text: str) -> str:
    return " ".join(" ".join(Page(text).texts).split())


def test_a_run_that_was_not_verified_says_that_nobody_asked_and_claims_nothing(tmp_path: Path) -> None:
    data = data_of(tmp_path, None)
    assert data.tokens is None
    for text in (words(render_html(data)), printed(data), render_markdown(data)):
        assert "Same tokens? Nobody asked" in " ".join(text.split())
        assert "tokens near" not in text
    assert "Do they give the same tokens?" not in render_html(data)


def test_the_class_is_told_in_words_with_both_counts_and_stands_beside_the_ratio(tmp_path: Path) -> None:
    document = document_of(noise=0.02, dtype="bfloat16")
    (pair,) = document["pairs"]
    assert pair["class"] == "near-tie", pair["why"]
    data = data_of(tmp_path, document)
    equal = sum(row["match"] for row in pair["prompts"])
    shares = f"{equal} of {len(pair['prompts'])} outputs equal alone"
    sentence = next(s for s in data.answer if s.text.startswith("Same tokens?"))
    assert "Near-tie: they part only where two candidates are as good as level" in sentence.text
    assert shares in sentence.text
    assert not sentence.caution
    ratio = next(s for s in data.answer if "times the output tokens/s" in s.text)
    assert ", tokens near-tie" in ratio.text
    assert sentence.text in printed(data)
    assert sentence.text in render_markdown(data)
    shown = section(data)
    assert 'class="t-good"' in shown
    assert pair["why"] in words(shown)


def test_the_section_follows_the_audit_and_lists_where_outputs_part(tmp_path: Path) -> None:
    document = document_of(noise=0.02, dtype="bfloat16")
    data = data_of(tmp_path, document)
    page = Page(render_html(data))
    ids = [a.get("id") for tag, a in page.elements if tag == "section"]
    assert ids[ids.index("tokens") - 1] == "alike"
    parted = [row for row in document["pairs"][0]["prompts"] if not row["match"]]
    assert parted
    assert data.tokens
    first = data.tokens.pairs[0].partings[0]
    assert (first.sent, first.token) == ("both ways", str(parted[0]["first_divergence"]))
    assert first.gap.endswith(" nats")
    assert first.means == "rounding decides"
    said = words(section(data))
    assert first.gap in said
    assert "the same favourite at" in said
    assert f"6 prompts of {min(len(p.ids) for p in PROMPTS)} to" in said
    assert len(data.tokens.pairs[0].partings) == len(parted)


def test_more_partings_than_are_shown_are_counted(tmp_path: Path) -> None:
    document = document_of(other_model=True)
    (pair,) = document["pairs"]
    for row in pair["batched"]["prompts"]:
        row["first_divergence"] += 1  # as if batching had moved each
    apart = sum(not row["match"] for row in [*pair["prompts"], *pair["batched"]["prompts"]])
    data = data_of(tmp_path, document)
    assert data.tokens
    (shown,) = data.tokens.pairs
    assert len(shown.partings) + shown.more_partings == apart > len(shown.partings)
    assert f"{shown.more_partings} further places" in words(section(data))


def test_engines_that_do_not_compute_the_same_are_a_caution(tmp_path: Path) -> None:
    data = data_of(tmp_path, document_of(other_model=True))
    sentence = next(s for s in data.answer if s.text.startswith("Same tokens?"))
    assert sentence.caution
    assert "Different: they do not compute the same model" in sentence.text
    assert 'class="t-bad"' in section(data)
    assert 'class="verdict caution"' in section(data)


def test_fixed_text_that_could_not_be_scored_says_why_not(tmp_path: Path) -> None:
    data = data_of(tmp_path, document_of(scores=False))
    assert "not compared: b tells nothing of a prompt" in words(section(data))


def test_an_engine_that_could_not_be_asked_has_no_class_but_a_reason(tmp_path: Path) -> None:
    document = json.loads(json.dumps(judge([], PROMPTS, 24, {"a": "Too long for it.", "b": "no other engine"})))
    data = data_of(tmp_path, document)
    sentence = next(s for s in data.answer if s.text.startswith("Same tokens?"))
    assert "a and b: not compared (a: Too long for it.; b: no other engine)" in sentence.text
    assert sentence.caution
    shown = section(data)
    assert 'class="t-open"' in shown
    assert "not compared" in words(shown)


def test_of_three_engines_every_ratio_has_its_own_class(tmp_path: Path) -> None:
    document = compared(
        ToyArm("a"), ToyArm("b", noise=0.02, dtype="bfloat16"), ToyArm("c", other_model=True), length=24
    )
    data = data_of(tmp_path, document, ("a", "b", "c"))
    ratio = next(s for s in data.answer if s.text.startswith("Times the output tokens/s of a"))
    assert "(tokens near-tie)" in ratio.text
    assert "(tokens different)" in ratio.text
    assert ratio.text.index("near-tie") < ratio.text.index("different")
    assert section(data).count("<tr class=") == 3


def test_pairs_of_other_engines_than_the_runs_are_left_out(tmp_path: Path) -> None:
    assert data_of(tmp_path, document_of(b="stranger")).tokens is None


def test_an_engine_verified_as_another_than_was_measured_is_doubted(tmp_path: Path) -> None:
    document = document_of(b="a")
    document["engines"][1]["label"] = document["pairs"][0]["b"] = "b"
    document["engines"][1]["fingerprint"] = {"settings": {"block_size": 32}, "versions": {"x": "1"}}
    make_run(tmp_path, [], verify=document)
    session = {"id": "s", "engine": "b", "fingerprint": {"settings": {"block_size": 16}, "versions": {"x": "1"}}}
    found = same_tokens(tmp_path, ["a", "b"], [session], [{"session": "s"}])
    assert found
    assert found.caution
    assert "block_size 16, then 32" in found.doubts[0]
    alike = same_tokens(tmp_path, ["a", "b"], [session], [{"session": "another"}])
    assert alike
    assert not alike.doubts


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": 99}', '{"schema": 1}', '{"schema": 1, "prompts": [{}], "pairs": [], "output_len": 1, "engines": []}'],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_said_and_costs_no_report(tmp_path: Path, text: str) -> None:
    store = make_run(tmp_path / "run", grid(("a", "b"), (1,), (128,)))
    (store.path / "verify.json").write_text(text)
    data = load_report_data(store)
    assert "verify.json" in words(section(data))
    assert "Same tokens? It is not known." in printed(data)


def test_no_name_in_it_becomes_markup(tmp_path: Path) -> None:
    document = document_of(a=HOSTILE)
    document["pairs"][0]["why"] = document["prompts"][0]["text"] = HOSTILE
    data = data_of(tmp_path, document, (HOSTILE, "b"))
    assert "<img" not in section(data)
    assert HOSTILE in " ".join(Page(section(data)).texts)
    assert "<img" not in render_markdown(data).split("Done with")[0]


def test_texts_are_quoted_and_random_ids_counted(tmp_path: Path) -> None:
    prompts = [Prompt((5, 6, 7), "Hello"), *fixed_prompts(2, 0, Vocabulary(50, frozenset()), None)]
    document = compared(ToyArm("a"), ToyArm("b", other_model=True), prompts=prompts, length=24)
    said = words(section(data_of(tmp_path, document)))
    assert "'Hello'" in said
    assert "4 random ids" in said
