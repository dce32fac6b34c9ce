from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.measure.validity import judge, lag_thresholds_s
from autotune.replay.records import ClientHealth, ReplayResult, RequestRecord
from autotune.spec.vocabulary import METRICS


def record(index: int, *, ttft: float = 0.1, **changes: Any) -> RequestRecord:
    due = index / 10
    values: dict[str, Any] = {
        "due_s": due, "measured": True, "planned_input_tokens": 100, "planned_output_tokens": 10,
        "sent_s": due, "first_token_s": due + ttft, "last_token_s": due + ttft + 0.2,
        "end_s": due + ttft + 0.2, "input_tokens": 100, "output_tokens": 10,
    }  # fmt: skip
    return RequestRecord(index=index, **{**values, **changes})


def result(
    records: list[RequestRecord],
    *,
    dispatch: float | None = 0.001,
    loop: float | None = 0.001,
    cpu: float | None = 0.1,
    aborted: str | None = None,
) -> ReplayResult:
    return ReplayResult(
        records=tuple(records),
        health=ClientHealth(dispatch_lag_p99_s=dispatch, loop_lag_p99_s=loop, cpu_share=cpu),
        window_s=(0.0, len(records) / 10),
        wall_s=len(records) / 10,
        aborted=aborted,
    )


def verdict(outcome: ReplayResult, *limited: str) -> tuple[str, str]:
    validity = judge(outcome, limits={}, limited=[METRICS[name] for name in limited])
    return validity.verdict, "; ".join(validity.reasons)


QUIET = [record(index) for index in range(100)]


def test_a_quiet_client_and_the_planned_work_are_valid() -> None:
    assert verdict(result(QUIET), "ttft_p95") == ("valid", "")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dispatch": 0.006}, "suspect"),
        ({"dispatch": 0.030}, "invalid"),
        ({"loop": 0.006}, "suspect"),
        ({"loop": 0.030}, "invalid"),
        ({"cpu": 0.6}, "suspect"),
        ({"cpu": 0.9}, "invalid"),
        ({"dispatch": None, "loop": None, "cpu": None}, "valid"),
    ],
)
def test_a_late_or_busy_client_is_noticed(changes: dict[str, float], expected: str) -> None:
    found, reason = verdict(result(QUIET, **changes))
    assert found == expected
    assert (reason == "") == (expected == "valid")


def test_lag_is_held_against_what_the_server_needed() -> None:
    assert lag_thresholds_s(0.05) == (0.005, 0.025)
    assert lag_thresholds_s(2.0) == pytest.approx((0.04, 0.2))
    assert lag_thresholds_s(None) == (0.005, 0.025)
    slow = [record(index, ttft=2.0) for index in range(100)]
    assert verdict(result(slow, dispatch=0.03))[0] == "valid"


def test_a_late_client_cannot_excuse_itself_with_the_wait_it_caused() -> None:
    late = [record(i, sent_s=i / 10 + 1.0, first_token_s=i / 10 + 1.05) for i in range(100)]
    assert verdict(result(late, dispatch=1.0))[0] == "invalid"


def test_a_replay_that_was_ended_early_is_invalid() -> None:
    found, reason = verdict(result(QUIET, aborted="server_died"))
    assert found == "invalid"
    assert "server_died" in reason


def test_a_replay_without_measured_requests_is_invalid() -> None:
    assert verdict(result([record(0, measured=False)]))[0] == "invalid"


@pytest.mark.parametrize(("unsent", "expected"), [(0, "valid"), (2, "suspect"), (4, "invalid")])
def test_requests_that_were_never_sent_void_the_schedule(unsent: int, expected: str) -> None:
    records = [*QUIET[unsent:], *(record(i, failure="not_sent") for i in range(unsent))]
    assert verdict(result(records))[0] == expected


def test_later_turns_of_a_session_that_broke_are_not_the_clients_fault() -> None:
    broken = [record(100, session="s", turn=0, failure="http_5xx")]
    later = [record(101 + t, session="s", turn=t, failure="not_sent") for t in range(1, 9)]
    assert verdict(result([*QUIET, *broken, *later]))[0] == "valid"


