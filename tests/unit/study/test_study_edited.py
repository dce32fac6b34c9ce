from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import InputError
from autotune.study.directory import StudyDirectory
from autotune.study.edited import check_unedited
from autotune.study.extending import limits_of

SPEC: dict[str, Any] = {
    "name": "a",
    "budget": {"trials": 10, "time": 3600.0, "gpu_hours": None},
    "search": {"sampler": "qmc", "repeats": 3},
    "space": {
        "engine": "vllm",
        "knobs": {
            "block-size": {"type": "int", "values": [8, 16]},
            "memory": {"type": "float", "values": [0.9, 0.95, 1e-05]},
        },
        "rules": ["block-size <= 16"],
    },
}


@pytest.fixture
def directory(tmp_path: Path) -> StudyDirectory:
    (tmp_path / "study.json").write_text(json.dumps({"spec": SPEC}))
    write(tmp_path, SPEC)
    return StudyDirectory(tmp_path)


def write(folder: Path, spec: Any) -> None:
    (folder / "study.yaml").write_text("# resolved\n" + yaml.safe_dump(spec, sort_keys=False))


def problems(directory: StudyDirectory) -> list[str]:
    with pytest.raises(InputError) as caught:
        check_unedited(directory)
    assert "autotune tune" in str(caught.value.hint)
    return [problem.message for problem in caught.value.problems]


def test_a_file_as_it_was_written_is_no_edit(directory: StudyDirectory) -> None:
    check_unedited(directory)


def test_e03_changed_choices_are_named_with_their_old_and_new_values(
    directory: StudyDirectory,
) -> None:
    changed = json.loads(json.dumps(SPEC))
    changed["space"]["knobs"]["block-size"]["values"] = [8, 16, 32]
    changed["space"]["knobs"]["dtype"] = {"type": "choice", "values": ["auto"]}
    del changed["space"]["knobs"]["memory"]
    changed["space"]["rules"] = []
    write(directory.path, changed)
    assert problems(directory) == [
        "knob block-size: values: [8, 16] then, [8, 16, 32] now",
        "knob memory: gone",
        "knob dtype: new",
        "space: rules: [block-size <= 16] then, [] now",
    ]


def test_other_keys_are_found_too(directory: StudyDirectory) -> None:
    write(directory.path, {**SPEC, "name": "b", "quality": {"check": "none"}})
    assert problems(directory) == [
        "name: a then, b now",
        'quality: nothing then, {"check":"none"} now',
    ]


@pytest.mark.parametrize(
    ("section", "changes", "found", "options"),
    [
        ("budget", {"trials": 12}, ["budget.trials: 10 then, 12 now"], "--trials 12"),
        ("budget", {"time": "1h30m"}, ["budget.time: 3600.0 then, 1h30m now"], "--budget 1h30m"),
        ("search", {"repeats": 0}, ["search.repeats: 3 then, 0 now"], "--repeats 0"),
        (
            "budget",
            {"time": 7200, "trials": 5},
            ["budget.trials: 10 then, 5 now", "budget.time: 3600.0 then, 7200 now"],
            "--trials 5 --budget 2h",
        ),
    ],
)
def test_what_resume_can_change_is_offered_as_its_options(
    directory: StudyDirectory,
    section: str,
    changes: dict[str, Any],
    found: list[str],
    options: str,
) -> None:
    write(directory.path, {**SPEC, section: {**SPEC[section], **changes}})
    with pytest.raises(InputError) as caught:
        check_unedited(directory)
    assert [problem.message for problem in caught.value.problems] == found
    hint = f"undo the change, or say it: `autotune resume {directory.path} {options}`"
    assert caught.value.hint == hint
    said = limits_of({f"{section}.{key}": value for key, value in changes.items()})
    check_unedited(directory, said)
    with pytest.raises(InputError):
        check_unedited(directory, {**said, next(iter(said)): 99})


@pytest.mark.parametrize(
    "changed",
    [
        {"budget": {**SPEC["budget"], "trials": 12}, "name": "b"},
        {"budget": {**SPEC["budget"], "gpu_hours": 2}},
        {"budget": {**SPEC["budget"], "trials": -1}},
        {"budget": {"trials": 10}},
        {"budget": None},
        {"search": {**SPEC["search"], "sampler": "tpe", "repeats": 4}},
    ],
    ids=str,
)
def test_what_its_options_cannot_say_is_no_case_for_them(
    directory: StudyDirectory, changed: dict[str, Any]
) -> None:
    write(directory.path, {**SPEC, **changed})
    assert problems(directory)


def test_values_that_only_yaml_has_are_edits_like_others(directory: StudyDirectory) -> None:
    text = (directory.path / "study.yaml").read_text().replace("name: a", "name: 2026-01-01")
    (directory.path / "study.yaml").write_text(text)
    assert problems(directory) == ["name: a then, 2026-01-01 now"]


@pytest.mark.parametrize("text", [None, "no: [mapping", "just words"])
def test_a_file_that_says_nothing_changes_nothing(
    directory: StudyDirectory, text: str | None
) -> None:
    path = directory.path / "study.yaml"
    path.unlink() if text is None else path.write_text(text)
    check_unedited(directory)
