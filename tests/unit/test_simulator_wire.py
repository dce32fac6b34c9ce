"""The wire format of the simulated server, and its metrics page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autotune.simulator.config import resolve_config
from autotune.simulator.core import EngineCore
from autotune.simulator.metrics import EngineMetrics
from autotune.simulator.profile import load_profile
from autotune.simulator.scheduler import SimRequest
from autotune.simulator.wire import Answer, Asked, BadRequestError, Kind, parse_request, text_tokens

QUICK = load_profile("quickstart")


def parse(kind: Kind = "completion", **body: Any) -> Asked:
    return parse_request(
        kind, json.dumps(body).encode(), names=["m"], max_model_len=1000, vocab_size=32000
    )


def answer(asked: Asked) -> Answer:
    return Answer(asked=asked, id="cmpl-1", created=1, model="m")


def payload(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    value: dict[str, Any] = json.loads(event[6:])
    return value


def test_token_ids_text_and_messages_become_prompts() -> None:
    assert parse(prompt=[5, 6, 7]).prompt == [5, 6, 7]
    assert parse(prompt=[[5, 6]]).prompt == [5, 6]
    assert len(parse(prompt="three small words").prompt) == 3
    chat = parse("chat", messages=[{"role": "user", "content": "hello there"}])
    assert len(chat.prompt) == 4
    assert text_tokens("a b") == [*text_tokens("a"), *text_tokens("b")]


def test_length_is_max_tokens_and_without_it_an_answer_ends_by_itself() -> None:
    assert parse(prompt=[1], max_tokens=7, ignore_eos=True, min_tokens=7).output_tokens == 7
    assert parse(prompt=[1]).output_tokens == 16
    chat = parse("chat", messages=[{"role": "user", "content": "hi"}])
    assert (chat.output_tokens, chat.finish_reason) == (64, "stop")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"prompt": [1], "model": "other"}, 404, "The model `other` does not exist."),
        ({"prompt": [1] * 1000}, 400, "maximum context length is 1000 tokens"),
        ({"prompt": [1] * 900, "max_tokens": 200}, 400, "for a total of 1100 tokens"),
        ({"prompt": [32000]}, 400, "out of vocabulary"),
        ({"prompt": []}, 400, "prompt cannot be empty"),
        ({"prompt": {"a": 1}}, 400, "prompt must be a string"),
        ({"prompt": [1], "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"prompt": [1], "n": 2}, 400, "n must be 1"),
        ({"prompt": ["a", "b"]}, 400, "one prompt per request"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(
    body: dict[str, Any], status: int, text: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(**body)
    assert caught.value.status == status
    assert text in json.loads(caught.value.body())["error"]["message"]


def test_a_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadRequestError, match="Invalid JSON"):
        parse_request("chat", b"{", names=["m"], max_model_len=10, vocab_size=10)


def test_a_chat_stream_starts_with_a_role_and_ends_with_its_reason() -> None:
    asked = parse("chat", messages=[{"role": "user", "content": "hi"}], max_tokens=3)
    role = payload(answer(asked).role_event())
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    last = payload(answer(asked).token_event(2, 1, last=True))
    assert last["object"] == "chat.completion.chunk"
    assert last["choices"][0]["finish_reason"] == "length"
    assert "usage" not in last


def test_running_usage_counts_tokens_and_the_last_event_has_no_choice() -> None:
    asked = parse(
        prompt=[1] * 9,
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    event = payload(answer(asked).token_event(1, 3, last=False))
    assert event["usage"]["completion_tokens"] == 4
    assert len(event["choices"][0]["text"].split()) == 3
    usage = payload(answer(asked).usage_event(cached=8))
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 9,
        "total_tokens": 15,
        "completion_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 8},
    }


def test_metrics_carry_vllms_names_and_can_be_parsed() -> None:
    config = resolve_config({}, QUICK)
    core, metrics = EngineCore(config, QUICK), EngineMetrics()
    core.submit(SimRequest(id="a", prompt=range(100), output_tokens=5), 0.0)
    for token in core.advance(10.0):
        metrics.observe(token)
    metrics.count_end("length")
    families = {
        family.name: family
        for family in text_string_to_metric_families(metrics.exposition(core, config, 'a"b\\c'))
    }
    value = {name: family.samples[0].value for name, family in families.items()}
    assert value["vllm:generation_tokens"] == 5
    assert value["vllm:prompt_tokens"] == 100
    assert value["vllm:prefix_cache_queries"] == 100
    assert value["vllm:num_requests_running"] == 0
    assert families["vllm:num_requests_waiting"].samples[0].labels == {
        "engine": "0",
        "model_name": 'a"b\\c',
    }
    ttft = {s.name: s.value for s in families["vllm:time_to_first_token_seconds"].samples}
    assert ttft["vllm:time_to_first_token_seconds_count"] == 1
    assert families["vllm:cache_config_info"].samples[0].labels["num_gpu_blocks"].isdigit()
    assert {"vllm:request_queue_time_seconds", "vllm:num_preemptions"} <= families.keys()
