from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import InputError
from autotune.study.directory import StudyDirectory
from autotune.study.edited import check_unedited

SPEC: dict[str, Any] = {
    "name": "a",
    "budget": {"trials": 10, "time": None},
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


@pytest.mark.parametrize("text", [None, "no: [mapping", "just words"])
def test_a_file_that_says_nothing_changes_nothing(
    directory: StudyDirectory, text: str | None
) -> None:
    path = directory.path / "study.yaml"
    path.unlink() if text is None else path.write_text(text)
    check_unedited(directory)
