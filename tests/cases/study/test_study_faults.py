"""Faults that cost others their nights, each through a whole study on a fake engine: it ends in the
right fault with a reason that can be read, the right exit code, and nothing left running."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.errors import EnvironmentFault, InputError
from autotune.launch import ports, process

OTHER = ["--max-num-seqs", "64"]
"""Words that only the second setting of the space has."""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total "
    "capacity of 79.10 GiB of which 412.00 MiB is free."
)
FREE_MEMORY = (
    "ValueError: Free memory on device cuda:0 (2.1/80.0 GiB) on startup is less than desired GPU "
    "memory utilization (0.9, 72.0 GiB)."
)
WEIGHTS = "INFO 07-14 09:00:01 [gpu_model_runner.py:4] Starting to load model m..."
LOADED = "INFO 07-14 09:00:31 [gpu_model_runner.py:5] Model loading took 14.2 GiB and 3 seconds"
CAPTURE = "INFO 07-14 09:00:40 [gpu_model_runner.py:9] Capturing CUDA graphs (decode): 3/35"
NO_ROOM = (
    "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine."
)
COMBINATION = (
    "  Value error, max_num_batched_tokens (64) is smaller than max_model_len (4096). This limits "
    "the length"
)
UNKNOWN = "vllm serve: error: unrecognized arguments: --enable-reasoning"
HUB = [
    "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://hub/x",
    "OSError: Can't load the configuration of 'fake/model'. Repo id must be in the form 'name'",
]
PRIVATE = "the patient's name is Maria Example"


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def only(**keys: Any) -> dict[str, Any]:
    """A scenario in which only the second setting meets these."""
    return {"cases": [{"flags": OTHER, **keys}]}


# ---- what the settings are to blame for


@pytest.mark.parametrize(
    ("keys", "phase", "reason", "remedy", "words"),
    [
        pytest.param(
            {"say": [WEIGHTS, LOADED, NO_ROOM, "init failed. See root cause above."],
             "exit": {"code": 1}},
            "startup", "kv_cache_no_memory", "raise_memory", "raise the memory fraction",
            id="no room for the cache",
        ),
        pytest.param(
            {"say": [WEIGHTS, LOADED, CAPTURE, OOM, "See root cause above."], "exit": {"code": 1}},
            "startup", "oom_graph_capture", "lower_memory", "lower the memory fraction",
            id="graph capture runs out",
        ),
        pytest.param(
            {"after_requests": {"count": 8, "say": [OOM], "exit": {"code": 1}}},
            "load", "oom_under_load", "lower_memory", "while serving",
            id="fine at start, out of memory under load",
        ),
        pytest.param(
            {"say": [COMBINATION], "exit": {"code": 1}},
            "arguments", "config_refused", "change_value", "max_num_batched_tokens (64)",
            id="a forbidden combination",
        ),
    ],
)  # fmt: skip
def test_candidate_fault_costs_one_launch_and_the_study_goes_on(
    play: Any, keys: dict[str, Any], phase: str, reason: str, remedy: str, words: str
) -> None:
    end = play.run(only(**keys))
    assert end.exit_code == 0
    assert [r.state for r in play.records] == ["measured", "infeasible"]
    last = play.last
    assert (last.fault, last.phase, last.reason, last.remedy) == (
        "candidate", phase, reason, remedy,
    )  # fmt: skip
    assert words in last.message
    assert "root cause" not in "".join(last.evidence)
    assert last.values == {}
    assert end.stopped_because == "every setting of the space was tried"


def test_survivors_of_a_death_do_not_vote(play: Any) -> None:
    end = play.run(only(after_requests={"count": 9, "exit": {"code": 0}}))
    last = play.last
    assert (last.state, last.phase, last.reason) == ("unmeasurable", "load", "engine_died")
    assert last.values == {}
    assert end.verdict.best == 0
    assert last.seconds["total"] < 15  # ended by the death, not by a timeout for each request


MEMORY = {"gpu-memory-utilization": {"type": "float", "values": [0.84, 0.85, 0.9]}}


def test_one_knob_that_fails_in_opposite_directions_is_reported_as_a_dead_end(play: Any) -> None:
    end = play.run(
        {
            "cases": [
                {"flags": ["--gpu-memory-utilization", "0.84"],
                 "say": [WEIGHTS, NO_ROOM], "exit": {"code": 1}},
                {"flags": ["--gpu-memory-utilization", "0.85"],
                 "say": [WEIGHTS, LOADED, CAPTURE, OOM], "exit": {"code": 1}},
                {"flags": ["--gpu-memory-utilization", "0.9"],
                 "say": [WEIGHTS, LOADED, CAPTURE, OOM], "exit": {"code": 1}},
            ]
        },
        space={"engine": "vllm", "knobs": MEMORY},
        baseline={"gpu-memory-utilization": 0.85},
    )  # fmt: skip
    assert end.exit_code == 3
    # 0.9 follows from 0.85 and is not launched
    assert [r.params["gpu-memory-utilization"] for r in play.records] == [0.85, 0.84]
    (line,) = (play.directory.path / "refused.jsonl").read_text().splitlines()
    assert json.loads(line)["params"] == {"gpu-memory-utilization": 0.9}
    assert "trial 0" in json.loads(line)["message"]
    sentence = "no value of gpu-memory-utilization works with these other settings"
    assert sentence in play.page
    assert [found.sentence.startswith(sentence) for found in play.view.dead_ends] == [True]


def test_a_refused_value_is_refused_in_all_other_settings(play: Any) -> None:
    line = (
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel "
        "size (3)."
    )
    end = play.run(
        {"cases": [{"flags": ["--tensor-parallel-size", "3"], "say": [line],
                    "exit": {"code": 1}}]},
        space={
            "engine": "vllm",
            "knobs": {**SEQS, "tensor-parallel-size": {"type": "int", "values": [1, 3]}},
        },
        baseline={"max-num-seqs": 8, "tensor-parallel-size": 1},
        budget={"trials": 9},
    )  # fmt: skip
    assert end.exit_code == 0
    assert play.launches == 3
    refused = [r for r in play.records if r.params["tensor-parallel-size"] == 3]
    assert [r.reason for r in refused] == ["heads_not_divisible"]
    assert "tensor-parallel-size 3" in (play.directory.path / "refused.jsonl").read_text()
    assert "refused before launch" in play.notes


SEQS = {"max-num-seqs": {"type": "int", "values": [8, 64]}}


# ---- what every launch would meet


@pytest.mark.parametrize(
    ("keys", "reason", "words"),
    [
        pytest.param(
            {"say": [UNKNOWN], "exit": {"code": 2}},
            "unknown_flag", "--enable-reasoning", id="a flag that this version does not know",
        ),
        pytest.param(
            {"say": ["vllm serve: error: argument --dtype: invalid choice: 'fp7' (choose from x)"],
             "exit": {"code": 2}},
            "bad_value", "--dtype", id="a fixed value that the engine refuses",
        ),
    ],
)  # fmt: skip
def test_study_fault_stops_before_the_second_launch(
    play: Any, keys: dict[str, Any], reason: str, words: str
) -> None:
    end = play.run(keys, budget={"trials": 40}, engine={"args": {"dtype": "fp7"}})
    assert play.launches == 1
    assert (end.exit_code, type(end.error)) == (2, InputError)
    assert play.last.reason == reason
    assert words in end.error.message
    assert "from vllm (version not known)" in end.error.seen
    assert "--trial 0" in end.error.hint


# ---- what the machine is to blame for


@pytest.mark.parametrize(
    ("keys", "reason", "words"),
    [
        pytest.param({"say": HUB, "exit": {"code": 1}}, "hub_unavailable", "hub", id="the hub"),
        pytest.param({"exit": {"signal": 9}}, "killed_signal_9", "signal 9",
                     id="killed without a word"),
        pytest.param({"say": [FREE_MEMORY], "exit": {"code": 1}}, "gpu_memory_taken",
                     "another process holds GPU memory", id="memory that does not come back"),
    ],
)  # fmt: skip
def test_environment_fault_is_tried_once_more_and_ends_the_study(
    play: Any, keys: dict[str, Any], reason: str, words: str
) -> None:
    end = play.run(only(**keys), budget={"trials": 40})
    assert [r.state for r in play.records] == ["measured", "unmeasurable", "unmeasurable"]
    assert play.records[1].params == play.records[2].params
    assert (end.exit_code, type(end.error)) == (4, EnvironmentFault)
    assert (play.last.fault, play.last.reason) == ("environment", reason)
    assert words in end.error.message
    assert "model name" not in end.error.message
    assert (play.directory.path / "verdict.json").is_file()


def test_gpu_memory_that_comes_back_late_leaves_no_mark_on_the_settings(play: Any) -> None:
    late = {"first": 2, "last": 2, "say": [FREE_MEMORY], "exit": {"code": 1}}
    end = play.run({"cases": [late]})
    assert [r.state for r in play.records] == ["measured", "unmeasurable", "measured"]
    assert end.exit_code == 0
    assert not (play.directory.path / "refused.jsonl").exists()


def test_failures_in_a_row_ask_the_baseline_which_tells_a_bad_machine(play: Any) -> None:
    hang = {"first": 2, "repeat": "Waiting for 1 core engine proc(s) to start"}
    end = play.run(
        {"cases": [hang]},
        space={"engine": "vllm", "knobs": {"max-num-seqs": {"type": "int",
                                                            "values": [8, 16, 32, 64, 128]}}},
        budget={"trials": 40},
        engine={"startup_timeout": 1.5},
    )  # fmt: skip
    assert [r.role for r in play.records] == ["baseline", "search", "search", "search", "check"]
    assert [r.reason for r in play.records[1:]] == ["not_ready_in_time"] * 4
    assert "not ready in time (1.5 s)" in play.last.message
    assert end.exit_code == 4
    assert "Waiting for 1 core" in (play.directory.trial(1) / "server.log").read_text()
    assert "launched to see" not in play.page


def test_failures_in_a_row_beside_a_baseline_that_works_are_the_candidates(play: Any) -> None:
    values = [8, 16, 32, 64, 128]
    silent = [
        {"flags": ["--max-num-seqs", str(n)], "say": ["?"], "exit": {"code": 1}} for n in values[1:]
    ]
    end = play.run(
        {"cases": silent},
        space={"engine": "vllm", "knobs": {"max-num-seqs": {"type": "int", "values": values}}},
        budget={"trials": 9},
    )
    roles = [r.role for r in play.records]
    assert roles == ["baseline", "search", "search", "search", "check", "search"]
    assert play.records[4].state == "measured"
    assert (end.exit_code, end.verdict.best) == (0, 0)
    assert "the baseline still works" in play.notes
    assert "launched to see if the machine still works" in play.page


# ---- launching and ending


def test_children_that_outlive_a_forced_stop_are_gone_before_the_next_launch(
    play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "TERM_WAIT_S", 0.3)
    gpu = tmp_path / "gpu"
    end = play.run({"gpu": str(gpu), "children": 2, "ignore_term": True})
    # A launch that found the lock taken would have failed
    assert [r.state for r in play.records] == ["measured", "measured"]
    assert end.exit_code == 0
    children = [int(Path(f"{gpu}.{n}.pid").read_text()) for n in range(2)]
    assert not any(runs(pid) for pid in children)


class Foreign(BaseHTTPRequestHandler):
    paths: list[str]

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:  # any POST would be answered 501, and noted by nobody
        self.paths.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "other"}]}')


@pytest.fixture
def foreign() -> Iterator[int]:
    """The port of somebody else's healthy server."""
    Foreign.paths = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield int(server.server_address[1])
        assert thread.is_alive()
        server.shutdown()
        thread.join()


