"""What reaches the engine's argv: words apart, off as off, JSON intact."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.engine import LaunchTarget
from autotune.engines.generic import GenericEngine
from autotune.engines.vllm import VllmEngine
from autotune.errors import InputError
from autotune.space.candidate import Candidate

DUMP = "import json, sys; print(json.dumps(sys.argv[1:]))"


def words(candidate: dict[str, object], **fields: object) -> tuple[str, ...]:
    values: dict[str, object] = {"model": "acme/tiny", "launcher": "process"}
    target = LaunchTarget(**(values | fields))  # type: ignore[arg-type]
    return VllmEngine().plan(Candidate(candidate), target).argv


def test_arguments_reach_a_process_as_separate_words(tmp_path: Path) -> None:
    fake = tmp_path / "fake_engine.py"
    fake.write_text(DUMP)
    argv = words({"max-num-seqs": 16}, command=(sys.executable, str(fake)))
    filled = [word.format(host="127.0.0.1", port=8000) for word in argv]
    seen = json.loads(subprocess.run(filled, capture_output=True, check=True).stdout)
    assert seen == [
        "acme/tiny", "--host", "127.0.0.1", "--port", "8000", "--max-num-seqs", "16",
    ]  # fmt: skip


def test_a_container_is_given_its_whole_command_once() -> None:
    argv = words({}, launcher="docker", image="vllm/vllm-openai:v0.26.0")
    assert argv[:3] == ("vllm", "serve", "acme/tiny")
    assert argv.count("serve") == 1


def test_the_model_is_given_the_way_the_entry_point_takes_it() -> None:
    module = ("python3", "-m", "vllm.entrypoints.openai.api_server")
    assert words({}, command=module)[3:5] == ("--model", "acme/tiny")
    assert words({}, command=("numactl", "-N0", "vllm", "serve"))[4] == "acme/tiny"


def test_off_reaches_the_engine_as_its_negative_flag() -> None:
    argv = words(
        {"enforce_eager": False},
        args={
            "enable_chunked_prefill": False,
            "enable-prefix-caching": "off",
            "trust_remote_code": True,
            "async-scheduling": "on",
        },
    )
    assert argv[argv.index("{port}") + 1 :] == (
        "--no-enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--trust-remote-code",
        "--async-scheduling",
        "--no-enforce-eager",
    )


def test_a_switch_without_a_negative_form_is_reported() -> None:
    with pytest.raises(InputError, match="`disable-log-stats` cannot be switched off"):
        words({"disable-log-stats": False})
    assert words({"disable-log-stats": True})[-1] == "--disable-log-stats"
    target = LaunchTarget(model="m", launcher="process", command=("llama-server",))
    with pytest.raises(InputError, match="`flash-attn` cannot be switched off"):
        GenericEngine().plan(Candidate({"flash-attn": False}), target)
    target = replace(target, negatable=("flash-attn",))
    plan = GenericEngine().plan(Candidate({"flash-attn": False}), target)
    assert plan.argv[-1] == "--no-flash-attn"


def test_off_for_a_flag_that_takes_a_value_is_reported() -> None:
    with pytest.raises(InputError, match="`kv-cache-dtype` takes a value, not on or off"):
        words({"kv-cache-dtype": False})
    with pytest.raises(InputError, match="`enforce-eager` is a switch and takes no value"):
        words({"enforce-eager": 3})


def test_text_with_quotes_and_json_survives_a_shell() -> None:
    flags = {
        "served-model-name": 'it\'s "ours"',
        "compilation-config": {"mode": 3, "pass_config": {"fuse": True}, "name": "a'b\\c"},
        "cudagraph-capture-sizes": [1, 2, 4],
        "gpu-memory-utilization": 0.9,
    }
    argv = words(flags, model="acme/tiny 14b")
    assert argv[2] == "acme/tiny 14b"
    answer = subprocess.run(
        [
            "sh",
            "-c",
            f"{shlex.quote(sys.executable)} -c {shlex.quote(DUMP)} {shlex.join(argv[2:])}",
        ],
        capture_output=True,
        check=True,
    )
    seen = json.loads(answer.stdout)
    assert tuple(seen) == argv[2:]
    assert json.loads(seen[seen.index("--compilation-config") + 1]) == flags["compilation-config"]
    sizes = seen.index("--cudagraph-capture-sizes")
    assert seen[sizes + 1 : sizes + 4] == ["1", "2", "4"]


def test_requests_use_the_served_name_when_one_is_given() -> None:
    target = LaunchTarget(model="acme/tiny", launcher="process")
    named = VllmEngine().plan(Candidate({"served-model-name": ["a", "b"]}), target)
    assert named.model == "a"
    assert VllmEngine().plan(Candidate({}), target).model == "acme/tiny"
