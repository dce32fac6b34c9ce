"""What engines call their metrics, by version, and how a page tells which engine it is."""

from __future__ import annotations

import pytest

from autotune.engines.catalog import exposed_metrics
from autotune.engines.facts import engine_facts
from autotune.engines.vllm import VllmEngine


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.10.2", "vllm:gpu_cache_usage_perc"),
        ("0.11.0", "vllm:kv_cache_usage_perc"),
        ("0.26.0", "vllm:kv_cache_usage_perc"),
        (None, "vllm:kv_cache_usage_perc"),
    ],
)
def test_name_follows_the_version(version: str | None, name: str) -> None:
    assert VllmEngine(version).metric_names()["kv_usage"] == name


def test_page_of_sglang_is_read_by_its_own_names() -> None:
    names = exposed_metrics(["sglang:token_usage", "sglang:queue_time_seconds_bucket"])
    assert names["kv_usage"] == "sglang:token_usage"
    assert names["queue_time"] == "sglang:queue_time_seconds"


def test_page_of_an_old_vllm_is_read_by_the_names_it_holds() -> None:
    names = exposed_metrics(["vllm:gpu_cache_usage_perc", "vllm:num_requests_running"])
    assert names["kv_usage"] == "vllm:gpu_cache_usage_perc"


def test_histograms_are_known_by_their_series() -> None:
    names = exposed_metrics(["vllm:time_per_output_token_seconds_bucket"])
    assert names["itl"] == "vllm:time_per_output_token_seconds"


def test_page_that_tells_nothing_is_taken_for_a_new_vllm() -> None:
    assert exposed_metrics([]) == engine_facts("vllm").metric_names(None)
