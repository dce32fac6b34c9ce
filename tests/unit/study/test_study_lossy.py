"""Lossy knobs vary only where something guards the answers, or the user has waived that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InputError
from autotune.space.search_space import SearchSpace
from autotune.space.space_file import read_space
from autotune.space.study_space import open_study
from autotune.spec.model import QualitySpec, StudySpec
from autotune.spec.render import render_error
from autotune.study.lossy import UNCHECKED, check_words, guarded


def study(kind: str = "vllm", **quality: Any) -> StudySpec:
    return StudySpec.model_validate(
        {
            "name": "s",
            "model": "m",
            "engine": {"kind": kind, "command": ["server"]},
            "space": "quantization",
            "workload": {"path": "w"},
            "objective": "minimize ttft_p95",
            **({"quality": quality} if quality else {}),
        }
    )


def space(name: str = "quantization") -> SearchSpace:
    found = read_space(name).space
    assert found is not None
    return found


def test_lossy_knobs_are_checked_by_likelihood_unless_the_study_says_otherwise() -> None:
    spec, kept, notes = guarded(study(), space(), "0.26.0")
    assert spec.quality == QualitySpec(check="likelihood")
    assert (kept, notes) == (space(), ())
    words = check_words(spec, kept)
    assert words is not None
    assert "1 %" in words
    assert "kv-cache-dtype" in words


def test_without_any_way_to_check_them_they_do_not_vary() -> None:
    spec, kept, notes = guarded(study("generic"), space(), None)
    assert spec.quality is None
    assert not any(knob.lossy for knob in kept.knobs)
    assert "kv-cache-dtype" in notes[0]
    assert "check: agreement" in notes[0]
    assert check_words(spec, kept) is None


def test_check_that_an_engine_cannot_make_is_refused_before_any_launch() -> None:
    with pytest.raises(InputError, match="cannot be made with generic") as caught:
        guarded(study("generic", check="likelihood"), space(), None)
    assert caught.value.hint is not None
    assert "agreement" in caught.value.hint


def test_greedy_agreement_needs_nothing_of_the_engine() -> None:
    spec, kept, _ = guarded(study("generic", check="agreement"), space(), None)
    assert kept == space()
    assert spec.quality is not None
    assert spec.quality.limit == 0.5


def test_saying_that_nothing_checks_the_answers_lets_them_vary_and_the_plan_say_so() -> None:
    spec, kept, notes = guarded(study(check="none"), space(), "0.26.0")
    assert (kept, notes) == (space(), ())
    assert (check_words(spec, kept) or "").startswith(UNCHECKED)


def test_space_without_lossy_knobs_is_left_alone_whatever_is_asked() -> None:
    quick = space("quick")
    for asked in (study(), study(check="likelihood"), study("generic", check="likelihood")):
        assert guarded(asked, quick, None) == (asked, quick, ())
        assert check_words(asked, quick) is None


def test_harness_that_is_missing_is_told_before_any_launch(monkeypatch: Any) -> None:
    monkeypatch.setattr("autotune.study.task_score.find_spec", lambda name: None)
    with pytest.raises(InputError, match="lm-eval, which is not installed") as caught:
        guarded(study(check="lm-eval", task="arc_easy"), space(), "0.26.0")
    assert "autotune[quality]" in str(caught.value.hint)


@pytest.mark.parametrize(
    "quality",
    [
        {"check": "lm-eval"},
        {"check": "likelihood", "task": "arc_easy"},
        {"documents": 5},
        {"check": "guess"},
        {"time": 0},
    ],
)
def test_quality_sections_that_contradict_themselves_are_refused(quality: Any) -> None:
    with pytest.raises(ValueError, match="quality"):
        study(**quality)


def test_limits_and_times_follow_from_the_check() -> None:
    own = QualitySpec.model_validate({"max_loss": "2%", "time": "1m"})
    assert (own.limit, own.seconds) == (0.02, 60.0)
    task = QualitySpec.model_validate({"check": "lm-eval", "task": "arc_easy"})
    assert (task.limit, task.seconds) == (0.01, 600.0)


def test_task_file_is_looked_for_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("task: own\n")
    text = (
        "model: m\nengine: {kind: simulated}\nspace: quick\nworkload: {path: quickstart}\n"
        "objective: minimize ttft_p95\nquality: {check: lm-eval, task: own.yaml}\n"
    )
    file = tmp_path / "study.yaml"
    file.write_text(text)
    quality = open_study(file).study.spec.quality
    assert quality is not None
    assert quality.task == str(tmp_path / "own.yaml")
    file.write_text(text.replace("own.yaml", "other.yaml"))
    with pytest.raises(InputError) as caught:
        open_study(file)
    assert "no such file" in render_error(caught.value)
