"""The TensorRT-LLM adapter: every option once, only what the version has, and read back as it was asked."""

from __future__ import annotations

import calendar
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import CompletionRequest, EngineSettings, LaunchContext, LaunchPlan, SettingNotSupportedError, Source
from backends.failures import classify
from backends.tensorrt_llm import BACKEND
from backends.tensorrt_llm_config import ADMISSION, translate
from backends.tensorrt_llm_metrics import IterationReader, capacity
from backends.tensorrt_llm_reference import Era, reference
from results.errors import UsageError

CONFIGS = Path(__file__).parents[1] / "data" / "trtllm_configs"
IMAGE = "registry.example/nvidia/tensorrt-llm/release"
VERSIONS = {"1.0.0": Era.V1_0, "1.1.0": Era.V1_0, "1.2.1": Era.V1_2, "1.4.0rc1": Era.MAIN}


@pytest.fixture
def context(tmp_path: Path) -> LaunchContext:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return LaunchContext(
        model=model,
        served_name="the-model",
        settings=EngineSettings(),
        session_dir=tmp_path / "session",
        host="127.0.0.1",
        port=8123,
        command=("trtllm-serve",),
        image=f"{IMAGE}:1.2.1",
    )


def plan(context: LaunchContext, version: str, options: tuple[str, ...] = (), **asked: Any) -> LaunchPlan:
    image = f"{IMAGE}:{version}"
    return BACKEND.launch_plan(replace(context, image=image, settings=EngineSettings(**asked), options=options))


def config_of(plan: LaunchPlan) -> dict[str, Any]:
    (text,) = plan.files.values()
    made = yaml.safe_load(text)
    assert isinstance(made, dict)
    return made


ASKED = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["bfloat16", "float16"]),
        "kv_dtype": st.sampled_from(["auto", "fp8", "fp8_e4m3"]),
        "max_model_len": st.integers(1, 1 << 20),
        "max_num_seqs": st.integers(1, 4096),
        "max_num_batched_tokens": st.integers(1, 1 << 16),
        "kv_cache_tokens": st.integers(1, 1 << 24),
        "memory_fraction": st.floats(0.1, 1.0),
        "prefix_caching": st.booleans(),
        "chunked_prefill": st.booleans(),
        "cuda_graphs": st.booleans(),
        "admission": st.sampled_from(sorted(ADMISSION)),
        "tensor_parallel": st.integers(1, 8),
        "load_format": st.sampled_from(["auto", "dummy"]),
        "speculative": st.sampled_from(["ngram", "mtp"]),
        "step_log": st.booleans(),
    },
)
NEWER = st.fixed_dictionaries(
    {},
    optional={
        "block_size": st.integers(1, 256),
        "kv_cache_bytes": st.integers(1, 1 << 40),
        "scheduler_policy": st.sampled_from(["fcfs", "priority"]),
    },
)


@given(asked=ASKED, newer=NEWER, era=st.sampled_from(list(Era)), sure=st.booleans())
@settings(max_examples=150, deadline=None)
def test_all_that_is_ever_written_stands_in_nvidias_own_files_for_that_version(
    asked: dict[str, Any], newer: dict[str, Any], era: Era, sure: bool
) -> None:
    known = reference(era)
    settings_of = EngineSettings(**asked, **(newer if era is not Era.V1_0 else {}))
    made = translate(settings_of, (), known, sure, Path("/nowhere"))
    assert known.problems(made.config) == []
    flags = [word for word in made.words if word.startswith("--")]
    assert [word for word in flags if known.flag(word) is None] == []
    said = [known.flag(word).name for word in flags]  # type: ignore[union-attr]  # none is None, by the line above
    assert not set(said) & made.config.keys(), "said twice"


@pytest.mark.parametrize(("version", "era"), VERSIONS.items())
def test_the_command_line_has_only_options_of_the_version(context: LaunchContext, version: str, era: Era) -> None:
    argv = plan(context, version, max_num_seqs=64, max_model_len=4096).argv
    flags = [word for word in argv if word.startswith("--")]
    assert [word for word in flags if reference(era).flag(word) is None] == []
    assert "--backend" not in flags
    assert ("--served_model_name" in flags) == (era is Era.MAIN)


