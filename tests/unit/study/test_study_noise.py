"""The noise floor: learned from repeats of the baseline, used for ties."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Measured, Score
from autotune.spec.expressions import parse_objective
from autotune.study.conclusion import WITHIN_NOISE, Conclusion
from autotune.study.noise_floor import noise_floor
from autotune.study.phases import PhaseClock
from autotune.study.ranking import best_trial
from autotune.study.record import TrialRecord
from autotune.study.repeating import repeated
from autotune.study.stream import EventStream

GOAL = parse_objective("minimize ttft_p95")
SEARCH = {"seed": 1, "repeats": 0, "baseline_repeats": 2}
SPACE = {
    "engine": "simulated",
    "knobs": {"max-num-seqs": {"type": "int", "values": list(range(8, 108))}},
}


def record(number: int, seqs: int, value: float, **changes: Any) -> TrialRecord:
    return TrialRecord(
        **{
            "number": number,
            "role": "baseline" if number == 0 else "search",
            "state": "measured",
            "params": {"max-num-seqs": seqs},
            "values": {GOAL.text: value},
            "feasible": True,
        }
        | changes
    )


def further(*values: float) -> tuple[dict[str, float], ...]:
    return tuple({GOAL.text: value} for value in values)


def test_baseline_is_measured_again_in_its_launch_and_the_noise_is_kept(
    lab: Any, make: Any
) -> None:
    lab.repeated = (0.104, 0.1)
    lab.prepare(budget={"trials": 12}, search=SEARCH, space=SPACE)
    lab.runs(*[make.candidate(n) for n in range(16, 40)])
    assert [t.repeats for t in lab.tasks] == [2] + [0] * 11
    kept = lab.directory.records()[0].repeats
    assert [values[GOAL.text] for values in kept] == [0.104, 0.1]
    noise = json.loads((lab.directory.path / "noise.json").read_text())[GOAL.text]
    assert noise["launches"] == [[0.1, 0.104, 0.1]]
    assert noise["spread"] == pytest.approx(0.0226, abs=1e-3)
    told = [e.data["message"] for e in lab.heard if e.kind == "note"]
    assert any("measurements of the baseline differ by 2.3%" in text for text in told)


def test_with_launches_to_spare_the_baseline_is_launched_a_second_time(lab: Any, make: Any) -> None:
    lab.prepare(budget={"trials": 40}, search=SEARCH, space=SPACE)
    lab.runs(*[make.candidate(n) for n in range(16, 80)])
    roles = [t.role for t in lab.tasks]
    assert roles[:14] == ["baseline", *["search"] * 11, "check", "search"]
    assert sum(t.role != "check" for t in lab.tasks) == 40  # it is no trial of the budget
    noise = json.loads((lab.directory.path / "noise.json").read_text())[GOAL.text]
    assert len(noise["launches"]) == 2
    before = len(lab.tasks)
    lab.runs(*[make.candidate(n) for n in range(16, 80)])
    assert len(lab.tasks) == before


@pytest.mark.parametrize("budget", [{"trials": 9}, {"time": "95s"}])
def test_small_studies_spend_nothing_on_noise_but_what_is_asked_of_one_launch(
    lab: Any, make: Any, budget: dict[str, Any]
) -> None:
    lab.prepare(budget=budget, search=SEARCH, space=SPACE)
    lab.runs(*[make.candidate(n) for n in range(16, 40)])
    assert "check" not in [t.role for t in lab.tasks]
    assert lab.tasks[0].repeats == (0 if "trials" in budget else 2)


def test_small_space_is_searched_without_repeats(lab: Any, make: Any) -> None:
    lab.prepare(budget={"trials": 40}, search=SEARCH)
    lab.runs(make.candidate(16), make.candidate(32))
    assert [(t.role, t.repeats) for t in lab.tasks] == [
        ("baseline", 0),
        ("search", 0),
        ("search", 0),
    ]


def test_second_launch_runs_beside_the_search(lab: Any, make: Any) -> None:
    lab.prepare(budget={"trials": 40}, search={**SEARCH, "parallel": 4}, space=SPACE)
    lab.runs(*[make.candidate(n) for n in range(16, 80)])
    assert [t.role for t in lab.tasks].index("check") == 12
    assert lab.clock.monotonic() == pytest.approx(10 + 10 * math.ceil(40 / 4))


def test_baseline_that_fails_in_its_second_launch_is_nobodys_recommendation(
    lab: Any, make: Any
) -> None:
    lab.script = lambda task: (
        make.diagnosis("candidate", "oom_under_load")
        if task.role == "check"
        else make.served(0.1 if task.candidate == make.baseline else 0.2)
    )
    lab.prepare(budget={"trials": 21}, search=SEARCH, space=SPACE)
    end = lab.runs(*[make.candidate(n) for n in range(16, 80)])
    told = [e.data["message"] for e in lab.heard if e.kind == "note"]
    assert any("the baseline failed in a later launch" in text for text in told)
    assert end.error is None


def test_results_within_the_noise_are_ties_and_go_to_fewer_changes() -> None:
    near = record(1, 16, 0.050, params={"max-num-seqs": 16, "enforce-eager": True})
    tied = record(2, 32, 0.051)
    for repeats, winner in (((), 1), (further(0.105), 2)):
        trials = [record(0, 8, 0.100, repeats=repeats), near, tied]
        best = best_trial(trials, [GOAL])
        assert best is not None
        assert best.number == winner
        conclusion = Conclusion(trials, [GOAL], trials[0].candidate)
        assert [f.number for f in conclusion.finalists(1)] == [winner]
        assert [f.number for f in conclusion.finalists(2)] == [winner, 3 - winner]
    exact = best_trial(trials, [GOAL], tie=0.0)
    assert exact is not None
    assert exact.number == 1


def test_candidate_that_leads_by_less_than_the_noise_is_not_ahead() -> None:
    baseline = record(0, 8, 0.100, repeats=further(0.105))
    level = record(1, 16, 0.0995)  # the mean of the baseline is 0.102
    found = Conclusion([baseline, level], [GOAL], baseline.candidate)
    assert found.ahead(1) == []
    assert found.finalists(1) == [level], "but the nearest, whose pairs will tell"
    verdict = found.verdict(1, 3)
    assert (verdict.verdict, verdict.best, verdict.reason) == ("keep_baseline", 0, WITHIN_NOISE)
    clear = Conclusion([baseline, record(1, 16, 0.09)], [GOAL], baseline.candidate)
    assert [f.number for f in clear.ahead(1)] == [1]


def test_noise_is_of_the_searchs_traffic_and_of_the_baseline_alone() -> None:
    trials = [
        record(0, 8, 0.10),
        record(1, 16, 0.05),
        record(2, 8, 0.2, role="confirm", pair=0),
        record(3, 8, 0.11, role="check"),
    ]
    found = noise_floor(trials, GOAL.text)
    assert found is not None
    assert found.launches == ((0.10,), (0.11,))
    assert noise_floor(trials[:3], GOAL.text) is None


# ---- in the launch


def measured(value: float) -> Measured:
    measurement = Measurement(
        validity=Validity(verdict="valid"), planned=1, ok=1, failed=0, failed_by_reason={},
        metrics={"ttft_p95_s": value}, intervals={"ttft_p95_s": (None, None)}, client={},
    )  # fmt: skip
    score = Score(values={GOAL.text: value}, violations={}, limits={})
    return Measured(measurement=measurement, score=score)


class Session:
    """A session that measures a value."""

    def __init__(self, value: float) -> None:
        self._value = value
        self.warmed = False

    def warm_up(self) -> None:
        self.warmed = True

    def judge(self, result: Any, *, baseline: Any) -> Measured:
        assert self.warmed
        assert baseline == {"ttft_p95_s": 0.1}
        return measured(self._value)


def phases(lab: Any, left_s: float | None = None) -> PhaseClock:
    events = EventStream(lab.clock, lab.directory, [lab.heard.append])
    clock = PhaseClock(events, lab.clock, {}, 0, left_s)
    clock.seconds.update(warming=1.0, replaying=9.0)
    return clock


def test_each_repeat_has_a_session_and_a_folder_of_its_own(lab: Any, tmp_path: Path) -> None:
    lab.prepare()
    made: list[int] = []

    def session(place: Path, number: int) -> Any:
        made.append(number)
        return Session(0.1 + number / 100)

    found = repeated(
        measured(0.1), 2, folder=tmp_path, phases=phases(lab), session=session,
        replay=lambda one: object(),
    )  # fmt: skip
    assert found is not None
    values = [score.values[GOAL.text] for score in found.repeats]
    assert values == pytest.approx([0.11, 0.12])
    assert found.score.values == {GOAL.text: 0.1}
    assert made == [1, 2]
    for number in (1, 2):
        kept = json.loads((tmp_path / f"repeat-{number}" / "measurement.json").read_text())
        assert kept["metrics"]["ttft_p95_s"] == pytest.approx(0.1 + number / 100)


def test_no_repeat_is_made_that_would_eat_the_search(lab: Any, tmp_path: Path) -> None:
    lab.prepare()
    found = repeated(
        measured(0.1), 2, folder=tmp_path, phases=phases(lab, 199.0),
        session=lambda place, number: pytest.fail("a repeat"), replay=lambda one: None,
    )  # fmt: skip
    assert found is not None
    assert found.repeats == ()


def test_server_that_dies_in_a_repeat_has_no_measurement(lab: Any, tmp_path: Path) -> None:
    lab.prepare()
    found = repeated(
        measured(0.1), 2, folder=tmp_path, phases=phases(lab),
        session=lambda place, number: Session(0.1), replay=lambda one: None,
    )  # fmt: skip
    assert found is None
