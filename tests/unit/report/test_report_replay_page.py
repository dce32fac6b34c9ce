from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from autotune.measure.measurement import Measurement
from autotune.measure.summary import measure
from autotune.replay.records import ClientHealth, ReplayResult, RequestRecord
from autotune.report.replay_page import replay_page
from autotune.spec.vocabulary import METRICS

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def record(index: int, **changes: Any) -> RequestRecord:
    due = index / 10
    values: dict[str, Any] = {
        "due_s": due, "measured": True, "planned_input_tokens": 9, "planned_output_tokens": 10,
        "sent_s": due, "first_token_s": due + 0.1 + index / 1000, "last_token_s": due + 0.5,
        "end_s": due + 0.5, "input_tokens": 9, "output_tokens": 10,
    }  # fmt: skip
    return RequestRecord(index=index, **{**values, **changes})


def measured(records: list[RequestRecord], **health: Any) -> Measurement:
    figures: dict[str, Any] = {
        "dispatch_lag_p99_s": 0.001, "loop_lag_p99_s": 0.001, "cpu_share": 0.1,
    } | health  # fmt: skip
    result = ReplayResult(
        records=tuple(records), health=ClientHealth(**figures),
        window_s=(0.0, len(records) / 10), wall_s=1.0,
    )  # fmt: skip
    return measure(
        result, telemetry={}, startup_s=None, limits={}, limited=[METRICS["ttft_p95"]], context={}
    )


def test_the_page_holds_the_verdict_the_numbers_and_the_pictures() -> None:
    records = [record(k) for k in range(100)]
    page = replay_page(measured(records), records, facts={"model": "m"}, built_at=NOW)
    assert "100 of 100 requests answered; the measurement is valid" in page
    assert page.count("<svg") == 3
    assert "ttft_service" in page
    assert "banner" not in page.partition("</style>")[2]
    assert "<script" not in page
    assert "src=" not in page


def test_failures_and_doubts_stand_at_the_top() -> None:
    records = [record(k, failure="stall" if k % 10 == 0 else None) for k in range(100)]
    page = replay_page(measured(records, cpu_share=0.9), records, facts={}, built_at=NOW)
    body = page.partition("</style>")[2]
    assert "INVALID" in body
    assert "the client was busy: 90% of a core" in body
    assert "10 stall" in body
    assert "not met" in body


def test_what_a_server_says_cannot_become_markup() -> None:
    records = [record(k) for k in range(30)]
    facts = {"model": "<script>alert(1)</script>", "server": "\x1b[31mred"}
    page = replay_page(
        measured(records), records, facts=facts, built_at=NOW,
        compared=[("<b>", "1", "2", "3")],
    )  # fmt: skip
    assert "<script>" not in page
    assert "<b>" not in page
    assert "\x1b" not in page


def test_a_replay_without_any_answer_has_a_page_too() -> None:
    records = [record(k, failure="refused", first_token_s=None) for k in range(3)]
    page = replay_page(measured(records), records, facts={}, built_at=NOW)
    assert "0 of 3 requests answered" in page
    assert "<svg" not in page
