"""A task of lm-eval as a process: what it is told, what is read from its files, how it is ended.

A program that writes the harness's files stands in for it: the real one needs a model's tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.errors import Interrupted
from autotune.spec.model import QualitySpec
from autotune.study.task_score import TaskRun, run_task

DOUBLE = """
import json, os, pathlib, sys, time
words = sys.argv[1:]
told = dict(zip(words, words[1:]))
key = os.environ["OPENAI_API_KEY"]
pathlib.Path(os.environ["DOUBLE_TOLD"]).write_text(json.dumps([words, key]))
time.sleep(float(os.environ.get("DOUBLE_SLEEP", "0")))
print("some talk")
if told["--tasks"] == "unknown":
    sys.exit("ValueError: Tasks not found: unknown")
folder = pathlib.Path(told["--output_path"]) / "m"
folder.mkdir(parents=True)
rows = [
    {"doc_id": i, "filter": "none", "metrics": ["acc", "acc_norm"], "acc": i % 2, "acc_norm": 0.5}
    for i in range(int(told.get("--limit", 4)))
]
text = "\\n".join(json.dumps(row) for row in rows)
(folder / "samples_own_task_2026-01-01T00-00-00.000000.jsonl").write_text(text)
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "lm_eval"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(DOUBLE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("DOUBLE_TOLD", str(tmp_path / "told.json"))
    return tmp_path / "told.json"


def run(task: str = "own_task", seconds: float = 60.0, **changes: Any) -> TaskRun:
    quality = QualitySpec(check="lm-eval", task=task, documents=changes.pop("documents", None))
    told: dict[str, Any] = {
        "model": "served", "tokenizer": "folder", "url": "http://127.0.0.1:9/", "api_key": None,
        "seconds": seconds, "clock": SystemClock(), "stop": StopSignal(),
    }  # fmt: skip
    return run_task(quality, **{**told, **changes})


def test_harness_is_told_the_server_the_task_and_the_key(told: Path) -> None:
    run(documents=2, api_key="secret")
    words, key = json.loads(told.read_text())
    assert key == "secret"
    assert words[:2] == ["--model", "local-completions"]
    arguments = dict(pair.split("=", 1) for pair in words[3].split(","))
    assert arguments["base_url"] == "http://127.0.0.1:9/v1/completions"
    assert (arguments["model"], arguments["tokenizer"]) == ("served", "folder")
    assert words[words.index("--tasks") + 1] == "own_task"
    assert words[words.index("--limit") + 1] == "2"
    assert "secret" not in " ".join(words)


def test_score_of_each_document_is_its_first_metric(told: Path) -> None:
    found = run()
    assert found.problem is None
    assert found.scores == {f"own_task/{i}/none": float(i % 2) for i in range(4)}


def test_task_that_is_not_known_is_told_in_the_harness_own_words(told: Path) -> None:
    found = run("unknown")
    assert found.scores == {}
    assert found.problem == "lm-eval ended with code 1: ValueError: Tasks not found: unknown"


def test_harness_that_takes_too_long_is_ended(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOUBLE_SLEEP", "600")
    found = run(seconds=0.5)
    assert found.scores == {}
    assert "not done" in str(found.problem)


def test_user_who_stops_ends_the_harness(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOUBLE_SLEEP", "600")
    stop = StopSignal()
    stop.request()
    with pytest.raises(Interrupted):
        run(stop=stop)
