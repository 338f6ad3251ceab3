"""Metrics pages are read as far as they are understood, and turned into neutral names without double counting."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from backends.base import MetricRule
from backends.prometheus import metric_names, neutral_metrics, parse_prometheus
from backends.vllm_metrics import VLLM_METRICS, cache_settings

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a{b} \\"c\\", d"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4 1700000000000
vllm:kv_cache_usage_perc{engine="0"} NaN
vllm:gpu_cache_usage_perc{engine="0"} 0.5
vllm:prompt_tokens_total 1.2e+06
vllm:request_success_bucket{le="+Inf"} 7
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",kv_cache_size_tokens="4096",num_gpu_blocks="99"} 1.0

not a sample
broken{a="b 1
"""


def test_samples_with_labels_escapes_and_time_stamps() -> None:
    samples = parse_prometheus(PAGE)
    assert samples[0] == ("vllm:num_requests_running", {"engine": "0", "model_name": 'a{b} "c", d'}, 3.0)
    assert samples[1] == ("vllm:num_requests_running", {"engine": "1", "model_name": "m"}, 4.0)
    assert math.isnan(samples[2][2])
    assert ("vllm:prompt_tokens_total", {}, 1.2e6) in samples
    assert len(samples) == 7


def test_only_wanted_names_are_read() -> None:
    assert [s[0] for s in parse_prometheus(PAGE, {"vllm:prompt_tokens_total"})] == ["vllm:prompt_tokens_total"]
    assert parse_prometheus(PAGE, set()) == []


def test_neutral_values_are_summed_over_labels_and_absent_where_unknown() -> None:
    names = metric_names(VLLM_METRICS)
    assert "vllm:gpu_cache_usage_perc" in names
    values = neutral_metrics(VLLM_METRICS, parse_prometheus(PAGE, names))
    assert values == {"running": 7.0, "prompt_tokens_total": 1.2e6, "kv_usage": 0.5}


def test_an_old_name_beside_the_new_one_is_not_counted_twice() -> None:
    rule = MetricRule("x", ("new", "old"))
    assert neutral_metrics((rule,), parse_prometheus("old 5\nnew 5\n")) == {"x": 5.0}
    assert neutral_metrics((rule,), parse_prometheus("old 5\n")) == {"x": 5.0}


def test_kv_tokens_come_from_the_engines_own_label() -> None:
    assert cache_settings(parse_prometheus(PAGE)) == {
        "block_size": 16,
        "kv_cache_tokens": 4096,
        "prefix_caching": False,
    }
    old = parse_prometheus('vllm:cache_config_info{block_size="16",num_gpu_blocks="99"} 1\n')
    assert cache_settings(old) == {"block_size": 16}


@given(st.text(max_size=200))
@example(" ")
def test_any_text_is_tolerated(text: str) -> None:
    parse_prometheus(text)


_NAMES = st.from_regex(r"[a-z_][a-z0-9_:]{0,10}", fullmatch=True)
_LABELS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,6}", fullmatch=True), st.text('ab\\"\n{}=, ', max_size=8), max_size=3
)


@given(_NAMES, _LABELS, st.floats(allow_nan=False))
def test_what_a_server_writes_is_what_is_read(name: str, labels: dict[str, str], value: float) -> None:
    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    inside = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
    assert parse_prometheus(f"{name}{{{inside}}} {value}\n") == [(name, labels, value)]