def test_more_than_one_percent_of_wrong_lengths_is_other_work() -> None:
    records = [*QUIET[2:], record(0, failure="wrong_length"), record(1, failure="wrong_length")]
    assert verdict(result(records))[0] == "invalid"
    assert verdict(result([*QUIET[1:], record(0, failure="wrong_length")]))[0] == "valid"


@pytest.mark.parametrize(
    ("tokens", "expected"), [(101, "valid"), (105, "suspect"), (150, "invalid")]
)
def test_prompts_of_another_length_for_the_server_are_noticed(tokens: int, expected: str) -> None:
    records = [record(index, input_tokens=tokens) for index in range(100)]
    assert verdict(result(records))[0] == expected


def test_too_few_samples_for_a_limited_percentile_are_suspect() -> None:
    assert verdict(result(QUIET[:99]), "ttft_p99")[0] == "suspect"
    assert verdict(result(QUIET), "ttft_p99")[0] == "valid"
    assert verdict(result(QUIET[:5]), "success_rate", "ttft_mean")[0] == "valid"


def test_a_growing_queue_is_not_stationary() -> None:
    growing = [record(index, ttft=0.1 + 0.05 * index) for index in range(100)]
    found, reason = verdict(result(growing))
    assert found == "suspect"
    assert "not stationary" in reason


def test_the_worst_reasons_stand_first() -> None:
    validity = judge(result(QUIET, cpu=0.6, aborted="deadline"), limits={}, limited=[])
    assert validity.verdict == "invalid"
    assert "deadline" in validity.reasons[0]
    assert "busy" in validity.reasons[1]


def causes(outcome: ReplayResult, **telemetry: float) -> tuple[str, tuple[str, ...]]:
    validity = judge(outcome, limits={}, limited=[], telemetry=telemetry)
    assert len(validity.causes) == len(validity.reasons)
    return validity.verdict, validity.causes


def test_every_reason_has_a_code_and_the_invalidating_ones_come_first() -> None:
    found = causes(result(QUIET, dispatch=0.006, cpu=0.9))
    assert found == ("invalid", ("client_busy", "client_late"))
    assert causes(result(QUIET, aborted="deadline"))[1] == ("ended_early",)
    assert causes(result([]))[1] == ("nothing_measured",)
    wrong = [record(i, failure="wrong_length" if i < 5 else None) for i in range(100)]
    assert causes(result(wrong)) == ("invalid", ("wrong_length",))


def test_only_the_clients_own_causes_make_it_client_limited() -> None:
    def limited(outcome: ReplayResult) -> bool:
        return judge(outcome, limits={}, limited=[]).client_limited

    assert limited(result(QUIET, cpu=0.9))
    assert limited(result(QUIET, dispatch=0.5))
    assert not limited(result(QUIET, cpu=0.6))  # suspect is scored, not repeated
    assert not limited(result(QUIET, aborted="server_died", cpu=0.9))
    assert not limited(result(QUIET))


def test_answers_that_the_watched_server_did_not_make() -> None:
    assert causes(result(QUIET), generation_tokens=1000.0) == ("valid", ())
    assert causes(result(QUIET), generation_tokens=0.0) == ("invalid", ("wrong_server",))
    assert causes(result(QUIET), generation_tokens=1200.0) == ("suspect", ("other_traffic",))
    assert causes(result(QUIET), generation_tokens=800.0) == ("suspect", ("other_traffic",))
    failed = [record(i, failure="cut" if i == 3 else None) for i in range(100)]
    assert causes(result(failed), generation_tokens=1200.0) == ("valid", ())


def test_answers_of_two_models_come_from_two_servers() -> None:
    named = [record(i, answered_as="a" if i % 2 else "b") for i in range(100)]
    assert causes(result(named)) == ("invalid", ("wrong_server",))
    assert causes(result([record(i, answered_as="a") for i in range(100)])) == ("valid", ())


@pytest.mark.parametrize(
    ("share", "expected"), [(0.4, "valid"), (0.6, "suspect"), (0.9, "invalid")]
)
def test_a_client_short_of_ports_is_not_believed(share: float, expected: str) -> None:
    outcome = result(QUIET)
    health = replace(outcome.health, extra={"port_share": share})
    assert causes(replace(outcome, health=health))[0] == expected
