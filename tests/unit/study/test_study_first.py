"""Settings that are tried right after the baseline."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import InputError
from autotune.space.candidate import Candidate
from autotune.space.search_space import load_space
from autotune.study.first import first_candidates
from autotune.study.snapshot import space_json

KNOBS = {
    "max-num-seqs": {"type": "int", "values": [8, 16, 32, 64]},
    "enforce-eager": {"type": "switch"},
    "block-size": {"values": [16, 32], "when": "gpu.memory_gib > 40"},
}
BASELINE = Candidate({"max-num-seqs": 8, "enforce-eager": False})


def space(*first: dict[str, Any], **more: Any) -> Any:
    return load_space({"knobs": KNOBS, "first": list(first), **more})


def test_an_entry_changes_the_baseline_and_says_why() -> None:
    found = first_candidates(
        space(
            {"params": {"max-num-seqs": 64}, "why": "the guide's choice", "source": "vLLM docs"},
            {"params": {"enforce_eager": "on"}},
        ),
        BASELINE,
        {},
    )
    assert found.reasons == {
        Candidate({"max-num-seqs": 64, "enforce-eager": False}): "the guide's choice (vLLM docs)",
        Candidate({"max-num-seqs": 8, "enforce-eager": True}): "tried first",
    }
    assert found.note is None


def test_entries_for_other_studies_are_passed_over() -> None:
    entry = {"params": {"max-num-seqs": 64}, "when": "workload.prefix_reuse > 0.5"}
    assert first_candidates(space(entry), BASELINE, {"workload.prefix_reuse": 0.1}).reasons == {}
    assert first_candidates(space(entry), BASELINE, {}).reasons == {}
    assert first_candidates(space(entry), BASELINE, {"workload.prefix_reuse": 0.9}).reasons


def test_what_cannot_be_tried_here_is_left_out_with_its_reason() -> None:
    found = first_candidates(
        space(
            {"params": {"block-size": 32}},
            {"params": {"max-num-seqs": 64, "enforce-eager": True}},
            rules=["max-num-seqs <= 32"],
        ),
        BASELINE,
        {"gpu.memory_gib": 24},
    )
    assert found.reasons == {}
    assert found.note is not None
    assert "block-size does not vary here" in found.note
    assert "breaks the rule max-num-seqs <= 32" in found.note


def test_the_baseline_itself_and_repetitions_are_not_tried_again() -> None:
    entry = {"params": {"max-num-seqs": 16}}
    found = first_candidates(space({"params": {"max-num-seqs": 8}}, entry, entry), BASELINE, {})
    assert len(found.reasons) == 1


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"params": {"max-num-seq": 8}}, "unknown knob; nearest: max-num-seqs"),
        ({"params": {"max-num-seqs": 9}}, "not among the values of the knob: 8, 16, 32, 64"),
        ({"params": {"max-num-seqs": "many"}}, "max-num-seqs"),
        ({"params": {}}, "first"),
        ({"params": {"max-num-seqs": 8}, "because": "x"}, "because"),
        ({"params": {"max-num-seqs": 8}, "when": "gpu.size > 1"}, "unknown fact"),
    ],
)
def test_an_entry_that_cannot_be_is_an_error_of_the_file(entry: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        space(entry)
    told = [caught.value.message, *[problem.message for problem in caught.value.problems]]
    assert any(words in text for text in told), told


def test_first_entries_are_part_of_the_resolved_study() -> None:
    entry = {"params": {"max-num-seqs": 64}, "why": "w", "when": "gpu.count > 1", "source": "s"}
    assert space_json(space(entry))["first"] == [entry]
    again = load_space(space_json(space(entry)))
    assert again.first == space(entry).first


def test_the_reason_of_an_entry_lands_in_its_record(lab: Any, make: Any) -> None:
    lab.prepare(
        space={
            "engine": "simulated",
            "knobs": {"max-num-seqs": {"type": "int", "values": [8, 16, 32]}},
            "first": [{"params": {"max-num-seqs": 32}, "why": "a preset"}],
        }
    )
    lab.reasons = lab.study.first.reasons
    lab.runs(*lab.study.first.reasons, make.candidate(16))
    records = lab.directory.records()
    assert [(r.candidate, r.why) for r in records[1:]] == [
        (make.candidate(32), "a preset"),
        (make.candidate(16), None),
    ]
