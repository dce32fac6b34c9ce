from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.report.caveats import doubts
from autotune.report.charts import history
from autotune.report.comparison import compare, limit_states, sides, success_interval
from autotune.report.engines_compared import engine_results
from autotune.report.fact_tables import environment_rows
from autotune.report.figure import goal_words, mark_of
from autotune.report.html import render
from autotune.report.show import show_json, trial_json
from autotune.report.view import load_view

Make = Callable[..., Any]


def test_an_empty_folder_is_a_study_without_trials(tmp_path: Path) -> None:
    view = load_view(tmp_path)
    assert view.trials == ()
    assert view.best is None
    assert "No trial has finished yet" in render(view)


def test_what_cannot_be_read_is_left_out_and_said(study: Make) -> None:
    made = study(requests=60).search(4)
    (made.path / "trials" / "0001" / "outcome.json").write_text('{"number": 1, "sta')
    (made.path / "trials" / "0002" / "measurement.json").write_text("[1, 2")
    (made.path / "trials" / "0003" / "requests.parquet").write_bytes(b"PAR1 torn")
    (made.path / "trials" / "0009").mkdir()
    (made.path / "trials" / "0010.partial").mkdir()
    (made.path / "trials" / "notes.txt").write_text("mine")
    (made.path / "verdict.json").write_text('{"verdict": "splendid"}')
    with (made.path / "events.jsonl").open("a") as stream:
        stream.write('{"kind": "broken\n[]\n')
    view = load_view(made.path)
    assert [trial.number for trial in view.trials] == [0, 2, 3, 4]
    assert view.unfinished == ("0009", "0010.partial")
    assert view.verdict is None
    text = "\n".join(view.problems)
    for place in ("0001/outcome.json", "0002/measurement.json", "0009", "verdict.json",
                  "events.jsonl: 2 unreadable lines"):  # fmt: skip
        assert place in text
    page = render(view)
    assert "0001/outcome.json" in page


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(["study.json", "fingerprint.json", "verdict.json",
                          "trials/0001/outcome.json", "trials/0001/measurement.json",
                          "trials/0001/plan.json"]),
    share=st.floats(0, 1),
)  # fmt: skip
def test_a_file_torn_at_any_byte_never_stops_the_report(
    tmp_path_factory: Any, name: str, share: float
) -> None:
    text = TORN_TEXT[name] if name in TORN_TEXT else json.dumps({"members": []})
    root = tmp_path_factory.mktemp("torn")
    for file, content in TORN_TEXT.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(content)
    (root / name).write_text(text[: int(len(text) * share)])
    assert "<h1>" in render(load_view(root))


TORN_TEXT = {
    "study.json": json.dumps({"name": "n", "model": "m", "objective": ["minimize ttft_p95"],
                              "constraints": [], "baseline": {}, "space": {"knobs": []}}),
    "fingerprint.json": json.dumps({"engine": {"kind": "vllm"}, "workload": {}}),
    "verdict.json": json.dumps({"verdict": "keep_baseline", "best": 0, "pairs": [{"pair": 0}],
                                "change": {"ratio": 1.0}}),
    "trials/0001/outcome.json": json.dumps({"number": 1, "role": "search", "state": "measured",
                                            "params": {}, "feasible": True,
                                            "values": {"minimize ttft_p95": 0.5}}),
    "trials/0001/measurement.json": json.dumps({
        "validity": {"verdict": "valid", "reasons": []},
        "requests": {"planned": 1, "ok": 1, "failed": 0, "failed_by_reason": {}},
        "metrics": {"ttft_p95_s": 0.5}, "intervals": {}, "client": {}}),
}  # fmt: skip


def test_the_environment_names_what_all_engines_are_and_what_they_share_once(study: Make) -> None:
    made = study(requests=60).search(1)
    fingerprint = json.loads((made.path / "fingerprint.json").read_text())
    other = {"kind": "sglang", "version": "0.5.13", "image": None, "launcher": "docker"}
    fingerprint["engines"] = [fingerprint["engine"] | {"launcher": "docker"}, other]
    made.json("fingerprint.json", fingerprint)
    rows = dict(environment_rows(load_view(made.path)))
    assert rows["engine"] == f"{fingerprint['engine']['kind']} and sglang"
    assert rows["engine version"] == "0.26.0 and 0.5.13"
    assert rows["image"] == fingerprint["engine"]["image"]
    assert rows["launcher"] == "docker"


