"""Lossy knobs vary only where the user has said what guards the answers."""

from __future__ import annotations

import pytest

from autotune.errors import InputError
from autotune.space.space_file import read_space
from autotune.spec.model import StudySpec
from autotune.study.lossy import guarded


def study(**quality: object) -> StudySpec:
    return StudySpec.model_validate(
        {
            "name": "s",
            "model": "m",
            "space": "quantization",
            "workload": {"path": "w"},
            "objective": "minimize ttft_p95",
            **quality,
        }
    )


def test_unguarded_lossy_knobs_are_left_out_and_named() -> None:
    space = read_space("quantization").space
    assert space is not None
    lossy = [knob.name for knob in space.knobs if knob.lossy]
    kept, notes = guarded(study(), space)
    assert lossy
    assert not any(knob.lossy for knob in kept.knobs)
    assert len(kept.knobs) == len(space.knobs) - len(lossy)
    assert all(name in notes[0] for name in lossy)


def test_saying_that_nothing_checks_the_answers_lets_them_vary() -> None:
    space = read_space("quantization").space
    assert space is not None
    assert guarded(study(quality={"check": "none"}), space) == (space, ())


def test_check_that_this_version_cannot_make_is_refused_before_any_launch() -> None:
    space = read_space("quantization").space
    assert space is not None
    with pytest.raises(InputError, match="likelihood` is not available"):
        guarded(study(quality={"check": "likelihood"}), space)


def test_space_without_lossy_knobs_is_left_alone_whatever_is_asked() -> None:
    space = read_space("quick").space
    assert space is not None
    assert guarded(study(quality={"check": "likelihood"}), space) == (space, ())
