"""Asking a server about texts: what each form of answer, refusal and nonsense is taken for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.engines.facts import engine_facts
from autotune.errors import Interrupted
from autotune.measure.built_in_texts import built_in
from autotune.measure.likelihood import Scored
from autotune.study.asking import Answer, Asker, Broken, Passage, Refused, ask_all
from autotune.study.passages import ENOUGH_RECORDED, LONGEST_TEXT, MOST_RECORDED, passages_of
from autotune.workload.trace import Request, Trace

PASSAGE = Passage(key="p", text="one two three", prompt="one two")


class Double(ThreadingHTTPServer):
    """Answers every POST with the scripted status and body, and keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.body = b"{}"
        self.sent: list[tuple[str, Any, str | None]] = []
        self.delay = threading.Event()
        self.delay.set()


class _Handler(BaseHTTPRequestHandler):
    server: Double

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.sent.append((self.path, body, self.headers.get("Authorization")))
        self.server.delay.wait(10)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *args: Any) -> None:
        return


@pytest.fixture
def double() -> Iterator[Double]:
    server = Double()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.delay.set()
    server.shutdown()
    thread.join()
    server.server_close()


def asker(double: Double, engine: str = "vllm", **more: Any) -> Any:
    form = engine_facts(engine).asks_likelihood("0.26.0" if engine == "vllm" else None)
    return Asker(f"http://127.0.0.1:{double.server_port}", "m", form, **more)


def vllm(*values: float | None) -> bytes:
    entries = [None, *({str(i): {"logprob": v, "rank": 1}} for i, v in enumerate(values))]
    return json.dumps({"choices": [{"text": "", "prompt_logprobs": entries}]}).encode()


def test_vllm_is_asked_on_the_completions_route_with_its_model_and_key(
    double: Double, monkeypatch: Any
) -> None:
    monkeypatch.setenv("OWN_KEY", "secret")
    double.body = vllm(-1.0, -2.0)
    found = asker(double, api_key_env="OWN_KEY").score(PASSAGE, 5.0)
    assert found == Scored(nll=3.0, tokens=2)
    ((path, body, key),) = double.sent
    assert path == "/v1/completions"
    assert body["model"] == "m"
    assert body["prompt"] == PASSAGE.text
    assert body["prompt_logprobs"] == 0
    assert key == "Bearer secret"


def test_sglang_is_asked_on_its_native_route(double: Double) -> None:
    tokens = [[None, 5, None], [-0.5, 6, None], [-1.5, 7, None]]
    double.body = json.dumps({"text": "", "meta_info": {"input_token_logprobs": tokens}}).encode()
    assert asker(double, "sglang").score(PASSAGE, 5.0) == Scored(nll=2.0, tokens=2)
    ((path, body, _),) = double.sent
    assert path == "/generate"
    assert body["text"] == PASSAGE.text
    assert body["logprob_start_len"] == 0


def test_engine_without_log_probabilities_is_not_asked_for_them(double: Double) -> None:
    assert isinstance(asker(double, "generic").score(PASSAGE, 5.0), Refused)
    assert double.sent == []


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_numbers_that_are_none_are_told_from_a_refusal(double: Double, value: Any) -> None:
    double.body = vllm(-1.0, value)
    assert isinstance(asker(double).score(PASSAGE, 5.0), Broken)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"{}", "HTTP 500"),
        (404, b"no", "HTTP 404"),
        (200, b"not json", "no JSON"),
        (200, b'{"choices": []}', "another form"),
        (200, b'{"choices": [{"text": "x", "prompt_logprobs": null}]}', "another form"),
        (200, b"[]", "another form"),
    ],
)
def test_answers_that_cannot_be_used_are_refusals(
    double: Double, status: int, body: bytes, words: str
) -> None:
    double.status, double.body = status, body
    found = asker(double).score(PASSAGE, 5.0)
    assert isinstance(found, Refused)
    assert words in found.words
    assert not found.late


def test_words_of_an_error_are_never_kept_since_they_may_repeat_the_prompt(double: Double) -> None:
    double.status, double.body = 400, json.dumps({"error": PASSAGE.text}).encode()
    found = asker(double).score(PASSAGE, 5.0)
    assert isinstance(found, Refused)
    assert PASSAGE.text not in found.words


def test_answer_that_does_not_come_in_time_is_late(double: Double) -> None:
    double.delay.clear()
    found = asker(double).answer(PASSAGE, 0.2)
    assert isinstance(found, Refused)
    assert found.late


