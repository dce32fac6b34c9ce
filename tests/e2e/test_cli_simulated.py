"""Whole studies of the simulated engine through the command line, over real HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

pytestmark = pytest.mark.e2e

ESCAPE = "\x1b"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- a study that ends by itself


def test_tune_prints_the_directory_and_nothing_else_on_stdout(done: Any) -> None:
    said = done.said
    assert said.returncode == 0, said.stderr
    assert said.stdout == f"{done.run_folder}\n"
    assert ESCAPE not in said.stderr
    assert "SIMULATED" in said.stderr
    assert re.search(r"baseline  trial=0 \d+\.\d s ", said.stderr)
    assert "Traceback" not in said.stderr


def test_study_directory_holds_what_the_design_promises(done: Any) -> None:
    run = done.run_folder
    for name in (
        "study.yaml", "study.json", "fingerprint.json", "events.jsonl", "optuna.db", "report.html",
        "verdict.json", "workload.jsonl.zst", "tune.log", "best/launch.sh", "best/manifest.json",
        "best/README.md", "best/rollback.sh", "best/autotune.service",
    ):  # fmt: skip
        assert (run / name).is_file(), name
    for trial in (0, 1, 2):
        for name in ("plan.json", "launch.sh", "server.log", "outcome.json", "measurement.json",
                     "requests.parquet", "telemetry.parquet"):  # fmt: skip
            assert (run / "trials" / f"{trial:04d}" / name).is_file(), (trial, name)
    assert (run / "trials/0000/server.log").stat().st_mode & 0o777 == 0o600
    assert list(run.rglob("*.partial")) == []
    assert list(run.rglob("*.tmp")) == []
    assert list(run.rglob("*.pid.json")) == []


def test_every_json_file_is_strict(done: Any) -> None:
    names = [str(p.relative_to(done.run_folder)) for p in done.run_folder.rglob("*.json")]
    assert len(names) > 12
    for name in names:
        assert done.json(name) is not None


def test_manifest_tells_what_was_measured_and_that_it_was_simulated(done: Any) -> None:
    manifest = done.json("best/manifest.json")
    assert manifest["simulated"] is True
    text = json.dumps(manifest)
    assert "--max-num-seqs" in text
    assert "ttft_p95" in text


def test_report_is_one_page_that_says_simulated_and_loads_nothing(done: Any) -> None:
    page = (done.run_folder / "report.html").read_text()
    assert "SIMULATED" in page.upper()

    class Links(HTMLParser):
        outside: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            for name, value in attrs:
                if name == "src" or (tag == "link" and name == "href"):
                    self.outside.append(value or "")

    parser = Links()
    parser.feed(page)
    assert [link for link in parser.outside if link.startswith(("http", "//"))] == []


def test_no_server_outlives_the_study(done: Any, looks: Any) -> None:
    assert looks.marked(done.study_id()) == []


def test_show_gives_the_trials_as_json(done: Any) -> None:
    answer = done.run("show", done.run_folder, "--json")
    assert answer.returncode == 0
    shown = json.loads(answer.stdout)
    assert [t["number"] for t in shown["trials"]] == list(range(len(shown["trials"])))
    first = shown["trials"][0]
    assert {"number", "state", "params", "values", "constraints", "feasible"} <= first.keys()
    assert first["params"] == {"max-num-seqs": 8}
    assert shown["verdict"] == done.json("verdict.json")["verdict"]


def test_show_of_one_trial_ends_with_its_log(done: Any) -> None:
    answer = done.run("show", done.run_folder, "--trial", "1")
    assert answer.returncode == 0
    assert "last lines of server.log" in answer.stdout
    missing = done.run("show", done.run_folder, "--trial", "99")
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: no finished trial 99")


@pytest.mark.parametrize("fmt", ["bash", "argv", "systemd"])
def test_script_prints_the_launch_in_each_form(done: Any, fmt: str) -> None:
    answer = done.run("script", done.run_folder, "--format", fmt, "--trial", "1")
    assert answer.returncode == 0, answer.stderr
    plan = done.json("trials/0001/plan.json")["members"][0]
    assert "--max-num-seqs" in answer.stdout
    if fmt == "argv":
        words = [w for w in plan["argv"] if w not in ("{host}", "{port}")]
        printed = json.loads(answer.stdout) if answer.stdout.startswith("[") else answer.stdout
        assert all(word in printed for word in words)
    elif fmt == "bash":
        subprocess.run(["bash", "-n"], input=answer.stdout, text=True, check=True)
    else:
        assert "ExecStart=" in answer.stdout


def test_report_can_be_built_again(done: Any) -> None:
    answer = done.run("report", done.run_folder)
    assert (answer.returncode, answer.stdout) == (0, f"{done.run_folder}/report.html\n")


def test_emitted_script_starts_a_server_that_answers_and_ends_on_sigterm(
    done: Any, looks: Any
) -> None:
    port = free_port()
    process = subprocess.Popen(
        ["bash", str(done.run_folder / "best/launch.sh")],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/health", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    try:
        looks.until(answers, "the emitted script's server")
        body = {"model": "sim-model", "prompt": [5, 6, 7], "max_tokens": 3}
        reply = httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=20)
        assert reply.json()["usage"]["completion_tokens"] == 3
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(20)
    assert code in (0, -signal.SIGTERM, 143)
    assert not answers()


def test_verify_starts_the_script_and_compares(done: Any, looks: Any) -> None:
    answer = done.run("verify", done.run_folder, "--json")
    assert answer.returncode in (0, 5), answer.stderr  # two busy cores may differ
    said = json.loads(answer.stdout)
    assert [row["metric"] for row in said["metrics"]] == ["ttft_p95", "success_rate"]
    assert said["measurement"]["requests"]["planned"] == 15
    assert looks.marked(done.study_id()) == []


def test_finished_study_can_be_resumed_without_a_launch(done: Any) -> None:
    before = done.outcomes()
    answer = done.run("resume", done.run_folder)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == f"{done.run_folder}\n"
    assert done.outcomes() == before


# ---- before a study


def test_plan_starts_nothing_and_leaves_nothing(bench: Any) -> None:
    study = bench.write()
    before = sorted(bench.folder.iterdir())
    text = bench.run("plan", study)
    assert text.returncode == 0, text.stderr
    for word in ("First launch", "--max-num-seqs 8", "15 requests", "(study file)", "(default)"):
        assert word in text.stdout, word
    data = json.loads(bench.run("tune", study, "--dry-run", "--json").stdout)
    assert data["workload"]["requests"] == 15
    assert data["first_launch"]["argv"][-1] != ""
    assert sorted(bench.folder.iterdir()) == before


def test_tune_with_flags_alone(bench: Any) -> None:
    bench.write()
    answer = bench.run(
        "tune", "--engine", "simulated", "--model", "sim-model", "--workload", "tiny.jsonl",
        "--space", "quick", "--baseline", "vllm serve sim-model --max-num-seqs 16",
        "--slo", "success_rate > 50%", "--trials", "1", "--repeats", "0", "--json",
    )  # fmt: skip
    assert answer.returncode in (0, 3, 4, 5), answer.stderr
    folder = next((bench.folder / "runs").iterdir())
    resolved = yaml.safe_load((folder / "study.yaml").read_text())
    assert resolved["constraints"] == ["success_rate >= 0.5"]
    assert resolved["baseline"] == {"max-num-seqs": 16}
    if answer.returncode == 0:
        assert json.loads(answer.stdout)["study"]["model"] == "sim-model"


# ---- commands on running servers and files


@pytest.fixture
def server(bench: Any, looks: Any) -> Iterator[str]:
    """A simulator that somebody else started."""
    import sys

    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune.simulator", "serve", "sim-model", "--port", str(port),
         "--sim-startup", "0.1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def listed() -> bool:
        try:
            return httpx.get(f"{url}/v1/models", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    try:
        looks.until(listed, "the simulator")
        yield url
        assert process.poll() is None  # never stopped by us
    finally:
        process.terminate()
        process.wait(20)


def test_replay_measures_a_running_server(bench: Any, server: str) -> None:
    bench.write()
    answer = bench.run("replay", "--url", server, "--workload", "tiny.jsonl", "--json")
    assert answer.returncode in (0, 5), answer.stderr
    said = json.loads(answer.stdout)
    assert said["requests"]["planned"] == said["requests"]["ok"] == 15
    assert said["metrics"]["ttft_p95_s"] > 0
    assert {"verdict", "reasons"} <= said["validity"].keys()
    assert {"dispatch_lag_p99_s", "loop_lag_p99_s", "cpu_share"} <= said["client"].keys()


def test_replay_of_nobody_is_a_fault_of_the_machine(bench: Any) -> None:
    bench.write()
    url = f"http://127.0.0.1:{free_port()}"
    answer = bench.run("replay", "--url", url, "--workload", "tiny.jsonl")
    assert answer.returncode == 4
    assert answer.stderr.startswith(f"error: no server answers at {url}")


def test_diagnose_reads_a_log(bench: Any, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("usage: x\nvllm: error: unrecognized arguments: --max-num-sequences 8\n")
    answer = bench.run("diagnose", log, "--engine", "vllm", "--exit-code", "2", "--json")
    assert answer.returncode == 0
    said = json.loads(answer.stdout)
    assert (said["fault"], said["phase"]) == ("study", "arguments")
    assert {"fault", "phase", "reason", "remedy", "evidence", "message"} <= said.keys()