def test_an_old_server_on_the_port_gets_no_request_and_no_score_is_kept(
    play: Any, foreign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "choose_port", lambda: foreign)
    end = play.run({"listen_after_s": 0.2})
    assert end.exit_code == 4
    assert Foreign.paths == []
    assert all(r.state == "unmeasurable" and r.fault == "environment" for r in play.records)
    assert len(play.records) == 2


def test_a_server_of_another_model_is_not_the_one_launched(play: Any) -> None:
    end = play.run({"model": "other/model"})
    assert end.exit_code == 4
    assert play.last.reason == "foreign_server"
    assert "lists other/model, not fake/model" in play.last.message


def test_a_health_route_that_lies_starts_no_measurement(play: Any, tmp_path: Path) -> None:
    end = play.run({"unready_s": 1.0, "requests": str(tmp_path / "asked")}, budget={"trials": 1})
    assert end.exit_code == 0
    measurement = json.loads((play.directory.trial(0) / "measurement.json").read_text())
    assert measurement["requests"]["failed"] == 0
    assert play.last.seconds["launching"] >= 1.0


def test_arguments_arrive_as_separate_words_and_off_is_said(play: Any, tmp_path: Path) -> None:
    words = tmp_path / "words"
    play.run(
        {"argv": str(words)},
        engine={"args": {"enable-chunked-prefill": False, "served-model-name": "fake/model"}},
        budget={"trials": 1},
    )
    argv = json.loads(words.read_text().splitlines()[0])
    assert argv[0] == "fake/model"
    assert argv[1:5:2] == ["--host", "--port"]
    assert "--no-enable-chunked-prefill" in argv
    assert argv[argv.index("--max-num-seqs") + 1] == "8"
    assert "serve" not in argv
    assert not any(" " in word for word in argv)


# ---- secrets


def test_neither_prompts_nor_keys_leave_the_log_of_a_crash(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASE_KEY", "sk-case-4f9a1c77")
    dump = f"Dumping scheduler output: NewRequestData(prompt='{PRIVATE}', prompt_token_ids=[11, 4])"
    banner = "INFO non-default args: {'api_key': ['sk-banner-8812ab'], 'x': 'sk-case-4f9a1c77'}"
    play.run(
        only(say=[banner], after_requests={"count": 8, "say": [dump, OOM], "exit": {"code": 1}}),
        engine={"env": {"VLLM_API_KEY": {"from_env": "CASE_KEY"}}},
    )
    assert play.last.reason == "oom_under_load"
    for path in play.directory.path.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert b"sk-case-4f9a1c77" not in data, path
        assert b"sk-banner-8812ab" not in data, path
        if path.name != "server.log":
            assert PRIVATE.encode() not in data, path
    assert (play.directory.trial(1) / "server.log").stat().st_mode & 0o077 == 0