def test_server_that_is_gone_is_a_refusal(double: Double) -> None:
    one = Asker("http://127.0.0.1:9", "m", None)
    found = one.answer(PASSAGE, 1.0)
    assert isinstance(found, Refused)
    assert not found.late


def test_greedy_answer_is_made_of_tokens_where_they_are_named(double: Double) -> None:
    logprobs = {"tokens": [" Par", "is"], "token_logprobs": [-0.1, -0.2]}
    double.body = json.dumps({"choices": [{"text": " Paris", "logprobs": logprobs}]}).encode()
    assert asker(double).answer(PASSAGE, 5.0) == Answer(units=(" Par", "is"), wrong=None)
    ((path, body, _),) = double.sent
    assert path == "/v1/completions"
    assert (body["temperature"], body["prompt"]) == (0, PASSAGE.prompt)


def test_greedy_answer_is_made_of_characters_where_tokens_are_not_named(double: Double) -> None:
    double.body = json.dumps({"choices": [{"text": "Paris"}]}).encode()
    found = asker(double, "generic").answer(PASSAGE, 5.0)
    assert found == Answer(units=tuple("Paris"), wrong=None)
    assert "logprobs" not in double.sent[0][1]


def test_recorded_messages_go_through_the_chat_route(double: Double) -> None:
    entries = [{"token": "Yes", "logprob": -0.1}, {"token": ".", "logprob": None}]
    choice = {"message": {"content": "Yes."}, "logprobs": {"content": entries}}
    double.body = json.dumps({"choices": [choice]}).encode()
    asked = replace(PASSAGE, messages=(("user", "Is it?"),))
    assert asker(double).answer(asked, 5.0) == Answer(units=("Yes", "."), wrong="numbers")
    ((path, body, _),) = double.sent
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Is it?"}]


def test_all_are_asked_until_time_is_up() -> None:
    clock, stop = SystemClock(), StopSignal()
    now = clock.monotonic()
    found = ask_all(
        range(20), lambda item, left_s: item * 2, until_s=now + 60, clock=clock, stop=stop
    )
    assert sorted(found) == [(i, 2 * i) for i in range(20)]
    late = ask_all(range(20), lambda item, left_s: item, until_s=now - 1, clock=clock, stop=stop)
    assert late == []


def test_user_who_stops_is_obeyed_after_what_is_under_way() -> None:
    stop, asked = StopSignal(), []

    def ask(item: int, left_s: float) -> int:
        asked.append(item)
        stop.request()
        return item

    clock = SystemClock()
    with pytest.raises(Interrupted):
        ask_all(range(1000), ask, until_s=clock.monotonic() + 60, clock=clock, stop=stop)
    assert len(asked) < 100


# ---- which texts


def trace(*texts: str) -> Trace:
    return Trace(
        requests=tuple(
            Request(at_s=float(i), input_tokens=9, output_tokens=4, messages=(("user", text),))
            for i, text in enumerate(texts)
        )
    )


def test_without_kept_texts_the_built_in_ones_are_asked_about() -> None:
    bare = Trace(requests=(Request(at_s=0.0, input_tokens=9, output_tokens=4),))
    passages, texts = passages_of(bare, "salt")
    assert texts == "built-in"
    assert [p.text for p in passages] == [b.text for b in built_in()]
    assert all(p.text.startswith(p.prompt) and p.prompt for p in passages)
    assert not any(p.messages for p in passages)


def test_kept_texts_are_asked_about_spread_over_the_recording_and_cut() -> None:
    many = trace(*(f"question {i} " + "x" * LONGEST_TEXT for i in range(200)))
    passages, texts = passages_of(many, "salt")
    assert texts == "recorded"
    assert len(passages) == MOST_RECORDED
    assert all(len(p.text) == LONGEST_TEXT and p.messages for p in passages)
    assert "question 19" in passages[-1].text


def test_few_kept_texts_are_joined_by_the_built_in_ones() -> None:
    passages, texts = passages_of(trace("same", "same", "other", "  "), "salt")
    assert texts == "recorded and built-in"
    assert [p.text for p in passages[:2]] == ["same", "other"]
    assert len(passages) == 2 + len(built_in())
    enough = trace(*(f"question {i}" for i in range(ENOUGH_RECORDED)))
    assert passages_of(enough, "salt")[1] == "recorded"


def test_keys_tell_texts_apart_and_nothing_else() -> None:
    one, other = (passages_of(trace("a", "b"), salt)[0] for salt in ("x", "y"))
    assert len({p.key for p in one}) == len(one)
    assert {p.key for p in one}.isdisjoint(p.key for p in other)
    assert passages_of(trace("a", "b"), "x")[0] == one
