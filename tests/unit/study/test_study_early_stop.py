"""A trial whose replay was ended early: its record, what the search learns, what to beat."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.outcome import CANNOT_BEAT_BEST, EarlyEnd, Infeasible, Unmeasurable
from autotune.replay.glimpse import Glimpse
from autotune.replay.records import BROKEN_OFF, ClientHealth, ReplayResult, RequestRecord
from autotune.spec.expressions import parse_constraint, parse_objective
from autotune.study.conclusion import Conclusion
from autotune.study.early_totals import saving
from autotune.study.measuring import MeasureSession, MeasureSettings
from autotune.study.ranking import ROOM, nearest_to_limits, value_to_beat
from autotune.study.record import TrialRecord
from autotune.study.task import TrialTask
from autotune.study.trial_record import record_of
from autotune.study.visit import Visitor
from autotune.study.watching import early_watch, given_up
from autotune.workload.scenarios import make as make_trace

GOAL = parse_objective("minimize ttft_p95")
LIMIT = parse_constraint("tpot_p95 <= 50ms")

END = EarlyEnd(
    rule="limit_out_of_reach", target=LIMIT.text, key=LIMIT.text, limit=0.05, best=0.06, seen=0.1,
    violation=1.0, planned=100, ended=20, over=6, needed=6, at_s=4.0, last_due_s=30.0,
    saved_s=28.0,
)  # fmt: skip
DOMINATED = replace(END, rule="cannot_beat_best", target=GOAL.text, key=CANNOT_BEAT_BEST, limit=0.5)


def kept(make: Any, end: EarlyEnd) -> TrialRecord:
    task = TrialTask(number=3, role="search", candidate=make.candidate(16))
    outcome = given_up(end, make.served(0.1))
    found = record_of(task, outcome, "", {}, simulated=True)
    return TrialRecord.from_json(found.to_json())


def test_a_limit_out_of_reach_is_a_violated_limit_without_any_value(make: Any) -> None:
    found = kept(make, END)
    assert (found.state, found.fault, found.phase) == ("infeasible", "candidate", "load")
    assert (found.reason, found.values, found.feasible) == ("limit_out_of_reach", {}, False)
    assert found.constraints == {LIMIT.text: 1.0}
    assert found.limits == {LIMIT.text: 0.05}
    assert found.stopped_early["saved_s"] == 28.0
    assert found.search_violations == given_up(END, make.served(0.1)).violations


def test_what_only_is_worse_than_the_best_violates_no_limit(make: Any) -> None:
    found = kept(make, DOMINATED)
    assert (found.reason, found.constraints) == ("cannot_beat_best", {})
    assert found.search_violations == {CANNOT_BEAT_BEST: 1.0}
    assert given_up(DOMINATED, make.served(0.1)).violations == {CANNOT_BEAT_BEST: 1.0}


def test_a_resumed_search_learns_the_same(make: Any) -> None:
    known = Conclusion([kept(make, DOMINATED)], [GOAL], make.baseline).known()
    assert [(k.values, k.diagnosis and k.diagnosis.reason) for k in known] == [
        (None, "cannot_beat_best")
    ]
    assert known[0].violations == {CANNOT_BEAT_BEST: 1.0}
    assert known[0].stopped == DOMINATED


def test_among_the_near_misses_it_comes_after_what_was_measured(make: Any) -> None:
    whole = TrialRecord(number=1, role="search", state="measured", params={},
                        constraints={LIMIT.text: 3.0})  # fmt: skip
    assert nearest_to_limits([kept(make, END), whole, kept(make, DOMINATED)]) == [
        whole, kept(make, END),
    ]  # fmt: skip


def test_savings_add_up(make: Any) -> None:
    records = [kept(make, END), replace(kept(make, DOMINATED), number=4)]
    assert saving(records) == {"count": 2, "saved_s": 56.0}
    assert saving([]) == {"count": 0, "saved_s": 0.0}


# ---- what is to be beaten


def trial(number: int, value: float, **more: Any) -> TrialRecord:
    given = {
        "number": number, "role": "baseline" if number == 0 else "search", "state": "measured",
        "params": {"max-num-seqs": 8 + number}, "values": {GOAL.text: value}, "feasible": True,
    }  # fmt: skip
    return TrialRecord(**{**given, **more})


def test_what_is_to_be_beaten_leaves_room_for_every_finalist() -> None:
    records = [trial(0, 1.0), trial(1, 0.5), trial(2, 0.7)]
    assert value_to_beat(records, [GOAL], 1) == pytest.approx(0.5 * math.exp(ROOM))
    assert value_to_beat(records, [GOAL], 2) == pytest.approx(0.7 * math.exp(ROOM))
    assert value_to_beat(records, [GOAL], 3) == 1.0


def test_a_broken_baseline_is_not_to_be_beaten() -> None:
    assert value_to_beat([trial(0, 1.0, feasible=False)], [GOAL], 1) is None
    assert value_to_beat([trial(0, 1.0), trial(1, 0.5)], [GOAL, GOAL], 1) is None


def test_a_doubtful_trial_ends_nobody_who_keeps_the_limits_for_certain() -> None:
    doubtful = trial(1, 0.5, cautious={LIMIT.text: 0.1})
    assert value_to_beat([trial(0, 1.0), doubtful], [GOAL], 1) == 1.0


def test_a_tie_with_the_best_is_not_ended_but_one_with_the_baseline_is_no_gain() -> None:
    noisy = trial(0, 1.0, repeats=({GOAL.text: 1.1},))
    assert (value_to_beat([noisy, trial(1, 0.5)], [GOAL], 1) or 0) > 0.5 * math.exp(ROOM)
    assert value_to_beat([noisy, trial(1, 0.999)], [GOAL], 1) == 1.0


# ---- who is watched


@pytest.mark.parametrize("role", ["baseline", "confirm", "check"])
def test_numbers_that_are_reported_come_from_whole_replays(lab: Any, make: Any, role: Any) -> None:
    lab.prepare()
    visitor = Visitor(lab.study, lab, clock=lab.clock, stop=lab.stop)
    task = TrialTask(number=1, role=role, candidate=make.candidate(16), to_beat=0.5)
    assert visitor._watch(task, {}, whole=False) is None
    watch = visitor._watch(replace(task, role="search"), {}, whole=False)
    assert watch is not None
    assert [bar.key for bar in watch.bars] == ["success_rate >= 0.9", CANNOT_BEAT_BEST]
    assert visitor._watch(replace(task, role="search"), {}, whole=True) is None


def test_off_is_off(lab: Any, make: Any) -> None:
    lab.prepare(search={"early_stop": "off"})
    visitor = Visitor(lab.study, lab, clock=lab.clock, stop=lab.stop)
    task = TrialTask(number=1, role="search", candidate=make.candidate(16), to_beat=0.5)
    assert visitor._watch(task, {}, whole=False) is None


# ---- from the replay to the outcome


HEALTH = ClientHealth(dispatch_lag_p99_s=0.0, loop_lag_p99_s=0.0, cpu_share=0.1)


def session(tmp_path: Path, lab: Any) -> MeasureSession:
    settings = MeasureSettings(
        objectives=[GOAL], constraints=[LIMIT], metric_names={}, vocab_size=1000, warmup=0
    )
    watch = early_watch([GOAL], [LIMIT], baseline={}, to_beat=None, mode="exact")
    return MeasureSession(
        server_url="http://127.0.0.1:9", model="m", alive=lambda: True,
        trace=make_trace("cpu-tiny"), folder=tmp_path, startup_s=1.0, salt="s", settings=settings,
        clock=lab.clock, stop=lab.stop, watch=watch,
    )  # fmt: skip


def given_up_after(one: MeasureSession, health: ClientHealth) -> ReplayResult:
    """Eight slow answers, then nothing more."""
    planned = one._plan(one.trace.requests, salt="s")
    slow = [
        RequestRecord(
            index=p.index, due_s=p.due_s, measured=True, planned_input_tokens=len(p.prompt),
            planned_output_tokens=p.output_tokens, sent_s=p.due_s, first_token_s=p.due_s + 0.1,
            last_token_s=p.due_s + 0.1 + p.output_tokens, end_s=p.due_s + 0.1 + p.output_tokens,
            output_tokens=p.output_tokens, input_tokens=len(p.prompt),
        )
        for p in planned[:8]
    ]  # fmt: skip
    rest = [
        RequestRecord(
            index=p.index, due_s=p.due_s, measured=True, planned_input_tokens=len(p.prompt),
            planned_output_tokens=p.output_tokens, failure="not_sent",
            detail=f"{BROKEN_OFF}hopeless",
        )
        for p in planned[8:]
    ]  # fmt: skip
    assert one.watch is not None
    hopeless = one.watch.hopeless(planned, dict, startup_s=1.0, drain_s=60.0)
    assert hopeless(Glimpse(at_s=20.0, ended=slow, open=[]))
    return ReplayResult(records=(*slow, *rest), health=health, window_s=(0.5, 60.0), wall_s=20.0,
                        aborted="hopeless")  # fmt: skip


def test_the_part_that_was_seen_is_kept_and_marked(tmp_path: Path, lab: Any) -> None:
    one = session(tmp_path, lab)
    outcome = one.judge(given_up_after(one, HEALTH), baseline={})
    assert isinstance(outcome, Infeasible)
    assert outcome.diagnosis.reason == "limit_out_of_reach"
    found = outcome.measurement
    assert found is not None
    assert (found.planned, found.ok, found.failed) == (len(one.trace.requests), 8, 0)
    assert found.validity.verdict == "suspect"
    assert found.validity.causes == ("stopped_early",)
    assert found.to_json()["stopped_early"]["key"] == LIMIT.text
    assert found.metrics["ttft_p95_s"] == pytest.approx(0.1)


def test_a_replay_that_the_client_spoiled_says_nothing_of_the_candidate(
    tmp_path: Path, lab: Any
) -> None:
    one = session(tmp_path, lab)
    busy = ClientHealth(dispatch_lag_p99_s=0.0, loop_lag_p99_s=0.0, cpu_share=0.99)
    outcome = one.judge(given_up_after(one, busy), baseline={})
    assert isinstance(outcome, Unmeasurable)
    assert outcome.measurement is not None
    assert one.again(outcome.measurement.validity, left_s=None) is not None
