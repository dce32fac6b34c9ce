"""Emitted scripts, run with a program that writes down what it was given."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.deploy.facts import DeployFacts
from autotune.deploy.files import write_hand_over
from autotune.deploy.formats import FORMATS
from autotune.engines.plan import HOST, PORT, LaunchPlan, Mount

FAKE = """#!/usr/bin/env bash
{ printf '%s\\0' "${0##*/}" "$@"; } > "$DUMP"
env -0 > "$DUMP.env"
"""
FACTS = DeployFacts(
    study="s", trial=1, verdict="v", metrics=(), engine="vllm", model="m", date="2026-11-29",
    tool_version="0",
)  # fmt: skip
FRAGMENTS = (
    "\\", "\\n", "\\x41", "\\u0041", "\\c", "\n", "\t", "\r", "\x01", "\x1b", "\x7f", "'", '"', "$",
    "$(id)", "${HOME}", "`id`", "!", "!!", "*", "?", "~", "{a,b}", "[0]", "=", "A=b", "-", "--x=",
    "#", " ", ";", "&&", "|", ">", "%s", "a", "0", "é", "🙂", "\u2028",
)  # fmt: skip
ANY = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
WORDS = st.lists(st.sampled_from(FRAGMENTS) | ANY, max_size=7).map("".join)
NAMES = st.from_regex(r"AT_[A-Z0-9_]{1,6}", fullmatch=True).filter(
    lambda n: not n.endswith("TOKEN")
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    for name in ("vllm", "docker"):
        (folder / name).write_text(FAKE)
        (folder / name).chmod(0o755)
    return folder


def run_script(
    bench: Path, text: str, extra: tuple[str, ...] = (), **env: str
) -> tuple[list[str], dict[str, str]]:
    """(words, environment) that the script's program saw."""
    script, dump = bench / "launch.sh", bench / "dump"
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    dump.unlink(missing_ok=True)
    outside = {"PATH": f"{bench}:{os.environ['PATH']}", "DUMP": str(dump), **env}
    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    done = subprocess.run(
        [script, *extra], env=outside, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    words = dump.read_bytes().decode().split("\0")[:-1]
    pairs = (bench / "dump.env").read_bytes().decode().split("\0")[:-1]
    return words, dict(pair.split("=", 1) for pair in pairs)


@example(words=list(FRAGMENTS), env={"AT_A": "~", "AT_B": "".join(FRAGMENTS)})
@given(
    words=st.lists(WORDS, min_size=4, max_size=16), env=st.dictionaries(NAMES, WORDS, max_size=3)
)
@settings(max_examples=80, deadline=None)
def test_the_program_gets_the_plans_words_and_variables(
    bench: Path, words: list[str], env: dict[str, str]
) -> None:
    argv = ("vllm", "serve", "--host", HOST, *words, "--port", PORT)
    plan = LaunchPlan(engine="vllm", launcher="process", argv=argv, model="m", env=env)
    got, seen = run_script(bench, FORMATS["bash"](plan, FACTS))
    assert tuple(got) == plan.argv_for("127.0.0.1", 8000)
    assert env.items() <= seen.items()


@example(words=list(FRAGMENTS), env={"AT_A": "~", "AT_B": "".join(FRAGMENTS)})
@given(
    words=st.lists(WORDS, min_size=4, max_size=16), env=st.dictionaries(NAMES, WORDS, max_size=3)
)
@settings(max_examples=30, deadline=None)
def test_docker_gets_the_plans_words_and_variables(
    bench: Path, words: list[str], env: dict[str, str]
) -> None:
    argv = ("vllm", "serve", *words, "--host", HOST, "--port", PORT)
    plan = LaunchPlan(
        engine="vllm", launcher="docker", argv=argv, model="m", env=env, image="engine:local",
        gpus=("0", "GPU-1"), shm_size="1g", secrets={"HF_TOKEN": "OUR_TOKEN"},
        mounts=(Mount(source="/srv/a, b", target="/m"),),
    )  # fmt: skip
    got, seen = run_script(bench, FORMATS["docker"](plan, FACTS), OUR_TOKEN="hidden")
    at = got.index("engine:local")
    entry = got[got.index("--entrypoint") + 1]
    assert (entry, *got[at + 1 :]) == plan.argv_for("0.0.0.0", 8000)
    options = got[:at]
    assert [options[i + 1] for i, w in enumerate(options) if w == "-e"] == [
        *(f"{k}={v}" for k, v in env.items()), "HF_TOKEN",
    ]  # fmt: skip
    assert options[options.index("--gpus") + 1] == '"device=0,GPU-1"'
    assert (
        options[options.index("--mount") + 1] == 'type=bind,"source=/srv/a, b",target=/m,readonly'
    )
    assert options[options.index("-p") + 1] == "127.0.0.1:8000:8000"
    assert seen["HF_TOKEN"] == "hidden"
    assert "hidden" not in got


def winner() -> LaunchPlan:
    config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
    return LaunchPlan(
        engine="vllm",
        launcher="process",
        argv=(
            "vllm", "serve", "acme/tiny 14b", "--max-num-batched-tokens", "4096",
            "--enable-chunked-prefill", "--no-enable-prefix-caching", "--speculative-config",
            json.dumps(config), "--served-model-name", "it's-tuned", "--host", HOST, "--port", PORT,
        ),
        model="it's-tuned",
        env={"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"},
    )  # fmt: skip


def test_f01_the_script_is_the_trial(bench: Path, tmp_path: Path) -> None:
    plan = winner()
    facts = replace(FACTS, flag_notes={"max-num-batched-tokens": "4096; it's 'why' $(id)"})
    write_hand_over(tmp_path, plan, plan, facts, replace(facts, trial=0, role="baseline"))
    for name in ("launch.sh", "rollback.sh"):
        text = (tmp_path / name).read_text()
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "\nset -euo pipefail\n" in text
        got, seen = run_script(bench, text)
        assert tuple(got) == plan.argv_for("127.0.0.1", 8000)
        assert json.loads(got[got.index("--speculative-config") + 1])["prompt_lookup_max"] == 3
        assert seen["VLLM_ATTENTION_BACKEND"] == "FLASH_ATTN"


def test_host_port_and_further_flags_come_from_the_caller(bench: Path) -> None:
    got, _ = run_script(
        bench, FORMATS["bash"](winner(), FACTS), ("--seed", "a b"), HOST="0.0.0.0", PORT="9001"
    )
    assert got[-6:] == ["--host", "0.0.0.0", "--port", "9001", "--seed", "a b"]


def test_the_gpu_choice_of_a_process_is_exported(bench: Path) -> None:
    for gpus, expected in ((("0", "2"), "0,2"), ((), "")):
        _, seen = run_script(bench, FORMATS["bash"](replace(winner(), gpus=gpus), FACTS))
        assert seen["CUDA_VISIBLE_DEVICES"] == expected
    _, seen = run_script(bench, FORMATS["bash"](winner(), FACTS))
    assert "CUDA_VISIBLE_DEVICES" not in seen


def failing(bench: Path, text: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    script = bench / "failing.sh"
    script.write_text(text)
    return subprocess.run(
        ["bash", script], env=dict(env), capture_output=True, text=True, check=False
    )


def test_a_missing_secret_stops_the_script_with_a_sentence(bench: Path) -> None:
    plan = replace(winner(), secrets={"HF_TOKEN": "OUR_TOKEN"})
    text = FORMATS["bash"](plan, FACTS)
    done = failing(bench, text, {"PATH": f"{bench}:{os.environ['PATH']}", "DUMP": "/dev/null"})
    assert done.returncode == 2
    assert done.stderr == "failing.sh: OUR_TOKEN is not set: the server needs this secret\n"
    _, seen = run_script(bench, text, OUR_TOKEN="x y")
    assert seen["HF_TOKEN"] == "x y"


def test_a_missing_program_stops_the_script_with_a_sentence(bench: Path) -> None:
    plan = replace(winner(), argv=("no such engine", "serve"))
    done = failing(bench, FORMATS["bash"](plan, FACTS), {"PATH": os.environ["PATH"]})
    assert done.returncode == 127
    assert done.stderr == "failing.sh: command not found: no such engine\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    plan = replace(winner(), env={"A": "x $y %z \"q\" 'p'"}, secrets={"HF_TOKEN": "HF_TOKEN"})
    unit = tmp_path / "autotune.service"
    text = FORMATS["systemd"](plan, FACTS)
    unit.write_text(text.replace("set-a-user", "root").replace("set-a-group", "root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "autotune.service:" not in done.stderr, done.stderr
