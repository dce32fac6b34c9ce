from __future__ import annotations

from autotune.replay.calibration import ClientPlan
from autotune.study import client
from autotune.study.client import SPAN_S, expected_chunks_per_s, stronger
from autotune.study.facts import sequence_cap
from autotune.workload.trace import Request


def request(at_s: float, tokens: int) -> Request:
    return Request(at_s=at_s, input_tokens=10, output_tokens=tokens)


def test_the_load_is_that_of_the_busiest_span() -> None:
    steady = [request(k * 0.5, 100) for k in range(100)]
    assert expected_chunks_per_s(steady) == 200
    burst = [*steady, *[request(20.0, 500) for _ in range(40)]]
    assert expected_chunks_per_s(burst) == 200 + 40 * 500 / SPAN_S
    assert expected_chunks_per_s([]) == 0
    assert expected_chunks_per_s(list(reversed(steady))) == 200


def test_a_stronger_client_has_twice_the_workers_while_there_are_cores(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(client, "own_cores", lambda: tuple(range(8)))
    plan = stronger(ClientPlan(workers=2, cores=(6, 7)))
    assert (plan.workers, plan.cores) == (4, (4, 5, 6, 7))
    assert stronger(plan).workers == 4
    monkeypatch.setattr(client, "own_cores", lambda: (0, 1))
    assert stronger(ClientPlan()) == ClientPlan()


def test_the_sequence_cap_is_read_from_the_launch_line() -> None:
    assert sequence_cap(()) is None
    assert sequence_cap(("vllm", "serve", "m", "--max-num-seqs", "64")) == 64
    assert sequence_cap(("x", "--max-num-seqs=8", "--max-running-requests", "9")) == 9
    assert sequence_cap(("x", "--max-num-seqs")) is None
