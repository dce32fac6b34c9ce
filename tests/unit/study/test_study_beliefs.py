"""What the search believes decides who is confirmed, and is kept for a resume."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.study.beliefs import FILE, read_beliefs
from autotune.study.conclusion import Conclusion

LUCKY = {16: 0.050, 32: 0.052}


@pytest.fixture
def believing(lab: Any, make: Any) -> Any:
    """A study whose best measured candidate (16) is believed to be the second best."""
    candidates = [make.candidate(n) for n in LUCKY]

    def script(task: Any) -> Any:
        return make.served(LUCKY.get(task.candidate.params["max-num-seqs"], 0.1))

    lab.script = script
    lab.prepare(budget={"trials": 3}, search={"seed": 1, "repeats": 2})
    lab.believed = {candidates[0].key: 0.054, candidates[1].key: 0.051}
    return lab


def test_the_believed_best_is_confirmed_and_beliefs_are_kept_by_trial(
    believing: Any, make: Any
) -> None:
    believing.runs(*[make.candidate(n) for n in LUCKY])
    confirmed = {
        r.params["max-num-seqs"] for r in believing.directory.records() if r.role == "confirm"
    }
    assert confirmed == {8, 32}
    kept = json.loads((believing.directory.path / FILE).read_text())
    assert kept == {"objective": "minimize ttft_p95", "values": {"1": 0.054, "2": 0.051}}


def test_a_resume_confirms_the_same_finalist(believing: Any, make: Any) -> None:
    believing.runs(*[make.candidate(n) for n in LUCKY])
    before = len(believing.tasks)
    # A run that has nothing left to search asks nobody what is believed
    believing.believed = {}
    end = believing.runs(*[make.candidate(n) for n in LUCKY])
    assert len(believing.tasks) == before
    assert end.verdict.best == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"values": {"x": 1}}', '{"values": {"1": []}}'])
def test_a_file_that_cannot_be_read_leaves_the_choice_to_what_was_measured(
    believing: Any, make: Any, text: str
) -> None:
    believing.runs(*[make.candidate(n) for n in LUCKY])
    (believing.directory.path / FILE).write_text(text)
    assert read_beliefs(believing.directory) == {}
    records = [r for r in believing.directory.records() if r.role != "confirm"]
    objectives = believing.study.spec.objective
    found = Conclusion(
        records, objectives, make.baseline, believed=read_beliefs(believing.directory)
    )
    assert [r.params["max-num-seqs"] for r in found.finalists(1)] == [16]
