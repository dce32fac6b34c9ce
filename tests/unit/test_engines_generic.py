"""Any server with the OpenAI-compatible API: how its command, flags and switches are written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.engine import FlagStyle, LaunchTarget
from autotune.engines.generic import GenericEngine, styled
from autotune.engines.plan import HOST, PORT
from autotune.errors import InputError
from autotune.space.candidate import Candidate

LLAMA = ("llama-server", "-m", "{model}", "--host", "{host}", "--port", "{port}")


def argv(params: dict[str, Any], **fields: Any) -> tuple[str, ...]:
    values: dict[str, Any] = {"model": "m.gguf", "launcher": "process", "command": LLAMA}
    return GenericEngine().plan(Candidate(params), LaunchTarget(**(values | fields))).argv


def test_the_command_is_a_template() -> None:
    assert argv({}) == ("llama-server", "-m", "m.gguf", "--host", HOST, "--port", PORT)
    served = argv({}, command=("trtllm-serve", "{model}"), args={"tp_size": 2})
    assert served == (
        "trtllm-serve", "m.gguf", "--host", HOST, "--port", PORT, "--tp-size", "2",
    )  # fmt: skip
    named = argv({}, command=("lmdeploy", "serve", "{model}", "--server-port", "{port}"))
    assert named == ("lmdeploy", "serve", "m.gguf", "--server-port", PORT)


@pytest.mark.parametrize("word", ["--port={port}", "http://{host}"])
def test_an_address_inside_a_word_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="must be a word of its own"):
        argv({}, command=("server", word))


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("--flag value", ("--batch-size", "512", "--ids", "1", "2", "--fast")),
        ("--flag=value", ("--batch-size=512", "--ids=1", "--ids=2", "--fast")),
        ("-flag value", ("-batch-size", "512", "-ids", "1", "2", "-fast")),
    ],
)
def test_flags_are_written_in_the_style_of_the_server(
    style: FlagStyle, words: tuple[str, ...]
) -> None:
    params = {"batch-size": 512, "ids": [1, 2]}
    made = argv(params, flag_style=style, args={"fast": True})
    assert made[7:] == (words[-1], *words[:-1])


@given(st.lists(st.text(min_size=1), max_size=3))
def test_no_style_loses_a_value(values: list[str]) -> None:
    words = ["--flag", *values]
    assert styled(words, "--flag value") == words
    assert styled(words, "-flag value")[1:] == values
    tied = styled(words, "--flag=value")
    assert [word.removeprefix("--flag=") for word in tied] == (values or ["--flag"])


def test_a_switch_is_off_only_where_the_server_has_a_word_for_it() -> None:
    with pytest.raises(InputError, match="`mmap` cannot be switched off") as caught:
        argv({"mmap": False})
    assert "engine.negatable" in str(caught.value.hint)
    assert argv({"mmap": False}, negatable=("mmap",))[-1] == "--no-mmap"
    assert argv({"mmap": True})[-1] == "--mmap"


def test_requests_use_the_name_that_the_server_goes_by() -> None:
    target = LaunchTarget(
        model="/models/m.gguf", launcher="process", command=LLAMA, model_name="tiny", health="/up"
    )
    made = GenericEngine().plan(Candidate({}), target)
    assert (made.model, made.health) == ("tiny", "/up")
    assert "/models/m.gguf" in made.argv


def test_knobs_may_be_variables() -> None:
    target = LaunchTarget(
        model="m", launcher="process", command=LLAMA, knob_env={"threads": "OMP_NUM_THREADS"}
    )
    made = GenericEngine().plan(Candidate({"threads": 4}), target)
    assert dict(made.env) == {"OMP_NUM_THREADS": "4"}
    assert "4" not in made.argv


def test_a_target_survives_a_resume_with_all_that_shapes_its_launches() -> None:
    from autotune.engines.plan import Mount
    from autotune.study.snapshot import target_from, target_json

    target = LaunchTarget(
        model="m", launcher="docker", args={"a": 1}, command=LLAMA, env={"A": "1"},
        secrets={"B": "C"}, image="i:1", mounts=(Mount(source="/a", target="/b"),), gpus=("0",),
        shm_size="1g", ipc_host=True, port=1, url="u", health="/up", model_name="n",
        flag_style="-flag value", negatable=("x",), knob_env={"k": "K"}, knob_flags={"f": "g"},
    )  # fmt: skip
    # No field is left at its default, so that none can be forgotten
    bare = LaunchTarget(model="", launcher="process")
    assert all(getattr(target, name) != getattr(bare, name) for name in LaunchTarget.__slots__)
    assert target_from(json.loads(json.dumps(target_json(target)))) == target
