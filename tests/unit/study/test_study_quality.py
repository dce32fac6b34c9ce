"""The guard: who is checked, against what, and how a trial ends that does not pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autotune.engines.catalog import engine_for
from autotune.engines.engine import ExitInfo
from autotune.engines.facts import engine_facts
from autotune.errors import InputError
from autotune.measure.likelihood import Scored
from autotune.measure.outcome import Infeasible, Measured, Score, Unmeasurable
from autotune.spec.model import QualitySpec
from autotune.study.across import tagged
from autotune.study.answers import FILE, Reading
from autotune.study.implications import Implications
from autotune.study.phases import PhaseClock
from autotune.study.quality import PHASE, AnswerGuard, compare
from autotune.study.stream import EventStream
from autotune.study.target import all_settings
from autotune.study.task import TrialTask
from autotune.study.trial_record import record_of

KNOBS = {
    "kv-cache-dtype": {"type": "choice", "values": ["auto", "fp8"], "lossy": True},
    "max-num-seqs": {"type": "int", "values": [8, 16, 32]},
}
BASELINE = {"kv-cache-dtype": "auto", "max-num-seqs": 8}
SOUND = ("a", "b", "c", "d")


def reading(rise: float = 0.0, *, units: tuple[str, ...] = SOUND, **more: Any) -> Reading:
    """Forty passages of 100 tokens, each `rise` nats a token worse than the reference."""
    keys = [f"p{i}" for i in range(40)]
    values: dict[str, Any] = {
        "engine": "simulated",
        "texts": "built-in",
        "scores": {key: Scored(nll=300 + i + 100 * rise, tokens=100) for i, key in enumerate(keys)},
        "answers": dict.fromkeys(keys[:16], (units, None)),
    }
    return Reading(**{**values, **more})


@dataclass
class Reader:
    """Says what it is told to, in one virtual second."""

    lab: Any
    says: Reading = field(default_factory=reading)
    asked: list[float] = field(default_factory=list)

    def read(self, server: Any, seconds: float) -> Reading:
        self.asked.append(seconds)
        self.lab.clock.sleep(1.0)
        return self.says


@dataclass
class Server:
    ended: ExitInfo | None = None

    def poll(self) -> ExitInfo | None:
        return self.ended


@dataclass
class Bench:
    """One study with a lossy knob, its guard, and a reader that says what the test wants."""

    lab: Any
    make: Any
    reader: Reader
    guard: AnswerGuard
    server: Server = field(default_factory=Server)

    def run(
        self, role: Any = "search", *, feasible: bool = True, left_s: Any = None, **params: Any
    ) -> Any:
        lab, number = self.lab, self.lab.directory.next_number()
        candidate = self.make.candidate(8)
        candidate = replace(candidate, params={**BASELINE, **params})
        task = TrialTask(number=number, role=role, candidate=candidate, deadline_s=left_s)
        folder = lab.directory.open_trial(number)
        events = EventStream(lab.clock, lab.directory, [lab.heard.append])
        phases = PhaseClock(events, lab.clock, {}, number, left_s)
        score = Score(values={"x": 1.0}, violations={"y": -1.0 if feasible else 1.0}, limits={})
        measured = Measured(measurement=self.make.served(0.1), score=score)
        outcome = self.guard.check(task, self.server, measured, folder, phases)  # type: ignore[arg-type]
        record = record_of(task, outcome, "", phases.seconds, simulated=True)
        lab.directory.close_trial(folder, record)
        return outcome


@pytest.fixture
def bench(lab: Any, make: Any) -> Any:
    def made(**quality: Any) -> Bench:
        space = {"engine": "simulated", "knobs": KNOBS}
        changes: dict[str, Any] = {"quality": quality} if quality else {}
        lab.prepare(space=space, baseline=BASELINE, **changes)
        events = EventStream(lab.clock, lab.directory, [lab.heard.append])
        guard = AnswerGuard(lab.study, lab.directory, events, clock=lab.clock, stop=lab.stop)
        reader = Reader(lab)
        guard._readers["simulated"] = reader  # type: ignore[assignment]
        return Bench(lab, make, reader, guard)

    return made


def test_baseline_leaves_the_reference_and_no_text(bench: Any) -> None:
    one = bench()
    outcome = one.run("baseline")
    assert outcome.quality["verdict"] == "reference"
    assert outcome.quality["passages"] == 40
    folder = one.lab.directory.trial(0)
    assert Reading.of(folder) == one.reader.says
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600


def test_lossy_candidate_with_the_same_answers_stays_measured(bench: Any) -> None:
    one = bench()
    one.run("baseline")
    outcome = one.run(**{"kv-cache-dtype": "fp8"})
    assert isinstance(outcome, Measured)
    quality = one.lab.directory.records()[1].quality
    assert quality["verdict"] == "passed"
    assert (quality["loss"], quality["loss_low"], quality["loss_high"]) == (0.0, 0.0, 0.0)
    assert (quality["agreement"], quality["passages"], quality["seconds"]) == (1.0, 40, 1.0)
    assert one.lab.directory.records()[1].seconds[PHASE] == 1.0


def test_worse_answers_make_a_candidate_infeasible_with_its_numbers(bench: Any) -> None:
    one = bench()
    one.run("baseline")
    one.reader.says = reading(0.05)
    outcome = one.run(**{"kv-cache-dtype": "fp8"})
    assert isinstance(outcome, Infeasible)
    assert outcome.diagnosis.reason == "quality"
    assert (outcome.diagnosis.fault, outcome.diagnosis.phase) == ("candidate", "load")
    assert "kv-cache-dtype fp8" in outcome.diagnosis.message
    assert "5.13 %" in outcome.diagnosis.message
    assert outcome.measurement is not None
    record = one.lab.directory.records()[1]
    assert (record.state, record.feasible, record.values) == ("infeasible", False, {})
    assert record.quality["verdict"] == "failed"
    assert record.quality["loss"] == pytest.approx(0.0513, abs=1e-4)


def test_other_settings_with_the_same_lossy_value_are_not_launched_any_more(bench: Any) -> None:
    one = bench()
    one.run("baseline")
    one.reader.says = reading(0.05)
    one.run(**{"kv-cache-dtype": "fp8"})
    implied = Implications(
        engine_facts("simulated"), lambda c: all_settings(c, "simulated", one.lab.study.target)
    )
    for record in one.lab.directory.records():
        implied.learn(record)
    same = replace(one.make.candidate(8), params={"kv-cache-dtype": "fp8", "max-num-seqs": 32})
    other = replace(one.make.candidate(8), params={"kv-cache-dtype": "auto", "max-num-seqs": 32})
    assert implied.refusal(same) is not None
    assert implied.refusal(other) is None


@pytest.mark.parametrize("role", ["confirm", "check"])
def test_repeated_launches_are_not_asked_again(bench: Any, role: str) -> None:
    one = bench()
    one.run("baseline")
    one.run(role, **{"kv-cache-dtype": "fp8"})
    assert len(one.reader.asked) == 1


def test_what_keeps_the_lossy_values_or_misses_a_limit_is_not_asked(bench: Any) -> None:
    one = bench()
    one.run("baseline")
    assert one.run(**{"max-num-seqs": 32}).quality == {}
    assert one.run(feasible=False, **{"kv-cache-dtype": "fp8"}).quality == {}
    assert len(one.reader.asked) == 1


def test_nothing_is_asked_where_the_study_waived_the_check(bench: Any) -> None:
    one = bench(check="none")
    one.run("baseline")
    assert isinstance(one.run(**{"kv-cache-dtype": "fp8"}), Measured)
    assert one.reader.asked == []


def test_without_a_reference_no_lossy_candidate_passes(bench: Any) -> None:
    one = bench()
    one.reader.says = reading(scores={}, refused="HTTP 404 from /v1/completions")
    one.run("baseline")
    notes = [event.data["message"] for event in one.lab.heard if event.kind == "note"]
    assert any("HTTP 404" in note for note in notes)
    outcome = one.run(**{"kv-cache-dtype": "fp8"})
    assert isinstance(outcome, Infeasible)
    assert "HTTP 404" in outcome.diagnosis.message
    assert one.lab.directory.records()[1].quality["verdict"] == "not_enough"
    assert len(one.reader.asked) == 1


def test_server_that_dies_of_the_questions_does_not_pass(bench: Any) -> None:
    one = bench()
    one.run("baseline")
    one.server.ended = ExitInfo(code=0)
    outcome = one.run(**{"kv-cache-dtype": "fp8"})
    assert isinstance(outcome, Infeasible)
    assert "ended while its answers were checked" in outcome.diagnosis.message
    # That says nothing of other settings with the same format
    assert "blames" not in outcome.diagnosis.facts


def test_check_that_the_budget_cut_short_says_nothing_of_the_candidate(bench: Any) -> None:
    one = bench()
    one.run("baseline")
    one.reader.says = reading(scores={"p1": Scored(nll=301, tokens=100)})
    outcome = one.run(left_s=3.0, **{"kv-cache-dtype": "fp8"})
    assert isinstance(outcome, Unmeasurable)
    assert outcome.reason == "budget_ended"
    assert one.reader.asked == [20.0, 3.0]


def test_reference_is_the_one_in_the_directory_also_for_a_new_guard(bench: Any) -> None:
    one = bench()
    one.run("baseline")
    lab = one.lab
    events = EventStream(lab.clock, lab.directory, [])
    one.guard = AnswerGuard(lab.study, lab.directory, events, clock=lab.clock, stop=lab.stop)
    one.guard._readers["simulated"] = Reader(lab, reading(0.05))
    assert isinstance(one.run(**{"kv-cache-dtype": "fp8"}), Infeasible)


def test_task_that_gives_the_baseline_nothing_stops_the_study(bench: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("autotune.study.task_score.find_spec", lambda name: object())
    one = bench(check="lm-eval", task="no_such_task")
    one.reader.says = reading(refused="lm-eval ended with code 1: unknown task")
    with pytest.raises(InputError, match="unknown task"):
        one.run("baseline")


def test_task_is_judged_by_its_documents(bench: Any) -> None:
    quality = QualitySpec.model_validate({"check": "lm-eval", "task": "t", "max_loss": "5%"})
    right = {f"d{i}": 1.0 for i in range(100)}
    finding, numbers = compare(quality, reading(documents=right), reading(documents=right))
    assert (finding.verdict, numbers["passages"]) == ("passed", 100)
    worse = {key: float(i % 3 > 0) for i, key in enumerate(right)}
    finding, numbers = compare(quality, reading(documents=right), reading(documents=worse))
    assert finding.verdict == "failed"
    assert numbers["loss"] == pytest.approx(0.34)


@pytest.mark.parametrize("wrong", ["empty", "repeated", "numbers", "unreadable"])
def test_garbage_fails_whatever_the_likelihoods_say(wrong: str) -> None:
    bad = {f"p{i}": (("x",), wrong) for i in range(16)}
    finding, numbers = compare(QualitySpec(), reading(), reading(answers=bad))
    assert finding.verdict == "failed"
    assert wrong in finding.because
    assert numbers["garbage"] == 16


def test_numbers_that_are_none_fail() -> None:
    finding, _ = compare(QualitySpec(), reading(), reading(scores={}, broken=40))
    assert finding.verdict == "failed"
    assert "no numbers" in finding.because


def test_decoding_that_parts_at_once_fails_though_texts_are_read_as_before() -> None:
    finding, numbers = compare(QualitySpec(), reading(), reading(units=("z",)))
    assert numbers["loss"] == 0
    assert finding.verdict == "failed"
    assert "part" in finding.because


def test_agreement_alone_is_judged_by_its_lower_end() -> None:
    quality = QualitySpec(check="agreement", max_loss=0.3)
    assert compare(quality, reading(), reading())[0].verdict == "passed"
    half = reading(units=("a", "b", "x", "y"))
    finding, numbers = compare(quality, reading(), half)
    assert finding.verdict == "failed"
    assert numbers["loss"] == 0.5


def test_each_engine_of_a_study_across_engines_is_held_against_its_own_baseline(
    bench: Any,
) -> None:
    one = bench()
    lab = one.lab
    first = lab.study
    other = replace(first, engine=engine_for("simulated-sglang"))
    whole = replace(first, sides=(first, other), baseline=tagged(first, first.baseline))
    events = EventStream(lab.clock, lab.directory, [])
    one.guard = AnswerGuard(whole, lab.directory, events, clock=lab.clock, stop=lab.stop)
    said = {"simulated": reading(), "simulated-sglang": reading(0.3, engine="simulated-sglang")}
    one.guard._readers.update({kind: Reader(lab, says) for kind, says in said.items()})
    one.run("baseline", engine="simulated")
    own = one.run(engine="simulated-sglang")
    assert own.quality["verdict"] == "reference"
    # As bad as its own baseline, which is another engine: no doing of the lossy value
    same = one.run(engine="simulated-sglang", **{"kv-cache-dtype": "fp8"})
    assert same.quality["verdict"] == "passed"
    assert isinstance(one.run(engine="simulated", **{"kv-cache-dtype": "fp8"}), Measured)
