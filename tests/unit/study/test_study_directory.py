"""The study directory: whole files or none, numbers that go on, one run at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.study.directory import StudyDirectory, read_json, write_json, write_text
from autotune.study.events import wall_seconds
from autotune.study.record import TrialRecord

HOLD = """
import sys, time
from pathlib import Path
from autotune.study.directory import StudyDirectory
with StudyDirectory(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def record(number: int) -> TrialRecord:
    return TrialRecord(number=number, role="search", state="infeasible", params={"a": number})


@pytest.fixture
def directory(tmp_path: Path) -> StudyDirectory:
    (tmp_path / "trials").mkdir()
    return StudyDirectory(tmp_path)


def test_trial_has_its_final_name_only_with_its_outcome(directory: StudyDirectory) -> None:
    folder = directory.open_trial(0)
    assert directory.records() == []
    assert directory.partial_trials() == [(0, folder)]
    final = directory.close_trial(folder, record(0))
    assert final.name == "0000"
    assert directory.partial_trials() == []
    assert directory.records() == [record(0)]


def test_numbers_go_on_over_partial_and_finished_trials(directory: StudyDirectory) -> None:
    assert directory.next_number() == 0
    directory.close_trial(directory.open_trial(0), record(0))
    directory.open_trial(7)
    assert directory.next_number() == 8


def test_strange_folders_among_the_trials_are_left_alone(directory: StudyDirectory) -> None:
    for name in ("0003-copy", "0003.bak", "notes", "12x.partial"):
        (directory.trials / name).mkdir()
    assert directory.next_number() == 0
    assert directory.records() == []
    assert directory.partial_trials() == []


def test_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["verdict.json"]


def test_written_text_has_its_mode_and_no_scratch_file_beside_it(tmp_path: Path) -> None:
    write_text(tmp_path / "launch.sh", "exec true\n", mode=0o755)
    assert os.access(tmp_path / "launch.sh", os.X_OK)
    assert [p.name for p in tmp_path.iterdir()] == ["launch.sh"]


def test_broken_and_missing_files_are_input_errors(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"a": ')
    with pytest.raises(InputError, match=r"cannot read .*torn\.json"):
        read_json(tmp_path / "torn.json")
    with pytest.raises(InputError, match="file not found"):
        read_json(tmp_path / "none.json")


def test_folder_without_a_study_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no study in") as folder:
        StudyDirectory.existing(tmp_path)
    assert folder.value.seen == "there is no study.json"
    with pytest.raises(InputError) as missing:
        StudyDirectory.existing(tmp_path / "none")
    assert missing.value.seen == "the folder does not exist"


def test_torn_event_line_is_left_out_and_takes_no_other_with_it(directory: StudyDirectory) -> None:
    directory.append_event({"kind": "note", "message": "one"})
    with (directory.path / "events.jsonl").open("a") as stream:
        stream.write('{"kind": "phase", "tri')
    directory.append_event({"kind": "note", "message": "two"})
    assert [event["message"] for event in directory.events()] == ["one", "two"]


@given(st.lists(st.text(), max_size=5))
def test_events_come_back_whatever_their_text(tmp_path_factory: object, texts: list[str]) -> None:
    folder: Path = tmp_path_factory.mktemp("events")  # type: ignore[attr-defined]
    directory = StudyDirectory(folder)
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    for text in texts:
        directory.append_event({"message": text})
    assert [event["message"] for event in directory.events()] == texts


def test_second_run_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(InputError, match="being run already") as refused,
            StudyDirectory(tmp_path).locked(),
        ):
            pass
        assert refused.value.seen == f"its lock is held by pid {holder.pid}"
        assert holder.stdin is not None
        holder.stdin.close()
    with StudyDirectory(tmp_path).locked():
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_trial_that_only_lacked_its_final_name_is_adopted(directory: StudyDirectory) -> None:
    folder = directory.open_trial(4)
    assert directory.adopt(4, folder) is None
    write_json(folder / "outcome.json", record(4).to_json())
    assert directory.adopt(4, folder) == record(4)
    assert directory.records() == [record(4)]


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.one_of(st.integers(), NUMBERS, st.booleans(), st.none(), st.text())
NAMES = st.text(min_size=1, max_size=12)
RECORDS = st.builds(
    TrialRecord,
    number=st.integers(0, 9999),
    role=st.sampled_from(["baseline", "search", "confirm"]),
    state=st.sampled_from(["measured", "infeasible", "unmeasurable", "interrupted"]),
    params=st.dictionaries(NAMES, VALUES, max_size=4),
    values=st.dictionaries(NAMES, NUMBERS, max_size=2),
    constraints=st.dictionaries(NAMES, NUMBERS, max_size=2),
    limits=st.dictionaries(NAMES, NUMBERS, max_size=2),
    feasible=st.booleans(),
    pair=st.one_of(st.none(), st.integers(0, 9)),
    fault=st.one_of(st.none(), st.text()),
    reason=st.one_of(st.none(), st.text()),
    message=st.one_of(st.none(), st.text()),
    evidence=st.lists(st.text(), max_size=3).map(tuple),
    seconds=st.dictionaries(NAMES, NUMBERS, max_size=3),
    simulated=st.booleans(),
)


@given(RECORDS)
def test_records_come_back_from_their_json(record: TrialRecord) -> None:
    text = json.dumps(record.to_json(), allow_nan=False)
    back = TrialRecord.from_json(json.loads(text))
    assert back == record
    assert back.candidate == record.candidate


def test_records_of_newer_versions_can_be_read() -> None:
    data = record(3).to_json() | {"invented_later": 1}
    assert TrialRecord.from_json(data) == record(3)


def test_runs_of_a_study_take_as_long_as_each_to_its_last_event() -> None:
    moments = [
        ("note", 0.1), ("study_started", 0.2), ("trial_finished", 9.0), ("note", 8.0),
        ("study_started", 0.1), ("phase", 4.0),
    ]  # fmt: skip
    assert wall_seconds(moments) == pytest.approx(13.1)
    assert wall_seconds([]) == 0.0