def test_the_references_name_where_they_come_from() -> None:
    folder = Path(__file__).parents[2] / "backends" / "tensorrt_llm_data"
    for path in folder.glob("*.yaml"):
        data = yaml.safe_load(path.read_text())
        assert data["licence"] == "Apache-2.0"
        assert all(source["repository"] == "NVIDIA/TensorRT-LLM" for source in data["sources"])
        assert any(source["commit"] for source in data["sources"])


def test_settings_become_one_file_with_whole_blocks(context: LaunchContext) -> None:
    made = plan(
        context,
        "1.2.1",
        max_num_seqs=64,
        max_model_len=4096,
        max_num_batched_tokens=2048,
        kv_cache_tokens=100_000,
        block_size=64,
        prefix_caching=False,
        chunked_prefill=True,
        admission="on-demand",
        dtype="bfloat16",
    )
    assert config_of(made) == {
        "dtype": "bfloat16",
        "max_batch_size": 64,
        "max_seq_len": 4096,
        "max_num_tokens": 2048,
        "enable_chunked_prefill": True,
        "kv_cache_config": {
            "enable_block_reuse": False,
            "enable_partial_reuse": False,
            "free_gpu_memory_fraction": 0.9,
            "max_tokens": 100_000,
            "tokens_per_block": 64,
        },
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": 64},
        "enable_iter_perf_stats": True,
        "max_stats_len": 10_000,
    }


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "latest"])
def test_sizes_stand_on_the_command_line_where_the_file_would_not_be_heard(
    context: LaunchContext, version: str
) -> None:
    made = plan(context, version, max_num_seqs=64, max_model_len=4096, max_num_batched_tokens=2048)
    words = " ".join(made.argv)
    assert "--max_batch_size 64" in words
    assert "--max_seq_len 4096" in words
    assert "--max_num_tokens 2048" in words
    assert not {"max_batch_size", "max_seq_len", "max_num_tokens"} & config_of(made).keys()
    assert config_of(made)["cuda_graph_config"]["max_batch_size"] == 64


def test_graphs_are_padded_up_to_the_largest_batch_unless_they_are_off(context: LaunchContext) -> None:
    assert config_of(plan(context, "1.2.1"))["cuda_graph_config"] == {"enable_padding": True, "max_batch_size": 2048}
    assert config_of(plan(context, "1.2.1", cuda_graphs=False))["cuda_graph_config"] is None
    assert any("kernel by kernel" in note for note in plan(context, "1.2.1").notes)


def test_a_version_that_lacks_a_setting_refuses_it(context: LaunchContext) -> None:
    for setting in ({"block_size": 64}, {"kv_cache_bytes": 1 << 30}, {"scheduler_policy": "priority"}):
        with pytest.raises(SettingNotSupportedError):
            plan(context, "1.0.0", **setting)
        plan(context, "1.2.1", **setting)
    with pytest.raises(UsageError, match=r"no kv_dtype 'nvfp4'"):
        plan(context, "1.0.0", kv_dtype="nvfp4")


def test_a_version_older_than_any_description_is_said_to_be_untested(context: LaunchContext) -> None:
    made = plan(context, "0.20.0", max_num_seqs=4)
    assert any("0.20.0 is older than 1.0 and untested" in note for note in made.notes)
    assert made.argv[made.argv.index("--max_batch_size") + 1] == "4"


@pytest.mark.parametrize("name", [p.name for p in sorted(CONFIGS.glob("*.yaml")) if p.name != "qwen3-older.yaml"])
@pytest.mark.parametrize("word", ["--config", "--extra_llm_api_options"])
def test_a_published_configuration_goes_through_as_it_is(context: LaunchContext, name: str, word: str) -> None:
    published = yaml.safe_load((CONFIGS / name).read_text())
    made = plan(context, "1.4.0rc1", (word, str(CONFIGS / name)))
    config = config_of(made)
    # The one thing put into a block of theirs is the memory fraction that 1.0 would drop with a file's own block.
    if isinstance(kv := published.get("kv_cache_config"), dict):
        kv.setdefault("free_gpu_memory_fraction", 0.9)
    assert {key: config[key] for key in published} == published
    own = config.keys() - published.keys()
    assert own <= {"enable_iter_perf_stats", "max_stats_len", "cuda_graph_config", "kv_cache_config"}
    assert reference(Era.MAIN).problems(config) == []
    assert made.argv.count("--extra_llm_api_options") == 1
    assert "--config" not in made.argv


