"""What may be varied of an engine, and which of two settings needs the more memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import get_backend
from backends.vllm_info import INFO_PATH
from harness.experiment import EngineSpec
from harness.models import ModelRef
from harness.tune.command import launch_words, measuring_words, plan_of, refusal
from harness.tune.propose import Rules, Tried, propose
from harness.tune.space import Facts, Space, at_least, checked_values, facts_of, parse_vary, space_for, with_values
from results.errors import UnknownNameError, UsageError
from tests.harness.tune.made_up import TOLD, experiment

DATA = Path(__file__).parents[2] / "data"
CPU = Facts(in_flight=16, prompt=128, cores=2, gpu=False)
GPU = Facts(in_flight=None, prompt=1000, cores=32, gpu=True)


def base(backend: str = "reference", **more: Any) -> EngineSpec:
    return EngineSpec(label="e", backend=backend, **more)


@pytest.mark.parametrize("backend", ["reference", "vllm", "tensorrt_llm", "sglang", "llamacpp"])
@pytest.mark.parametrize("facts", [CPU, GPU])
def test_the_table_gives_each_backend_settings_that_it_takes(backend: str, facts: Facts) -> None:
    adapter = get_backend(backend)
    space, cannot = space_for(adapter, base(backend), facts, {})
    assert not cannot
    assert space.axes.keys() <= adapter.settings
    for name, values in space.axes.items():
        assert checked_values(name, values) == list(values), "valid, and each once"
    assert ("cuda_graphs" in space.axes) == (facts.gpu and "cuda_graphs" in adapter.settings)
    assert not {"dtype", "kv_dtype", "quantisation"} & space.axes.keys(), "what changes answers is not searched unasked"


def test_what_an_entry_sets_is_not_varied_and_named_values_take_the_place_of_the_table() -> None:
    adapter = get_backend("reference")
    own = base(settings={"max_num_seqs": 8})
    assert "max_num_seqs" not in space_for(adapter, own, CPU, {})[0].axes
    space, cannot = space_for(adapter, own, CPU, {"block_size": [16, 32], "cuda_graphs": [True]})
    assert space.axes == {"block_size": [16, 32]}
    assert cannot == ["cuda_graphs"]


def test_facts_are_those_of_the_load() -> None:
    assert facts_of(experiment(1), 4, False) == Facts(in_flight=128, prompt=8, cores=4, gpu=False)
    rates = [{"mode": "rate", "rate": 2, "duration_s": 10}]
    assert facts_of(experiment(1, loads=rates), 4, False).in_flight is None


def test_values_are_read_as_settings_are() -> None:
    found = parse_vary(["max_num_seqs=4..16", "chunked-prefill=on,off,on", "options=--a 1,", "dtype=float32"])
    assert found == {
        "max_num_seqs": [4, 8, 16],
        "chunked_prefill": [True, False],
        "options": [["--a", "1"], []],
        "dtype": ["float32"],
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_num_seqs", "is not SETTING=VALUE"),
        ("max_num_seqs=", "is not SETTING=VALUE"),
        ("max_num_seqs=four", "max_num_seqs: .*valid integer"),
        ("max_num_seqs=0", "greater than 0"),
        ("max_num_seq=4", "Did you mean 'max_num_seqs'"),
    ],
)
def test_values_that_cannot_be_are_refused(text: str, words: str) -> None:
    with pytest.raises((UsageError, UnknownNameError), match=words):
        parse_vary([text])
    with pytest.raises(UsageError, match="twice"):
        parse_vary(["seed=1", "seed=2"])


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.sampled_from([1, 16, 64]),
        "max_num_batched_tokens": st.sampled_from([128, 512, 2048]),
        "kv_dtype": st.sampled_from(["fp8", "auto"]),
        "chunked_prefill": st.booleans(),
        "kv_cache_tokens": st.sampled_from([1000, 2000]),
    },
)


@given(SETTINGS, SETTINGS, SETTINGS)
def test_needing_at_least_the_memory_of_another_is_an_order(a: Any, b: Any, c: Any) -> None:
    assert at_least(a, a, TOLD)
    if (
        at_least(a, b, TOLD)
        and at_least(b, c, TOLD)
        and ("kv_cache_tokens" in b or "kv_cache_tokens" not in {**a, **c})
    ):
        assert at_least(a, c, TOLD)
    full_a, full_b = {**TOLD, **a}, {**TOLD, **b}
    if at_least(a, b, TOLD):
        assert full_a["max_num_seqs"] >= full_b["max_num_seqs"]
        assert full_a.get("kv_dtype") == full_b.get("kv_dtype")


def test_a_default_that_is_not_told_is_not_taken_for_larger() -> None:
    assert not at_least({}, {"kv_cache_tokens": 5}, TOLD)
    assert not at_least({"kv_cache_tokens": 5}, {}, TOLD)
    assert at_least({"max_num_seqs": 16}, {}, TOLD)
    assert not at_least({"max_num_seqs": 8}, {}, TOLD)


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)))
def test_combinations_are_all_there_once_and_the_same_for_a_seed(axes: dict[str, list[int]]) -> None:
    space = Space(axes)
    found = [tuple(sorted(values.items())) for values in space.combinations(3)]
    assert len(set(found)) == len(found) == space.size
    assert found == [tuple(sorted(values.items())) for values in space.combinations(3)]


def test_a_space_beyond_counting_is_drawn_from() -> None:
    space = Space({str(n): list(range(9)) for n in range(9)})
    assert space.size == 10**9 - 1
    assert next(iter(space.combinations(0)))


def test_the_engine_of_a_trial_has_its_values_and_a_label_of_them() -> None:
    engine = with_values(base(options=("--x",)), {"max_num_seqs": 4, "options": ["--y"]})
    assert (engine.label, engine.settings.max_num_seqs, engine.options) == ("e-seqs=4-options=y", 4, ("--x", "--y"))
    assert with_values(base(), {}) == base()


MODEL = ModelRef("m", Path("/models/m"), {"max_position_embeddings": 4096})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"chunked_prefill": False, "max_num_batched_tokens": 512},
            "the longest request, 4,096 tokens, and it takes fewer",
        ),
        ({"max_num_seqs": 256, "max_num_batched_tokens": 128}, "a step takes fewer tokens than there may be requests"),
        ({"cuda_graphs": True}, "no way to set 'cuda_graphs'"),
        ({"kv_cache": False, "chunked_prefill": True}, "These switches do not go together"),
        ({"kv_cache_tokens": 1, "kv_cache_bytes": 1}, "asked twice"),
    ],
)
def test_settings_that_cannot_be_started_are_known_before(settings: dict[str, Any], words: str) -> None:
    assert words in (refusal(base(settings=settings), MODEL, "m") or "")


def test_the_command_to_paste_is_the_adapters_without_what_only_measures() -> None:
    engine = base(settings={"max_num_seqs": 4}, options=("--api-key", "secret"), env={"A": "b c", "X_TOKEN": "t0p"})
    words = launch_words(engine, MODEL, "m")
    assert "backends.reference /models/m --host 127.0.0.1 --port 8000 --served-model-name m --max-num-seqs 4" in words
    assert words.startswith("A='b c' PYTHONUNBUFFERED=1")
    assert "truth" not in words
    assert "secret" not in words
    assert "t0p" not in words


def test_what_only_serves_the_measuring_is_named_and_not_pasted() -> None:
    vllm = base("vllm", command=("vllm", "serve"))
    words, only = launch_words(vllm, MODEL, "m"), measuring_words(vllm, MODEL, "m")
    plan = plan_of(vllm, MODEL, "m")
    assert plan.env["VLLM_SERVER_DEV_MODE"] == "1", "the run itself has it"
    assert {"VLLM_SERVER_DEV_MODE", "VLLM_LOGGING_PREFIX"} <= set(only)
    assert not [word for word in only if word in words]
    own = base("vllm", command=("vllm", "serve"), env={"VLLM_SERVER_DEV_MODE": "1"})
    assert "VLLM_SERVER_DEV_MODE=1" in launch_words(own, MODEL, "m"), "what the user asked for stays"
    assert "VLLM_SERVER_DEV_MODE" not in measuring_words(own, MODEL, "m")


def test_step_statistics_are_not_in_the_file_to_paste() -> None:
    engine = base("tensorrt_llm", settings={"max_num_seqs": 4}, command=("trtllm-serve",))
    words, only = launch_words(engine, MODEL, "m"), measuring_words(engine, MODEL, "m")
    (text,) = plan_of(engine, MODEL, "m").files.values()
    assert "enable_iter_perf_stats: true" in text
    assert "enable_iter_perf_stats" in only
    assert not [word for word in only if word in words]
    assert "cuda_graph_config:" in words
    asked = base("tensorrt_llm", command=("trtllm-serve",), options=("--set", "enable_iter_perf_stats=true"))
    assert "enable_iter_perf_stats: true" in launch_words(asked, MODEL, "m")


# What each engine's defaults tell of themselves, read by its adapter.
TOLD_BY: dict[str, tuple[EngineSpec, dict[str, Any], str]] = {
    "reference": (
        base(),
        {
            "/v1/dyno/settings": {
                "max_num_seqs": 256, "max_num_batched_tokens": 2048, "block_size": 16, "prefix_caching": False,
                "chunked_prefill": True, "threads": 2, "admission": "on-demand",
            }
        },
        "",
    ),
    "vllm": (
        base("vllm", command=("vllm", "serve")),
        {INFO_PATH: json.loads((DATA / "vllm_0.32_cpu_server_info.json").read_text())},
        "",
    ),
    "tensorrt_llm": (
        base("tensorrt_llm", command=("trtllm-serve",)),
        {},
        "LLM Args:\nenable_block_reuse=True capacity_scheduler_policy=<CapacitySchedulerPolicy.GUARANTEED_NO_EVICT: 'x'> "
        "enable_chunked_prefill=False free_gpu_memory_fraction=0.9 cuda_graph_config=CudaGraphConfig(batch_sizes=[1, 2])\n"
        "max_seq_len=4096, max_num_requests=2048, max_num_tokens=8192\nNumber of tokens per block: 32\n",
    ),
    "sglang": (
        base("sglang", command=("python", "-m", "sglang.launch_server")),
        {
            "/server_info": {
                "max_running_requests": 64, "chunked_prefill_size": 2048, "mem_fraction_static": 0.9, "page_size": 16,
                "disable_radix_cache": False, "disable_cuda_graph": False,
            }
        },
        "",
    ),
    "llamacpp": (
        base("llamacpp", command=("llama-server",)),
        {"/props": {"total_slots": 8}},
        "threadpool init, n_threads = 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("backend", TOLD_BY)
@pytest.mark.parametrize("facts", [CPU, GPU])
def test_no_trial_is_what_the_engine_does_by_default(backend: str, facts: Facts) -> None:
    engine, documents, log = TOLD_BY[backend]
    adapter = get_backend(backend)
    told = {n: r.value for n, r in adapter.resolved_settings(engine.settings, documents, log).items()}
    space, _ = space_for(adapter, engine, facts, {})
    if facts is CPU:
        assert any(told.get(name) in values for name, values in space.axes.items()), "a default is among the values"

    def refuse(values: Any) -> str | None:
        return refusal(with_values(engine, values), MODEL, "m", engine)

    tried = [Tried({}, 100.0)]
    own = plan_of(engine, MODEL, "m")
    while (
        found := propose(space, tried, told, Rules(refuse, lambda values, why: None), lambda c: [None] * len(c))
    ) and (len(tried) < 12):
        assert found.values
        assert not [name for name, value in found.values.items() if told.get(name) == value]
        made = plan_of(with_values(engine, found.values), MODEL, "m")
        assert (made.argv, made.env, made.files) != (own.argv, own.env, own.files)
        tried.append(Tried(found.values, 90.0))
    assert len(tried) > 2


def test_settings_that_change_nothing_of_the_command_are_no_trial() -> None:
    llama = base("llamacpp", command=("llama-server",))
    same = refusal(with_values(llama, {"prefix_caching": True}), MODEL, "m", llama)
    assert same == "the command that starts it is that of the defaults"
    assert refusal(with_values(llama, {"prefix_caching": False}), MODEL, "m", llama) is None


def test_files_that_an_engine_needs_are_part_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = base("tensorrt_llm", settings={"max_num_seqs": 4}, command=("trtllm-serve",))
    words = launch_words(engine, MODEL, "m")
    assert words.startswith("cat > trtllm.yaml <<'END'\n")
    assert "/dyno-session" not in words
    assert "trtllm.yaml" in words.splitlines()[-1]


def test_a_secret_in_such_a_file_is_not_part_of_the_command() -> None:
    secret = ("--set", "env_overrides.HF_TOKEN=hf_Secret12345")
    engine = base("tensorrt_llm", command=("trtllm-serve",), options=secret)
    words = launch_words(engine, MODEL, "m")
    assert "HF_TOKEN" in words
    assert "hf_Secret12345" not in words


def test_words_of_the_command_are_no_keys_of_the_options_before_them() -> None:
    module = ("python", "-m", "vllm.entrypoints.openai.api_server")
    engine = base("vllm", command=module, options=("--api-key", "sk-Secret12345"))
    assert engine.secrets() == {"sk-Secret12345"}
    assert engine.public().command == module


def test_a_context_that_the_longest_request_does_not_fit_is_no_trial() -> None:
    engine = base(settings={"max_model_len": 64})
    assert refusal(engine, MODEL, "m", longest=65) == "the longest request has 65 tokens, and it takes 64"
    assert refusal(engine, MODEL, "m", longest=64) is None


def test_no_words_of_options_are_the_engine_as_it_is() -> None:
    named = {"options": [["--enforce-eager"], []], "max_num_seqs": [4, 8]}
    space, _ = space_for(get_backend("vllm"), base("vllm"), CPU, named)
    assert space.axes == {"options": [["--enforce-eager"]], "max_num_seqs": [4, 8]}
    assert space.size == 5