def test_an_engine_that_was_never_measured_is_a_doubt_and_no_miss_of_limits(study: Make) -> None:
    made = study(requests=60)
    made.measured({"engine": "vllm"}, ttft=0.5, tpot=0.02, role="baseline")
    made.measured({"engine": "vllm", "max-num-seqs": 64}, ttft=0.4, tpot=0.02)
    fingerprint = json.loads((made.path / "fingerprint.json").read_text())
    others = [{"kind": kind, "version": "0.5.13"} for kind in ("sglang", "generic")]
    fingerprint["engines"] = [{"kind": "vllm", "version": "0.26.0"}, *others]
    made.json("fingerprint.json", fingerprint)
    made.failed({"engine": "sglang"})
    view = load_view(made.path)
    found = [doubt for doubt in doubts(view) if doubt.code == "engine-not-measured"]
    assert all(doubt.urgent for doubt in found)
    assert [doubt.text.partition(":")[0] for doubt in found] == [
        "SGLang 0.5.13 was not compared",
        "generic 0.5.13 was not launched, so not compared.",
    ]
    assert view.trials[2].record.message in found[0].text
    assert "#2" in found[0].text
    told = {result.kind: result.settings for result in engine_results(view)}
    assert told["sglang"] == "none of its launches could be measured"
    assert told["generic"] == "not launched"
    assert "max-num-seqs" in told["vllm"]


def test_a_launch_that_was_ended_early_is_drawn_and_told_apart_from_a_failure(study: Make) -> None:
    made = study(requests=60).search(4)
    made.failed({"max-num-seqs": 64})
    early = {"rule": "cannot_beat_best", "key": "cannot_beat_best"}
    made.failed({"max-num-seqs": 128}, reason="cannot_beat_best", stopped_early=early)
    view = load_view(made.path)
    failed, ended = view.trials[-2:]
    assert (mark_of(view, failed), mark_of(view, ended)) == ("failed", "ended")
    assert goal_words(view, failed) == "failed (out of memory)"
    assert goal_words(view, ended) == "ended early (cannot beat best)"
    figure = history(view)
    assert {("failed", "failed"), ("ended", "ended early")} <= set(figure.legend)
    assert sum(picture.count('class="mark ended"') for picture in figure.pictures) == 1
    assert "1 ended early and 1 failed" in str(figure.pictures[0])


def test_show_json_keeps_its_contract(study: Make) -> None:
    made = study(requests=60).search(6).verdict("better")
    value = show_json(load_view(made.path))
    json.dumps(value, allow_nan=False)
    assert value["verdict"] == "better"
    assert value["best"] == 6
    assert {"number", "state", "params", "values", "constraints", "feasible"} <= set(
        value["trials"][0]
    )
    assert value["study"]["name"] == "qwen-rag-overnight"


def test_show_json_has_no_verdict_and_the_best_so_far_before_the_end(study: Make) -> None:
    value = show_json(load_view(study(requests=60).search(4).path))
    assert value["verdict"] is None
    assert value["best"] == 4


def test_one_trial_is_shown_with_its_measurement_and_an_unknown_one_is_none(study: Make) -> None:
    view = load_view(study(requests=60).search(3).path)
    value = trial_json(view, 1)
    assert value is not None
    assert value["measurement"]["requests"]["planned"] == 60
    assert "exec vllm serve" in value["launch"]
    assert trial_json(view, 99) is None


def test_the_best_is_the_same_in_json_page_and_view(study: Make) -> None:
    made = study(requests=60).search(8).verdict("better").scripts()
    view = load_view(made.path)
    assert view.best is not None
    assert show_json(view)["best"] == view.best.number
    assert f"recommended (#{view.best.number})" in render(view)


def test_a_comparison_uses_the_confirmation_pairs_for_every_metric(study: Make) -> None:
    view = load_view(study(requests=60).search(6).verdict("better").path)
    today, new = sides(view)
    assert today is not None
    assert new is not None
    assert [trial.record.role for trial in (*today.trials, *new.trials)] == ["confirm"] * 6
    rows = {row.metric.name: row for row in compare(view)}
    assert next(iter(rows)) == "ttft_p95"
    assert rows["ttft_p95"].change == view.verdict.change  # type: ignore[union-attr]
    change = rows["tpot_p95"].change
    assert change is not None
    assert change.low is not None
    assert change.low < change.ratio < 1


def test_a_limit_holds_only_if_its_whole_interval_is_inside(study: Make) -> None:
    view = load_view(study(requests=400).search(4).verdict("better").path)
    _, new = sides(view)
    standing = {s.text.split()[0]: s.standing for s in limit_states(view, new)}
    assert standing == {"tpot_p95": "holds", "success_rate": "not_shown"}


def test_zero_failures_show_one_minus_three_over_n() -> None:
    low, high = success_interval(2214, 0)
    assert low is not None
    assert round(low, 4) == 0.9986
    assert high == 1.0


def test_the_report_module_imports_no_heavy_library() -> None:
    code = (
        "import sys, autotune.report.html, autotune.report.show\n"
        "print([m for m in ('jinja2', 'pandas', 'pyarrow', 'scipy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