def test_a_key_the_version_does_not_have_is_told_beforehand(context: LaunchContext) -> None:
    made = plan(context, "1.2.1", ("--config", str(CONFIGS / "qwen3-older.yaml")))
    assert any("kv_cache_free_gpu_memory_fraction: Extra inputs are not permitted" in note for note in made.notes)
    assert config_of(made)["cuda_graph_config"]["batch_sizes"][-1] == 384
    assert "max_batch_size" not in config_of(made)["cuda_graph_config"]


def test_what_the_user_says_wins_however_it_is_said(context: LaunchContext, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("max_batch_size: 8\nkv_cache_config: {max_tokens: 512}\n")
    words = ("--config", str(own), "--set", "kv_cache_config.dtype=fp8", "--max_num_tokens=99", "--trust_remote_code")
    words += ("--free_gpu_memory_fraction", "0.5", "--reasoning_parser", "on")
    made = plan(context, "1.2.1", words, max_num_seqs=64, kv_cache_tokens=4096)
    assert config_of(made)["max_batch_size"] == 8
    assert config_of(made)["max_num_tokens"] == 99
    assert config_of(made)["trust_remote_code"] is True
    assert config_of(made)["reasoning_parser"] == "on"  # a text, whatever YAML would make of it
    assert config_of(made)["kv_cache_config"] == {"max_tokens": 512, "dtype": "fp8", "free_gpu_memory_fraction": 0.5}
    assert not {"--set", "--max_num_tokens", "--trust_remote_code"} & set(made.argv)


@pytest.mark.parametrize(
    ("text", "words"), [(None, "Cannot read"), ("a: [", "not valid YAML"), ("- 1", "holds list, not keys and values")]
)
def test_a_configuration_that_cannot_be_read_is_refused(
    context: LaunchContext, tmp_path: Path, text: str | None, words: str
) -> None:
    own = tmp_path / "own.yaml"
    if text is not None:
        own.write_text(text)
    with pytest.raises(UsageError, match=words):
        plan(context, "1.2.1", ("--config", str(own)))


def test_both_collectors_of_step_statistics_together_are_told(context: LaunchContext) -> None:
    made = plan(context, "1.2.1", ("--set", "return_perf_metrics=true"))
    assert any("none is left for this run" in note for note in made.notes)


@pytest.mark.parametrize(
    ("version", "block"),
    [
        ("1.0.0", {"decoding_type": "MTP", "num_nextn_predict_layers": 2}),
        ("1.2.1", {"decoding_type": "MTP", "num_nextn_predict_layers": 2}),
        ("1.4.0rc1", {"decoding_type": "MTP", "max_draft_len": 2}),
    ],
)
def test_speculation_is_said_in_the_words_of_the_version(
    context: LaunchContext, version: str, block: dict[str, Any]
) -> None:
    made = config_of(plan(context, version, speculative="mtp", speculative_tokens=2))
    assert made["speculative_config"] == block
    draft = config_of(plan(context, version, speculative="draft", speculative_model="/models/small"))
    assert draft["speculative_config"]["speculative_model_dir"] == "/models/small"
    with pytest.raises(UsageError, match="name its folder"):
        plan(context, version, speculative="draft")


def test_quantisation_is_that_of_the_checkpoint_or_refused(context: LaunchContext) -> None:
    with pytest.raises(UsageError, match="are not quantised"):
        plan(context, "1.2.1", quantisation="fp8")
    (context.model / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    plan(context, "1.2.1", quantisation="fp8")
    with pytest.raises(UsageError, match="are fp8"):
        plan(context, "1.2.1", quantisation="nvfp4")


def test_a_built_engine_is_served_by_the_versions_that_can(context: LaunchContext) -> None:
    built = {"pretrained_config": {}, "build_config": {"max_batch_size": 8}}
    (context.model / "config.json").write_text(json.dumps(built))
    made = plan(context, "1.2.1", prefix_caching=False, max_num_seqs=8)
    assert made.argv[made.argv.index("--backend") + 1] == "tensorrt"
    assert config_of(made).keys() == {"kv_cache_config", "max_batch_size"}
    for refused in ({"cuda_graphs": True}, {"dtype": "float16"}, {"load_format": "dummy"}, {"speculative": "ngram"}):
        with pytest.raises(SettingNotSupportedError):
            plan(context, "1.2.1", **refused)
    with pytest.raises(UsageError, match="does not serve any more"):
        plan(context, "1.4.0rc1")


def test_requests_carry_only_fields_that_are_accepted() -> None:
    body = BACKEND.completion_body(CompletionRequest("m", [1, 2], 8, seed=3))
    for era in Era:
        known = reference(era).request
        assert body.keys() <= known.keys()
        assert body["stream_options"].keys() <= known["stream_options"].keys()


def step(**more: Any) -> dict[str, Any]:
    batch = {"numScheduledRequests": 3, "numGenRequests": 2, "numCtxTokens": 40, "numPausedRequests": 1}
    kv = {"maxNumBlocks": 100, "usedNumBlocks": 25, "tokensPerBlock": 32, "reusedBlocks": 2, "missedBlocks": 6}
    entry = {"iterLatencyMS": 5.0, "numQueuedRequests": 4, "inflightBatchingStats": batch, "kvCacheStats": kv}
    return {**entry, **more}


def test_step_statistics_are_summed_over_readings_that_consume_them() -> None:
    reader = IterationReader()
    first = reader.read(json.dumps([step(), step()]))
    assert first["running"] == 3
    assert first["waiting"] == 4
    assert first["kv_usage"] == 0.25
    assert first["kv_capacity_tokens"] == 3200
    assert first["prefix_hits_total"] == 64
    assert first["prefix_queries_total"] == 256
    assert "draft_tokens_total" not in first
    drafts = {"numDraftTokens": 6, "numAcceptedTokens": 4, "numRequestsWithDraftTokens": 2}
    second = reader.read(json.dumps([step(specDecodingStats=drafts)]))
    assert second["prompt_tokens_total"] == 120
    assert second["decodes_total"] == 6
    assert second["preemptions_total"] == 3
    assert second["steps_total"] == 3
    assert second["step_seconds_total"] == pytest.approx(0.015)
    assert (second["drafts_total"], second["accepted_tokens_total"]) == (2, 4)
    idle = reader.read("[]")
    assert (idle["running"], idle["waiting"], idle["steps_total"]) == (0, 0, 3)


@pytest.mark.parametrize("page", ["", "not json", '{"a": 1}', "[1, null]", "[]"])
def test_a_page_that_is_no_list_of_steps_gives_no_wrong_number(page: str) -> None:
    assert IterationReader().read(page) == {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
@settings(max_examples=50, deadline=None)
def test_any_page_is_survived(page: Any) -> None:
    IterationReader().read(json.dumps([page]))
    capacity(page)


LOG = """\
[TensorRT-LLM] TensorRT-LLM version: 1.2.1
[12/20/2025-03:40:41] [TRT-LLM] [I] Using LLM with PyTorch backend
[12/20/2025-03:40:44] [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 1 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.10 GiB for max tokens in paged KV cache (8192).
[TensorRT-LLM][INFO] Number of tokens per block: 64.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.00 GiB for max tokens in paged KV cache (229984).
[12/20/2025-03:40:47] [TRT-LLM] [I] max_seq_len=8192, max_num_requests=64, max_num_tokens=2048, max_batch_size=64
[12/20/2025-03:40:47] [TRT-LLM] [I] LLM Args:
model='/m' tensor_parallel_size=2 dtype='auto' load_format=<LoadFormat.DUMMY: 1> kv_cache_config=KvCacheConfig(\
enable_block_reuse=False, dtype='auto', use_kv_cache_manager_v2=False) enable_chunked_prefill=False \
scheduler_config=SchedulerConfig(capacity_scheduler_policy=<CapacitySchedulerPolicy.MAX_UTILIZATION: 'MAX_UTILIZATION'>, \
waiting_queue_policy=<WaitingQueuePolicy.FCFS: 'fcfs'>) speculative_config=None cuda_graph_config=CudaGraphConfig(\
batch_sizes=[1, 2, 4, 8], max_batch_size=8, enable_padding=True) disable_overlap_scheduler=False attn_backend='TRTLLM' \
print_iter_log=False stream_interval=1
[12/20/2025-03:40:48] [TRT-LLM] [I] get signal from executor worker
"""


def test_settings_are_read_from_the_log_with_their_source() -> None:
    told = {name: one.value for name, one in BACKEND.resolved_settings(EngineSettings(), {}, LOG).items()}
    assert told == {
        "batching": "continuous",
        "kv_layout": "paged",
        "kv_cache": True,
        "sampling_source": "request",
        "max_model_len": 8192,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "kv_cache_tokens": 229_984,
        "kv_cache_bytes": 16 << 30,
        "block_size": 64,
        "tensor_parallel": 2,
        "load_format": "dummy",
        "prefix_caching": False,
        "chunked_prefill": False,
        "admission": "on-demand",
        "scheduler_policy": "fcfs",
        "speculative_decoding": False,
        "cuda_graphs": True,
        "cuda_graph_sizes": [1, 2, 4, 8],
        "cuda_graph_padding": True,
        "async_scheduling": True,
        "step_log": False,
        "attention_backend": "trtllm",
        "stream_interval": 1,
        "kv_cache_manager_v2": False,
        "max_prompt_len": 2048,
    }
    asked = BACKEND.resolved_settings(EngineSettings(kv_cache_tokens=10**6, dtype="bfloat16"), {}, LOG)
    assert asked["kv_cache_tokens"].value == 229_984
    assert asked["kv_cache_tokens"].source is Source.LOG
    assert asked["dtype"].source is Source.ASKED
    assert BACKEND.versions({}, LOG) == {"tensorrt_llm": "1.2.1"}
    fp8 = BACKEND.resolved_settings(EngineSettings(), {}, LOG.replace("dtype='auto', use", "dtype='fp8', use"))
    assert fp8["kv_dtype"].value == "fp8"


def test_statistics_tell_what_the_cache_holds() -> None:
    told = BACKEND.resolved_settings(EngineSettings(), {"/metrics": [step()]}, "")
    assert told["kv_cache_tokens"].value == 3200
    assert told["kv_cache_tokens"].source is Source.ENDPOINT


def test_phases_of_the_start_in_their_order() -> None:
    last = calendar.timegm((2025, 12, 20, 3, 40, 48, 0, 0, 0))
    phases = BACKEND.startup_phases(LOG, (last + 3) * 10**9)
    assert sorted(phases, key=phases.__getitem__) == [
        "log_first_line",
        "weights_loaded",
        "engine_config",
        "engine_ready",
    ]
    assert phases["engine_ready"] == last * 10**9
    assert phases["engine_ready"] - phases["log_first_line"] == 7 * 10**9
    for hours in (-11, 2, 5.5, 13.75):  # the container's clock shows another zone's time
        elsewhere = BACKEND.startup_phases(LOG, int(last + hours * 3600 + 3) * 10**9)
        assert elsewhere == {name: at + int(hours * 3600) * 10**9 for name, at in phases.items()}
    for now in (0, last + 86400 * 30, last + 10 * 60):
        assert BACKEND.startup_phases(LOG, now * 10**9) == {}
    assert BACKEND.startup_phases("no stamps", last * 10**9) == {}


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("Executor creation failed due to insufficient GPU memory.", "out_of_memory_device"),
        ("The following component could not be created: KV cache", "out_of_memory_kv_cache"),
        ("RuntimeError: Failed to bind socket to 127.0.0.1:8000: in use", "port_in_use"),
        ("Error: No such option: --nope", "bad_argument"),
        (" Extra inputs are not permitted [type=extra_forbidden]", "bad_argument"),
        ("ValueError: No GPU devices found on the node", "no_device"),
        ("RuntimeError: Pre SM 80 GPUs do not support bfloat16", "bad_argument"),
        ("ModuleNotFoundError: No module named 'tensorrt_llm'", "missing_dependency"),
    ],
)
def test_its_own_failures_are_named(line: str, failure: str) -> None:
    log = f"starting\n{line}\nRuntimeError: Executor worker returned error\n"
    assert classify(log, 1, BACKEND.failures).failure == failure
