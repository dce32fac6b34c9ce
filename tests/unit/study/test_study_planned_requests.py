"""From recorded requests to what is sent: sessions, text, special tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson

from autotune.clock import StopSignal, SystemClock
from autotune.replay.body import request_body
from autotune.replay.options import CHAT, COMPLETIONS
from autotune.spec.model import WorkloadSpec
from autotune.study.measuring import LEAD_S, MeasureSession, MeasureSettings
from autotune.workload.trace import Request, Trace


def session_of(trace: Trace, **settings: object) -> MeasureSession:
    common = MeasureSettings(
        objectives=(), constraints=(), metric_names={}, vocab_size=2000, warmup=None, **settings
    )  # type: ignore[arg-type]  # fmt: skip
    return MeasureSession(
        server_url="http://127.0.0.1:1", model="m", alive=lambda: True, trace=trace, folder=Path(),
        startup_s=None, salt="s", settings=common, clock=SystemClock(), stop=StopSignal(),
    )  # fmt: skip


def turn(at_s: float, number: int, gap_s: float | None, tokens: int = 20) -> Request:
    return Request(
        at_s=at_s, input_tokens=tokens, output_tokens=4, session="s0", turn=number, gap_s=gap_s
    )


def test_a_turn_waits_for_the_answer_and_the_gap_or_for_its_recorded_time() -> None:
    trace = Trace(requests=(turn(0.0, 0, None), turn(9.0, 1, 2.0, 50), turn(30.0, 2, None, 80)))
    first, second, third = session_of(trace)._plan(trace.requests, salt="s")
    assert (first.after, first.due_s) == (None, LEAD_S)
    assert (second.after, second.gap_s, second.due_s) == (0, 2.0, LEAD_S + 2.0)
    assert (third.after, third.gap_s, third.due_s) == (1, 0.0, LEAD_S + 30.0)
    assert list(second.prompt)[:20] == list(first.prompt)
    assert list(third.prompt)[:50] == list(second.prompt)


def test_special_ids_of_the_model_are_not_sent() -> None:
    trace = Trace(requests=(turn(0.0, 0, None, 400),))
    special = frozenset(range(1000, 1880))
    (planned,) = session_of(trace, special_ids=special)._plan(trace.requests, salt="s")
    assert not special & set(planned.prompt)


def test_kept_text_goes_through_the_chat_route_and_warm_up_does_not_tell_it() -> None:
    asked = replace(turn(0.0, 0, None), messages=(("system", "be brief"), ("user", "why?")))
    plain = replace(turn(1.0, 0, None), session=None, messages=(("", "and how?"),))
    trace = Trace(requests=(asked, plain))
    session = session_of(trace)
    options = session._options()
    assert options.route == CHAT
    first, second = session._plan(trace.requests, salt="s")
    bodies = [
        orjson.loads(request_body(planned, model="m", options=options))
        for planned in (first, second)
    ]
    assert bodies[0]["messages"] == [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"},
    ]  # fmt: skip
    assert bodies[1]["messages"] == [{"role": "user", "content": "and how?"}]
    assert bodies[0]["max_tokens"] == bodies[0]["min_tokens"] == 4
    assert len(first.prompt) == 0
    half = Trace(requests=(asked, replace(plain, messages=())))
    assert session_of(half)._options().route == COMPLETIONS
    planned = session_of(half)._plan(half.requests, salt="s")
    assert [(len(p.prompt), p.messages) for p in planned] == [(20, ()), (20, ())]


def test_the_study_file_tells_how_to_read_the_workload() -> None:
    spec = WorkloadSpec.model_validate(
        {"path": "w", "time_unit": "ms", "block_size": 32, "output_tokens": 9, "keep_text": True,
         "arrivals": {"process": "gamma", "rate": 2.0, "burstiness": 0.5, "seed": 4}}
    )  # fmt: skip
    assert spec.arrivals is not None
    assert WorkloadSpec.model_validate(spec.model_dump(mode="json")) == spec
