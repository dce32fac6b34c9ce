"""Another budget for a study that has begun: in every copy of it, in memory and on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.clock import StopSignal, VirtualClock
from autotune.errors import InputError
from autotune.study.edited import check_unedited
from autotune.study.extending import extend, limits_of
from autotune.study.snapshot import read_snapshot

LIMITS = {"budget.time": 5400.0, "budget.trials": 9, "search.repeats": 5}
SIDES = {
    "engine": {"kind": ["simulated", "simulated-sglang"], "args": {"sim-profile": "quickstart"}},
    "space": {
        "simulated": {"knobs": {"max-num-seqs": [8, 16]}},
        "simulated-sglang": {"knobs": {"max-running-requests": [8, 16]}},
    },
}


def read(lab: Any) -> Any:
    return read_snapshot(lab.directory, clock=VirtualClock(), stop=StopSignal())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_flags_become_what_a_study_keeps() -> None:
    flags = {"budget.time": "1h30m", "budget.trials": 9, "search.repeats": 5}
    assert limits_of(flags) == LIMITS
    assert limits_of({"search.repeats": 0}) == {"search.repeats": 0}
    assert limits_of({}) == {}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"budget.time": "soon"}, "expected a duration such as"),
        ({"budget.time": "0"}, "more than 0"),
        ({"budget.time": "9999d"}, "longer than a year"),
        ({"budget.trials": 0}, "at least 1"),
        ({"search.repeats": -1}, "at least 0"),
    ],
)
def test_what_tune_would_not_take_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        limits_of(flags)
    assert words in caught.value.message
    assert next(iter(flags)).replace(".", ": ") in caught.value.message.replace(".", ": ")


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        limits_of({"budget.time": "soon", "search.repeats": -1})
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("changes", [{}, SIDES], ids=["one engine", "two engines"])
def test_every_copy_is_changed_and_nothing_else(lab: Any, changes: dict[str, Any]) -> None:
    lab.prepare(budget={"trials": 4, "gpu_hours": 2.0}, baseline={}, **changes).snapshot()
    folder = lab.directory.path
    before, kept = json.loads((folder / "study.json").read_text()), files(folder)
    study, notes = extend(read(lab), lab.directory, LIMITS)
    assert notes == [
        "budget.time: nothing then, 1h30m now",
        "budget.trials: 4 then, 9 now",
        f"search.repeats: {before['search']['repeats']} then, 5 now",
    ]
    again = read(lab)
    for one, other in zip((study, *study.sides), (again, *again.sides), strict=True):
        assert one.spec == other.spec
        assert (one.spec.budget.time, one.spec.budget.trials) == (5400.0, 9)
        assert one.spec.budget.gpu_hours == 2.0
        assert one.spec.search.repeats == 5
    check_unedited(lab.directory)

    after = json.loads((folder / "study.json").read_text())
    copies = [after, after["spec"], *(side["spec"] for side in after.get("sides", []))]
    assert len(copies) == (4 if changes else 2)
    for copy, old in zip(
        copies,
        [before, before["spec"], *(side["spec"] for side in before.get("sides", []))],
        strict=True,
    ):
        assert copy["budget"] == {"time": 5400.0, "trials": 9, "gpu_hours": 2.0}
        assert copy["search"] == {**old["search"], "repeats": 5}
        copy |= {"budget": old["budget"], "search": old["search"]}
    assert after == before
    text = (folder / "study.yaml").read_text()
    assert text.splitlines()[0] == kept["study.yaml"].decode().splitlines()[0]
    assert text.startswith("# ")
    assert yaml.safe_load(text)["budget"]["trials"] == 9
    changed = {name for name, data in files(folder).items() if kept.get(name) != data}
    assert changed == {"study.json", "study.yaml"}


def test_what_is_so_already_is_not_written_again(lab: Any) -> None:
    lab.prepare(budget={"trials": 4}).snapshot()
    kept = files(lab.directory.path)
    study = read(lab)
    assert extend(study, lab.directory, {"budget.trials": 4}) == (study, [])
    assert files(lab.directory.path) == kept


def test_a_study_file_that_is_gone_is_written_anew(lab: Any) -> None:
    lab.prepare(budget={"trials": 4}).snapshot()
    (lab.directory.path / "study.yaml").unlink()
    extend(read(lab), lab.directory, {"budget.trials": 5})
    check_unedited(lab.directory)
    spec = yaml.safe_load((lab.directory.path / "study.yaml").read_text())
    assert spec["budget"]["trials"] == 5


def test_a_death_between_the_files_leaves_the_study_as_it_was(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.prepare(budget={"trials": 4}).snapshot()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.study.extending.write_json", dies)
    with pytest.raises(KeyboardInterrupt):
        extend(read(lab), lab.directory, {"budget.trials": 5})
    assert read(lab).spec.budget.trials == 4
    with pytest.raises(InputError) as caught:
        check_unedited(lab.directory)
    assert "--trials 5" in str(caught.value.hint)
