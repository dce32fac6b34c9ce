"""A warm cache is another experiment: a repeat must not find what another measurement left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.study.measurer import Measurer
from autotune.study.measuring import MeasureSettings
from autotune.workload.trace import Request, Trace

from .conftest import Script, ScriptedServer, good_answer

Serve = Callable[..., ScriptedServer]
COLD_S, WARM_S = 0.20, 0.02


def remembering() -> Callable[[int, dict[str, Any]], Script]:
    """An engine that answers a prompt seen before ten times faster."""
    seen: set[tuple[Any, ...]] = set()

    def answer(number: int, body: dict[str, Any]) -> Script:
        key = (body.get("cache_salt"), *body["prompt"])
        first = WARM_S if key in seen else COLD_S
        seen.add(key)
        return good_answer(body["max_tokens"], first=first)

    return answer


def test_repeats_start_in_the_same_cache_state_which_is_stored_with_the_result(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve(remembering())
    settings = MeasureSettings(
        objectives=(), constraints=(), metric_names={}, vocab_size=1000, warmup=2
    )
    requests = tuple(
        Request(at_s=0.02 * k, input_tokens=16, output_tokens=3, blocks=(k,)) for k in range(20)
    )
    trace = Trace(requests=requests, block_size=16)
    launched = SimpleNamespace(
        url=server.url, plan=SimpleNamespace(model="m", engine="vllm", argv=()), poll=lambda: None
    )
    medians = []
    for repeat in range(2):
        folder = tmp_path / str(repeat)
        folder.mkdir()
        session = Measurer(settings, clock=SystemClock(), stop=StopSignal()).session(
            launched,
            trace,
            folder,
            None,
            salt=f"study-{repeat}",  # type: ignore[arg-type]
        )
        session.warm_up()
        found = session.measurement(session.replay(deadline_s=None, on_progress=None))
        assert found.ok == 20
        assert found.context["cache_state"] == "salted per measurement"
        assert found.context["warmup_requests"] == 2
        medians.append(found.metrics["ttft_p50_s"])
    assert None not in medians
    assert min(medians) > COLD_S  # neither repeat met a warm prompt
    assert medians[1] == pytest.approx(medians[0], abs=0.1)
