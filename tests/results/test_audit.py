"""Are engines set alike: what is the same, what differs, what is not told, and whether it bears on the measured cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.audit import Audit, AuditResult, audit, audit_run
from results.audit_facts import EngineFacts, Told, demand
from results.audit_rows import AUDIT_ROWS
from results.audit_rules import NO, UNSURE, YES, Case
from results.files import to_json
from results.report_audit import audit_lines, kv_sentence, short_lines
from results.summary import build_summary
from tests.results.builders import synthetic_run

COMPLETE: dict[str, Any] = {
    "dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "quantisation": "none",
    "max_model_len": 8192,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "block_size": 16,
    "kv_cache_tokens": 100_000,
    "kv_bytes_per_token": 1000,
    "prefix_caching": False,
    "chunked_prefill": True,
    "cuda_graphs": False,
    "scheduler_policy": "fcfs",
    "sampling_source": "request",
    "speculative_decoding": False,
    "tensor_parallel": 1,
}


def engine(label: str, /, *, without: tuple[str, ...] = (), **changes: Any) -> EngineFacts:
    """An engine that tells everything; `changes` replace settings, or what else is known of it."""
    other = {k: changes.pop(k) for k in ("asked", "raw", "attached", "tuned", "versions") if k in changes}
    values = {k: v for k, v in {**COMPLETE, **changes}.items() if k not in without}
    told = {k: v if isinstance(v, Told) else Told(v, "endpoint") for k, v in values.items()}
    return EngineFacts(label, "any", told, **{"versions": {"torch": "2.13.0"}, **other})


def cells(
    together: int = 16, given: int = 128, wanted: int = 64, mode: str = "batch", engines: str = "ab", **server: Any
) -> list[dict[str, Any]]:
    return [
        {
            "engine": name,
            "verdict": "VALID",
            "workload": {"type": "random", "input_len": {"tokens": given}, "output_len": {"low": 1, "high": wanted}},
            "load": {"mode": mode, "value": together},
            "server": server,
            "arithmetic": {"kv_tokens_predicted": together * (given + wanted) // 2},
        }
        for name in engines
    ]


def audited(a: EngineFacts, b: EngineFacts, *more: EngineFacts, run: list[dict[str, Any]] | None = None) -> Audit:
    found = audit([a, b, *more], cells() if run is None else run)
    assert found is not None
    return found


def row(found: Audit, name: str) -> AuditResult:
    return next(r for r in found.rows if r.id == name)


def one(name: str, first: Any, second: Any, run: list[dict[str, Any]] | None = None, **both: Any) -> AuditResult:
    return row(audited(engine("a", **{**both, name: first}), engine("b", **{**both, name: second}), run=run), name)


def test_engines_that_tell_the_same_in_everything_are_set_alike() -> None:
    found = audited(engine("a"), engine("b"))
    assert {r.status for r in found.rows} == {"same"}
    assert {r.binding for r in found.rows} == {None}
    assert found.alike
    assert found.verdict == "Yes: in all that bears on these cells both engines are set alike."


@pytest.mark.parametrize(
    "name", [r.id for r in AUDIT_ROWS if not r.optional and r.id not in ("kv_cache_bytes", "versions")]
)
def test_what_one_side_does_not_tell_is_unknown_and_never_the_same(name: str) -> None:
    found = row(audited(engine("a"), engine("b", without=(name,))), name)
    assert found.status == "unknown"
    assert [v.source for v in found.values] == ["endpoint", "unknown"]
    neither = row(audited(engine("a", without=(name,)), engine("b", without=(name,))), name)
    assert neither.status == "unknown"


@given(st.lists(st.one_of(st.none(), st.integers(1, 3)), min_size=2, max_size=4))
def test_same_needs_every_engine_and_one_differing_pair_is_enough_for_differs(values: list[int | None]) -> None:
    engines = [engine(str(i), max_num_seqs=Told(v, "log") if v else Told()) for i, v in enumerate(values)]
    told = {v for v in values if v is not None}
    expected = "differs" if len(told) > 1 else "unknown" if None in values else "same"
    assert row(audited(*engines), "max_num_seqs").status == expected


def test_a_limit_that_no_cell_reached_does_not_bear_on_them() -> None:
    assert one("max_num_seqs", 256, 1024, cells(16)).binding == NO
    assert one("max_num_seqs", 256, 1024, cells(256)).binding == NO
    bears = one("max_num_seqs", 256, 1024, cells(257))
    assert bears.binding == YES
    assert bears.why == "up to 257 requests together against a limit of 256"


def test_a_limit_that_is_not_told_or_a_load_without_bound_leaves_it_open() -> None:
    silent = row(audited(engine("a"), engine("b", without=("max_num_seqs",))), "max_num_seqs")
    assert silent.binding == UNSURE
    rate = cells()
    rate[0]["load"] = {"mode": "rate", "value": 4.0}
    assert one("max_num_seqs", 256, 1024, rate).binding == UNSURE
    assert one("max_num_seqs", 256, 1024, []).binding == UNSURE


@pytest.mark.parametrize(
    ("together", "given", "binding"), [(16, 128, NO), (16, 129, YES), (17, 128, YES), (1, 2048, NO)]
)
def test_tokens_a_step_bear_where_the_prompts_of_a_batch_exceed_them(together: int, given: int, binding: str) -> None:
    assert one("max_num_batched_tokens", 2048, 8192, cells(together, given)).binding == binding


def test_kv_room_bears_only_where_the_smallest_could_fill() -> None:
    # 16 x ceil(192 / 16) x 16 = 3072 tokens in whole blocks.
    assert one("kv_cache_tokens", 3072, 100_000).binding == NO
    assert one("kv_cache_tokens", 3071, 100_000).binding == NO  # 1536 were seen at the peak
    assert one("kv_cache_tokens", 1800, 100_000).binding == YES
    assert one("kv_cache_tokens", 50_000, 100_000, cells(preemptions=3)).binding == YES
    assert one("kv_cache_tokens", 50_000, 100_000, cells(preemptions=0)).binding == NO


def test_without_a_measured_peak_the_bound_decides_in_whole_blocks() -> None:
    run = [{**c, "arithmetic": {}} for c in cells(16, 120, 60)]
    assert one("kv_cache_tokens", 3072, 100_000, run).binding == NO
    assert one("kv_cache_tokens", 3071, 100_000, run).binding == YES
    # A queue for seats is none for memory.
    assert one("kv_cache_tokens", 3072, 100_000, run, max_num_seqs=8).binding == NO


def test_kv_is_told_in_tokens_and_in_bytes() -> None:
    found = audited(engine("a"), engine("b", kv_dtype="fp8", kv_bytes_per_token=500))
    assert found.equal_kv == {"tokens": True, "bytes": False}
    assert [(v.value, v.source) for v in row(found, "kv_cache_bytes").values] == [
        (100_000_000, "computed"),
        (50_000_000, "computed"),
    ]
    assert kv_sentence(found).startswith(
        "The KV caches are equal in tokens, and not equal in bytes. 100,000 tokens take"
    )
    other = audited(engine("a"), engine("b", without=("kv_cache_tokens",), kv_cache_bytes=100_000_000))
    assert other.equal_kv == {"tokens": True, "bytes": True}
    assert row(other, "kv_cache_tokens").values[1].value == 100_000
    unknown = audited(engine("a"), engine("b", without=("kv_cache_tokens",)))
    assert unknown.equal_kv == {"tokens": None, "bytes": None}


def test_caches_that_differ_by_a_few_blocks_are_the_same() -> None:
    assert one("kv_cache_tokens", 100_000, 99_984).status == "same"
    assert one("kv_cache_tokens", 100_000, 98_000).status == "differs"


def test_prefix_caching_bears_where_prompts_can_repeat() -> None:
    assert one("prefix_caching", True, False).binding == NO
    assert one("prefix_caching", True, False, cells(prefix_hits=64)).binding == YES
    shared = [{**c, "workload": {**c["workload"], "type": "conversations"}} for c in cells()]
    assert one("prefix_caching", True, False, shared).binding == UNSURE


def test_promised_memory_bears_unless_all_requests_at_their_longest_fit() -> None:
    for name, values in (("admission", ("on-demand", "reserve-max")), ("kv_layout", ("paged", "contiguous"))):
        assert one(name, *values, cells(12), kv_cache_tokens=12 * 8192).binding == NO
        assert one(name, *values, cells(12), kv_cache_tokens=12 * 8192 - 1).binding == YES
        assert one(name, *values, cells(12), kv_cache_tokens=12 * 8192, max_model_len=8193).binding == YES
        assert row(audited(engine("a", **{name: values[0]}), engine("b")), name).status == "unknown"
        assert name not in {r.id for r in audited(engine("a"), engine("b")).rows}


def test_static_batching_bears_where_requests_arrive_while_others_decode() -> None:
    assert one("batching", "continuous", "static-drop", cells(8, mode="concurrency")).binding == YES
    assert one("batching", "continuous", "static-drop", cells(8)).binding == UNSURE
    assert one("batching", "continuous", "static-drop", cells(1)).binding == NO


def test_no_kv_cache_always_bears_and_says_who_computes_anew() -> None:
    found = one("kv_cache", True, False)
    assert found.binding == YES
    assert found.means.startswith("b computes every sequence from its first token in each step; a only")


def test_chunked_prefill_bears_where_a_step_can_mix() -> None:
    assert one("chunked_prefill", True, False, cells(16, 128)).binding == NO
    assert one("chunked_prefill", True, False, cells(16, 1024)).binding == YES
    assert one("chunked_prefill", True, False, cells(2, 128, mode="concurrency")).binding == YES
    assert one("chunked_prefill", True, False, cells(1, 128, mode="concurrency")).binding == NO


def test_graphs_are_held_against_the_batches_that_ran() -> None:
    on = {"cuda_graphs": True, "device": "cuda"}
    assert one("cuda_graph_sizes", [1, 2, 4, 8, 16], [1, 8, 512], cells(16), **on).binding == NO
    beyond = one("cuda_graph_sizes", [1, 2, 4, 8, 16], [1, 8, 512], cells(17), **on)
    assert (beyond.binding, beyond.means) == (YES, "b has graphs for larger batches than a.")
    # What was offered is an upper bound; what ran together decides where it is known.
    few, many = ([{**cell, "batch": {"realised": ran}} for cell in cells(17)] for ran in (9.5, 16.5))
    assert one("cuda_graph_sizes", [1, 2, 4, 8, 16], [1, 8, 512], few, **on).binding == UNSURE
    assert one("cuda_graph_sizes", [1, 2, 4, 8, 16], [1, 8, 512], many, **on).binding == YES
    bare = one("cuda_graph_sizes", [1, 2, 4, 8, 16], [1, 512], cells(3), **on, cuda_graph_padding=False)
    assert (bare.binding, bare.why) == (YES, "no graph for batch 3 in an engine that does not pad")
    assert one("cuda_graphs", True, False, device="cuda").binding == YES
    assert one("cuda_graphs", True, False, device="cpu").binding == NO


def test_the_scheduler_bears_only_where_requests_wait() -> None:
    assert one("scheduler_policy", "fcfs", "priority").binding == NO
    assert one("scheduler_policy", "fcfs", "priority", cells(300)).binding == YES
    assert one("scheduler_policy", "fcfs", "priority", cells(preemptions=1)).binding == YES
    unknown = engine("b", without=("max_num_seqs",), scheduler_policy="priority")
    assert row(audited(engine("a"), unknown), "scheduler_policy").binding == UNSURE


def test_a_difference_says_which_engine_has_what() -> None:
    assert one("dtype", "float32", "bf16").means.startswith("b reads fewer bytes in each step than a")
    assert one("prefix_caching", True, False).means.startswith("a answers a repeated beginning")
    # Two formats of one size have no direction; a label cannot be taken for a place in the sentence.
    assert one("dtype", "float16", "bfloat16").means.startswith("The engines compute in different number formats")
    odd = row(audited(engine("{less}", block_size=32), engine("b")), "block_size")
    assert odd.means.startswith("{less} wastes more of the cache at the end of each request than b")


def test_spellings_of_one_value_are_the_same() -> None:
    assert one("dtype", "torch.bfloat16", "bf16").status == "same"
    assert one("speculative_decoding", False, "None").status == "same"
    assert one("quantisation", "", "none").status == "same"
    assert one("cuda_graph_sizes", [4, 2, 1], (1, 2, 4)).status == "same"


def test_auto_is_no_value_unless_it_follows_from_what_is_told() -> None:
    assert one("dtype", "auto", "auto").status == "unknown"
    follows = one("kv_dtype", "auto", "bfloat16")
    assert (follows.status, follows.values[0].source) == ("same", "computed")
    assert one("kv_dtype", "auto", "bfloat16", quantisation="fp8").status == "unknown"


def test_only_asked_is_marked_and_metrics_are_better_than_it() -> None:
    found = row(audited(engine("a", max_num_seqs=Told(256, "asked")), engine("b")), "max_num_seqs")
    assert (found.status, found.only_asked) == ("same", True)
    session = {"engine": "a", "settings": {"kv_cache_tokens": {"value": 5, "source": "asked"}}}
    told = audit_run({"engines": [{"label": "a"}, {"label": "b"}]}, [session], cells(kv_capacity_tokens=7), {})
    assert told is not None
    assert [(v.value, v.source) for v in row(told, "kv_cache_tokens").values] == [(7, "endpoint"), (7, "endpoint")]


def test_versions_are_compared_where_two_engines_name_the_same_part() -> None:
    def status(a: Mapping[str, str], b: Mapping[str, str]) -> str:
        return row(audited(engine("a", versions=a), engine("b", versions=b)), "versions").status

    assert status({"torch": "2.13", "vllm": "0.32"}, {"torch": "2.13", "python": "3.11"}) == "same"
    assert status({"torch": "2.13"}, {"torch": "2.12"}) == "differs"
    assert status({"vllm": "0.32"}, {"torch": "2.13"}) == "unknown"
    assert status({}, {"torch": "2.13"}) == "unknown"
    assert status({"python": "3.11"}, {"python": "3.12"}) == "unknown"


def test_nothing_asked_is_own_defaults_however_they_differ() -> None:
    found = audited(engine("a"), engine("b", block_size=32, asked={"seed": 1}))
    assert [e.kind for e in found.engines] == ["own_defaults", "own_defaults"]
    assert found.label == "own defaults"
    assert found.verdict.startswith("No: they differ in KV block size")


def test_settings_asked_until_all_that_bears_is_the_same_make_equalised() -> None:
    found = audited(engine("a"), engine("b", max_num_seqs=512, asked={"block_size": 16}))
    assert [e.kind for e in found.engines] == ["own_defaults", "equalised"]
    assert found.label == "equalised"
    assert found.pairs[0].differs == []


def test_settings_asked_that_differ_are_set_by_hand() -> None:
    found = audited(engine("a", asked={"block_size": 16}), engine("b", block_size=32, raw=("--block-size", "32")))
    assert [e.kind for e in found.engines] == ["set_by_hand", "set_by_hand"]
    assert found.label == "set by hand"
    against = audited(engine("a"), engine("b", block_size=32, asked={"block_size": 32}))
    assert against.label == "a (own defaults) against b (set by hand)"


def test_only_what_a_search_has_set_is_tuned() -> None:
    searched = engine("b", block_size=32, asked={"block_size": 32}, tuned=True)
    assert audited(engine("a"), searched).label == "a (own defaults) against b (tuned)"
    by_hand = engine("a", block_size=8, asked={"block_size": 8})
    assert audited(by_hand, searched).label == "a (set by hand) against b (tuned)"


@pytest.mark.parametrize(
    ("named", "manifest", "kinds"),
    [
        (("a", "b"), {}, ["own_defaults", "set_by_hand"]),
        (("a", "b"), {"tuned": ["b"]}, ["own_defaults", "tuned"]),
        (("a",), {}, ["own_defaults", "tuned"]),  # a trial: the experiment of a search names only where it began
    ],
)
def test_the_manifest_of_a_search_tells_which_engines_it_set(
    named: tuple[str, ...], manifest: Mapping[str, Any], kinds: list[str]
) -> None:
    sessions = [
        {"engine": e, "asked": asked, "settings": {"max_num_seqs": {"value": v, "source": "endpoint"}}}
        for e, v, asked in (("a", 8, {}), ("b", 4, {"max_num_seqs": 4}))
    ]
    found = audit_run({"engines": [{"label": e} for e in named]}, sessions, cells(), manifest)
    assert found is not None
    assert [e.kind for e in found.engines] == kinds


def test_likeness_is_not_claimed_where_a_setting_that_bears_is_not_told() -> None:
    found = audited(engine("a"), engine("b", without=("dtype",), asked={"block_size": 16}))
    assert [e.kind for e in found.engines] == ["own_defaults", "unproven"]
    assert found.label == "not shown to be alike"
    assert found.verdict.startswith("Not known:")
    assert not found.alike


def test_a_server_that_somebody_else_set_is_not_taken_for_its_defaults() -> None:
    found = audited(engine("a"), engine("b", block_size=32, attached=True))
    assert found.label == "a (own defaults) against b (set by others)"
    assert audited(engine("a"), engine("b", attached=True)).label == "equalised"


def test_each_pair_of_several_engines_has_its_own_label() -> None:
    found = audited(
        engine("a"),
        engine("b", asked={"block_size": 16}),
        engine("c", block_size=32, asked={"block_size": 32}),
        run=cells(engines="abc"),
    )
    labels = {(p.a, p.b): p.label for p in found.pairs}
    assert labels[("a", "b")] == "equalised"
    assert labels[("b", "c")] == "set by hand"
    assert found.pair("c", "a") is not None
    assert found.label == "own defaults: a; set by hand: b and c"
    assert row(found, "block_size").status == "differs"


def test_an_engine_whose_sessions_disagree_is_not_the_same_as_itself() -> None:
    sessions = [
        {"engine": e, "settings": {"block_size": {"value": v, "source": "log"}}}
        for e, v in (("a", 16), ("b", 16), ("a", 32), ("b", 16))
    ]
    found = audit_run({}, [*sessions, {"engine": "b", "settings": {}}], cells(), {})
    assert found is not None
    blocks = row(found, "block_size")
    assert blocks.status == "differs"
    assert [(v.value, v.also) for v in blocks.values] == [(32, [16]), (16, [])]
    assert short_lines(found)[0].startswith("KV block size: a 32, earlier 16, b 16")


def test_a_log_of_steps_that_one_engine_alone_writes_is_told_with_what_it_may_cost() -> None:
    found = one("step_log", True, False)
    assert (found.status, found.binding) == ("differs", UNSURE)
    assert found.means.startswith("a logs a line a step, which b does not")
    assert "20 microseconds" in found.why
    assert one("step_log", True, True).status == "same"
    silent = audited(engine("a", step_log=True), engine("b"))
    assert (row(silent, "step_log").status, row(silent, "step_log").values[1].source) == ("unknown", "unknown")
    assert "log of steps" in silent.verdict
    assert "step_log" not in {r.id for r in audited(engine("a"), engine("b")).rows}, (
        "where no engine tells there is no row"
    )


def test_invalid_cells_are_no_measurement() -> None:
    run = cells(300)
    assert one("max_num_seqs", 256, 1024, [{**c, "verdict": "INVALID"} for c in run] + cells(4)).binding == NO


@pytest.mark.parametrize("spec", AUDIT_ROWS, ids=lambda r: r.id)
def test_every_row_has_words_and_judges_a_run_of_which_nothing_is_known(spec: Any) -> None:
    bearing = spec.bears(Case(spec.id, {}, demand([])))
    assert bearing.bears in (YES, UNSURE)
    assert bearing.why
    assert spec.words
    assert spec.means.endswith(".")
    assert not spec.direction or "{more}" in spec.direction


def test_rows_stand_with_what_bears_first_and_what_is_the_same_last() -> None:
    found = audited(engine("a"), engine("b", without=("dtype",), prefix_caching=True, block_size=32))
    standings = [line.standing for line in audit_lines(found)]
    assert standings == [*("bears", "open", "idle"), *["same"] * (len(standings) - 3)]


def test_the_summary_holds_the_audit_of_several_engines_and_null_for_one(tmp_path: Path) -> None:
    found = build_summary(synthetic_run(tmp_path, ("a", "b"), (1,), name="two"))["audit"]
    assert [e["label"] for e in found["engines"]] == ["a", "b"]
    assert {r["id"]: r["status"] for r in found["rows"]}["block_size"] == "same"
    assert {r["id"]: r["status"] for r in found["rows"]}["speculative_decoding"] == "unknown"
    assert found["label"] == "not shown to be alike"
    assert json.loads(to_json(found)) == json.loads(json.dumps(found, allow_nan=False))
    assert build_summary(synthetic_run(tmp_path, ("a",), (1,), name="one"))["audit"] is None
