"""What a simulated model says: damage of a known size, the same in every launch, on both wires."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.built_in_texts import built_in
from autotune.measure.likelihood import loss_of, scored, shared_prefix
from autotune.simulator.profile import load_profile
from autotune.simulator.sglang_generate import native_answer, read_native
from autotune.simulator.voice import GARBAGE_FROM, SOUND, Voice
from autotune.simulator.wire import Answer, BadRequestError, parse_request, text_tokens

prompts = st.lists(st.integers(0, 29_999), min_size=2, max_size=300)


@given(prompts, st.floats(0.0, 0.9))
def test_log_probabilities_are_finite_negative_and_the_same_each_time(
    prompt: list[int], loss: float
) -> None:
    found = Voice(loss=loss).logprobs(prompt)
    assert found == Voice(loss=loss).logprobs(prompt)
    assert found[0] is None
    assert len(found) == len(prompt)
    assert all(value is not None and math.isfinite(value) and value < 0 for value in found[1:])


@pytest.mark.parametrize("loss", [0.002, 0.01, 0.1, 2.0])
def test_rise_in_perplexity_is_the_one_of_the_profile(loss: float) -> None:
    texts = [text_tokens(b.text) for b in built_in() if len(b.text.split()) > 20]
    before, after = (
        {str(i): score for i, tokens in enumerate(texts) if (score := scored(v.logprobs(tokens)))}
        for v in (SOUND, Voice(loss=loss))
    )
    found = loss_of(before, after)
    assert found is not None
    assert found.value == pytest.approx(loss, rel=0.05)


@given(prompts, st.integers(0, 40))
def test_answer_in_parts_is_the_answer_at_once(prompt: list[int], cut: int) -> None:
    voice = Voice(loss=0.05)
    assert voice.words(prompt, 0, cut) + voice.words(prompt, cut, 40 - cut) == voice.words(
        prompt, 0, 40
    )


def test_more_damage_parts_answers_earlier_and_ends_in_garbage() -> None:
    prompt = list(range(50))
    whole = SOUND.words(prompt, 0, 64)

    def same(loss: float) -> float:
        return 64 * shared_prefix(Voice(loss=loss).words(prompt, 0, 64), whole)

    lengths = [same(loss) for loss in (0.0, 0.001, 0.01, 0.05, 0.2)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 64
    assert set(Voice(loss=GARBAGE_FROM).words(prompt, 0, 64)) == {"!"}


def test_losses_of_weights_and_cache_add_up_and_default_to_none() -> None:
    profile = load_profile("quickstart")
    assert profile.loss("auto", "auto") == 0.0
    both, one = profile.loss("fp8", "fp8"), profile.loss("fp8", "auto")
    assert both > one > 0
    assert profile.loss("no such", "format") == 0.0


def completion(**body: object) -> tuple[int, dict[str, object]]:
    asked = parse_request(
        "completion",
        json.dumps({"prompt": "one two three", "max_tokens": 2, **body}).encode(),
        names=["m"],
        max_model_len=100,
        vocab_size=32_000,
    )
    answer = json.loads(Answer(asked=asked, id="i", created=1, model="m").whole(None))
    return len(asked.prompt), answer["choices"][0]


def test_vllm_wire_gives_log_probabilities_where_they_are_asked_for() -> None:
    _, bare = completion()
    assert bare.keys().isdisjoint({"logprobs", "prompt_logprobs"})
    count, choice = completion(prompt_logprobs=0, logprobs=1)
    entries = choice["prompt_logprobs"]
    assert isinstance(entries, list)
    assert entries[0] is None
    assert len(entries) == count
    assert all(len(entry) == 1 for entry in entries[1:])
    assert choice["logprobs"]["tokens"] == [" the", " a"]  # type: ignore[index]


@pytest.mark.parametrize("body", [{"echo": True}, {"logprobs": 1, "stream": True}])
def test_vllm_wire_refuses_what_it_cannot_give(body: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        completion(**body)


def test_sglang_wire_gives_log_probabilities_of_the_input() -> None:
    body = {"text": "one two three", "sampling_params": {"max_new_tokens": 2},
            "return_logprob": True, "logprob_start_len": 0}  # fmt: skip
    asked = read_native(json.dumps(body).encode(), max_model_len=100, vocab_size=32_000)
    about = json.loads(native_answer(asked, SOUND, "i", 0))["meta_info"]
    assert [entry[1] for entry in about["input_token_logprobs"]] == text_tokens("one two three")
    assert about["input_token_logprobs"][0][0] is None
    assert about["prompt_tokens"] == 3


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "no json",
        "{}",
        '{"text": "a", "stream": true}',
        '{"input_ids": [1, 99999]}',
        '{"text": "a", "sampling_params": {"max_new_tokens": 1000}}',
        '{"text": "a", "sampling_params": {"max_new_tokens": 0}}',
    ],
)
def test_sglang_wire_refuses_what_it_cannot_read(body: str) -> None:
    with pytest.raises(BadRequestError):
        read_native(body.encode(), max_model_len=100, vocab_size=32_000)
