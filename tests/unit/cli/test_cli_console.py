"""How the command line speaks: results, errors, signals, directories; and what a plan says."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import app
from autotune.cli.console import result, result_json, show_error
from autotune.cli.estimates import fit_of, fit_words
from autotune.cli.planning import first_launch, plan_json, plan_text
from autotune.cli.signals import FIRST, SECOND, stop_on_signals
from autotune.cli.tuning import made, new_directory, refuse_taken
from autotune.clock import StopSignal, SystemClock, VirtualClock
from autotune.errors import EnvironmentFault, InputError, Place, Problem
from autotune.space.study_space import OpenedStudy, open_study
from autotune.study.prepare import PreparedStudy, prepare

# ---- speaking


def test_results_go_to_stdout_and_end_with_one_line_end(capsys: Any) -> None:
    result("runs/x")
    result("two\n")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("runs/x\ntwo\n", "")


def test_json_results_are_strict(capsys: Any) -> None:
    result_json({"name": "\u00e4", "value": None})
    assert json.loads(capsys.readouterr().out) == {"name": "\u00e4", "value": None}
    with pytest.raises(ValueError, match="not JSON compliant"):
        result_json({"value": float("inf")})
    assert capsys.readouterr().out == ""


def test_errors_go_to_stderr_in_the_template_without_escape_codes(capsys: Any) -> None:
    place = Place(file="study.yaml", line=3, column=5, length=3, text="    foo: 1", label="no")
    show_error(
        InputError(
            message="1 problem",
            problems=[Problem(message="`foo`: no", place=place)],
            seen="a [bold]fact[/bold]",
            hint="`autotune plan`",
        )
    )
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: 1 problem\n  --> study.yaml:3:5\n")
    assert "a [bold]fact[/bold]" in said.err
    assert "hint: `autotune plan`" in said.err
    assert "\x1b" not in said.err


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def broken(args: Any) -> None:
        raise error

    monkeypatch.setattr(app, "app", broken)
    with pytest.raises(SystemExit) as end:
        app.main(["doctor"])
    return int(end.value.code or 0)


def test_each_error_ends_with_its_own_exit_code(capsys: Any, monkeypatch: Any) -> None:
    assert raising(EnvironmentFault(message="no docker"), monkeypatch) == 4
    assert capsys.readouterr().err == "error: no docker\n"


def test_full_disk_is_a_fault_of_the_machine(capsys: Any, monkeypatch: Any) -> None:
    full = OSError(28, "No space left on device", "runs/x/events.jsonl")
    assert raising(full, monkeypatch) == 4
    assert capsys.readouterr().err == "error: no space left on device: runs/x/events.jsonl\n"


def test_own_fault_is_told_without_a_traceback(
    capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert raising(ZeroDivisionError("x"), monkeypatch) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: autotune met a fault of its own: ZeroDivisionError: x")
    assert "--log-level debug" in said
    assert list(tmp_path.iterdir()) == []


def test_own_fault_leaves_its_traceback_in_a_file_on_request(
    capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app.Settings, "debug", True)
    assert raising(ZeroDivisionError("x"), monkeypatch) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert "ZeroDivisionError" in (tmp_path / "autotune-fault.log").read_text()


# ---- signals


def test_signals_become_wishes_and_the_old_handlers_come_back(capsys: Any) -> None:
    stop = StopSignal()
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with stop_on_signals(stop):
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.requested, stop.forced) == (True, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.forced
    after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert after == before
    said = capsys.readouterr().err
    assert FIRST in said
    assert said.index(FIRST) < said.index(SECOND)


def test_signal_in_the_middle_of_a_write_only_loses_its_words(monkeypatch: Any) -> None:
    from autotune.cli import signals

    def entered(text: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    monkeypatch.setattr(signals, "say", entered)
    stop = StopSignal()
    with stop_on_signals(stop):
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.requested


# ---- directories


def test_directory_is_named_for_the_date_and_the_study(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    clock = VirtualClock()
    day = clock.utcnow().astimezone().date().isoformat()
    assert new_directory("a b/../c", clock) == Path("runs") / f"{day}-a-b-..-c"
    assert new_directory("???", clock).name == f"{day}-study"
    Path(f"runs/{day}-x").mkdir(parents=True)
    assert new_directory("x", clock).name == f"{day}-x-2"


def fail_in(folder: Path, name: str) -> None:
    with made(folder):
        (folder / name).write_text("{}")
        raise InputError(message="no")


def test_run_that_fails_before_its_study_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    with pytest.raises(InputError):
        fail_in(folder, "tune.log")
    assert list(tmp_path.iterdir()) == []


def test_run_that_fails_later_keeps_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    with pytest.raises(InputError):
        fail_in(folder, "study.json")
    assert (folder / "study.json").exists()


def test_folder_that_was_there_before_is_never_removed(tmp_path: Path) -> None:
    with pytest.raises(InputError), made(tmp_path):
        raise InputError(message="no")
    assert tmp_path.is_dir()


def test_empty_folder_may_take_a_study(tmp_path: Path) -> None:
    refuse_taken(tmp_path)
    refuse_taken(tmp_path / "new")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        refuse_taken(tmp_path)


# ---- plans


@pytest.fixture
def opened(tmp_path: Path) -> OpenedStudy:
    rows = [{"t": i * 0.1, "in": 64, "out": 4} for i in range(15)]
    (tmp_path / "tiny.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = {
        "name": "plan", "model": "sim", "baseline": {"max-num-seqs": 8}, "space": "quick",
        "engine": {"kind": "simulated", "env": {"HF_TOKEN": {"from_env": "MY_TOKEN"}, "A": "b c"}},
        "workload": {"path": "tiny.jsonl"}, "objective": "minimize ttft_p95",
        "budget": {"time": "1h", "trials": 20}, "search": {"repeats": 2},
    }  # fmt: skip
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study))
    return open_study(path)


@pytest.fixture
def study(opened: OpenedStudy) -> PreparedStudy:
    return prepare(opened, clock=SystemClock(), stop=StopSignal())


def test_plan_tells_every_value_and_its_origin(study: PreparedStudy, opened: OpenedStudy) -> None:
    text = plan_text(study, opened.study.origins, verbose=True)
    for words in ("SIMULATED", "max-num-seqs 8", "15 requests", "held out", "(study file)",
                  "(default)", "rule: max-num-batched-tokens >= max-num-seqs"):  # fmt: skip
        assert words in text
    assert "None in" not in text


def test_first_launch_can_be_typed_and_shows_no_secret(
    study: PreparedStudy, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MY_TOKEN", "sw0rdfish")
    line = first_launch(study)
    assert line.startswith("A='b c' HF_TOKEN=${MY_TOKEN} ")
    assert "sw0rdfish" not in line
    assert "--port 8000" in line


def test_plan_as_json_is_strict_and_complete(study: PreparedStudy, opened: OpenedStudy) -> None:
    data = json.loads(json.dumps(plan_json(study, opened.study.origins), allow_nan=False))
    assert data["launches"] == {"search": 20, "confirm": 4, "extra": 0}
    assert data["first_launch"]["secrets"] == {"HF_TOKEN": "MY_TOKEN"}
    assert data["workload"]["requests"] == 15


def test_launches_that_fit_are_bounded_by_time_and_trials(study: PreparedStudy) -> None:
    def fit(**budget: Any) -> tuple[int | None, int]:
        spec = study.spec.model_copy(update={"budget": study.spec.budget.model_copy(update=budget)})
        found = fit_of(replace(study, spec=spec))
        return found.search, found.confirm

    assert fit(time=None, trials=None) == (None, 4)
    assert fit(time=None, trials=7) == (7, 4)
    searched, confirm = fit(time=100.0, trials=None)
    assert searched is not None
    assert 1 <= searched < 10
    assert confirm == 4


def test_plan_tells_what_several_slots_and_gpu_hours_hold(study: PreparedStudy) -> None:
    search = study.spec.search.model_copy(update={"repeats": 3})
    spec = study.spec.model_copy(update={"search": search})
    one = fit_of(replace(study, spec=spec))
    four = fit_of(replace(study, spec=spec, slots=(None,) * 4))
    assert (one.search, one.confirm, one.extra) == (four.search, four.confirm, four.extra)
    assert one.total_s is not None
    assert four.total_s is not None
    assert four.total_s < one.total_s / 3
    assert four.gpu_hours == pytest.approx(one.gpu_hours)
    assert "4 at a time" in fit_words(four, has_gpus=True)
    assert "4 more if the verdict stays open" in fit_words(four, has_gpus=True)
    tight = spec.model_copy(
        update={"budget": study.spec.budget.model_copy(update={"gpu_hours": 0.05})}
    )
    few = fit_of(replace(study, spec=tight))
    assert few.search is not None
    assert few.search < 20
    assert few.gpu_hours is not None
    assert few.gpu_hours <= 0.05
    assert "GPU-hours" in fit_words(few, has_gpus=True)
