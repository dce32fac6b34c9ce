"""Memory in the report: the estimate beside the log, and what was refused before launch."""

from __future__ import annotations

import json
from typing import Any

from autotune.report.html import render
from autotune.report.memory import memory_rows, refused_rows
from autotune.report.view import load_view

ESTIMATE = {"budget_gib": 128.7, "weights_gib": 14.2, "overhead_gib": 2.0, "kv_gib": 112.5,
            "kv_tokens": 2106000, "asked_tokens": 32768}  # fmt: skip
LOG = {"weights_gib": 14.25, "kv_gib": 108.52, "kv_tokens": 2032096.0, "graphs_gib": 0.62}


def with_memory(study: Any, number: int, memory: dict[str, Any]) -> None:
    path = study.path / "trials" / f"{number:04d}" / "outcome.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "memory": memory}))


def test_the_estimate_stands_beside_what_the_engine_said(study: Any) -> None:
    made = study().header().search(4)
    with_memory(made, 0, {"estimate": ESTIMATE, "log": LOG})
    with_memory(made, 2, {"log": {"kv_gib": 90.0}})
    baseline, other = memory_rows(load_view(made.path))
    assert baseline.weights == ("14.20 GiB", "14.25 GiB")
    assert baseline.cache == ("112.50 GiB", "108.52 GiB")
    assert baseline.tokens == ("2,106,000", "2,032,096")
    assert baseline.graphs == "0.62 GiB"
    assert baseline.changed == "as today"
    assert (other.trial, other.cache) == (2, ("not known", "90.00 GiB"))
    page = render(load_view(made.path))
    assert "112.50 GiB / 108.52 GiB" in page
    assert page.count('id="memory"') == 1


def test_candidates_refused_before_launch_are_counted_with_their_reason(study: Any) -> None:
    made = study().header().search(3)
    assert refused_rows(load_view(made.path)) == []
    assert 'id="refused"' not in render(load_view(made.path))
    lines = [
        {"params": {"max-model-len": 131072}, "reason": "does_not_fit", "message": "<b>too big"},
        {"params": {"max-model-len": 65536}, "reason": "does_not_fit"},
    ]
    made.write("refused.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    page = render(load_view(made.path))
    assert "2 candidates were refused before launch" in page
    assert "&lt;b&gt;too big" in page
    assert refused_rows(load_view(made.path))[1][1] == "does_not_fit"
