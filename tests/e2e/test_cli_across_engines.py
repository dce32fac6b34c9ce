"""A study across two engines by the command line: killed, resumed, reported."""

from __future__ import annotations

import json
import signal
from typing import Any

ENGINE = {
    "kind": ["simulated", "simulated-sglang"],
    "args": {"sim-profile": "quickstart", "sim-startup": 0.3, "sim-seed": 1},
}
SPACE = {
    "simulated": {"knobs": {"max-num-seqs": [8, 32], "max-num-batched-tokens": [1024, 2048]}},
    "simulated-sglang": {
        "knobs": {"max-running-requests": [8, 32], "chunked-prefill-size": [1024, 2048]},
        "first": [{"params": {"max-running-requests": 32}, "why": "more at once"}],
    },
}


def test_a_study_across_engines_survives_its_death_and_compares_them(
    bench: Any, looks: Any
) -> None:
    study = bench.write(engine=ENGINE, space=SPACE, budget={"trials": 8})
    tuner = bench.start("tune", study, "--out", bench.run_folder)
    bench.await_phase("replaying", 1)
    tuner.send_signal(signal.SIGKILL)
    looks.finish(tuner)
    said = bench.run("resume", bench.run_folder, timeout_s=240.0)
    assert said.returncode == 0, said.stderr
    assert looks.marked(bench.study_id()) == []

    shown = json.loads(bench.run("show", bench.run_folder, "--json").stdout)
    kinds = [trial["params"]["engine"] for trial in shown["trials"]]
    # The other engine and its presets come right after the baseline, without a change between
    assert kinds[:4] == ["simulated", *["simulated-sglang"] * 3]
    assert [trial["state"] for trial in shown["trials"]][:2] == ["measured", "interrupted"]
    assert "to compare the engines" in shown["trials"][2]["why"]
    assert len([t for t in shown["trials"] if t["state"] != "interrupted"]) == 8
    assert [one["engine"] for one in shown["engines"]] == ENGINE["kind"]
    best = [next(t for t in shown["trials"] if t["number"] == e["best"]) for e in shown["engines"]]
    assert [trial["params"]["engine"] for trial in best] == ENGINE["kind"]
    fingerprint = bench.json("fingerprint.json")
    assert [one["kind"] for one in fingerprint["engines"]] == ENGINE["kind"]

    for trial, word in zip(best, ("serve", "serve-sglang"), strict=True):
        plan = bench.json(f"trials/{trial['number']:04d}/plan.json")
        argv = plan["members"][0]["argv"]
        assert word in argv
        assert "--engine" not in argv
    chosen = shown["best"] if shown["verdict"] == "better" else 0
    kind = next(t for t in shown["trials"] if t["number"] == chosen)["params"]["engine"]
    assert bench.json("best/manifest.json")["engine"]["kind"] == kind
    page = (bench.run_folder / "report.html").read_text()
    assert "Engines side by side" in page
    assert "simulated SGLang" in page


def test_the_resolved_study_file_reads_back(bench: Any) -> None:
    study = bench.write(engine=ENGINE, space=SPACE, budget={"trials": 2})
    assert bench.run("tune", study, "--out", bench.run_folder).returncode == 0
    planned = bench.run("plan", bench.run_folder / "study.yaml", "--json")
    assert planned.returncode == 0, planned.stderr
    again = json.loads(planned.stdout)["study"]
    assert again["engine"]["kind"] == ENGINE["kind"]
    assert set(again["space"]) == set(SPACE)
