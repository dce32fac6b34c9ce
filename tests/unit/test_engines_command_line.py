"""Pasted launch commands and scripts, taken apart."""

from __future__ import annotations

import math
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.engine import LaunchTarget, ParsedCommand
from autotune.engines.facts import Flag, engine_facts
from autotune.engines.shell_words import read_shell
from autotune.engines.vllm import VllmEngine
from autotune.errors import InputError
from autotune.space.candidate import Candidate


def parse(text: str) -> ParsedCommand:
    return VllmEngine().parse_command(text)


def test_values_are_typed_by_their_flags() -> None:
    parsed = parse(
        "vllm serve acme/tiny --max-num-seqs=64 --gpu-memory-utilization 1 --max-model-len 8k "
        "-tp 2 --enable-prefix-caching --no-enable-chunked-prefill -O3 --tokenizer 123 "
        "--cudagraph-capture-sizes 1 2 4 --served-model-name a --seed 1 "
        '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 4}\''
    )
    assert parsed.command == ("vllm", "serve")
    assert parsed.model == "acme/tiny"
    assert parsed.params == {
        "max-num-seqs": 64,
        "gpu-memory-utilization": 1.0,
        "max-model-len": "8k",
        "tensor-parallel-size": 2,
        "enable-prefix-caching": True,
        "enable-chunked-prefill": False,
        "optimization-level": 3,
        "tokenizer": "123",
        "cudagraph-capture-sizes": [1, 2, 4],
        "served-model-name": "a",
        "seed": 1,
        "speculative-config": {"method": "ngram", "num_speculative_tokens": 4},
    }


def test_the_address_and_secrets_are_left_out() -> None:
    parsed = parse(
        "HF_TOKEN=hf_x VLLM_USE=1 vllm serve --port 9000 --host 0.0.0.0 M --api-key k1 k2 --seed 1"
    )
    assert parsed.params == {"seed": 1}
    assert parsed.model == "M"
    assert parsed.env == {"VLLM_USE": "1"}


def test_the_module_form_names_its_model_by_flag() -> None:
    parsed = parse("python -m vllm.entrypoints.openai.api_server --model 'a b' --disable-log-stats")
    assert parsed.command == ("python", "-m", "vllm.entrypoints.openai.api_server")
    assert parsed.model == "a b"
    assert parsed.params == {"disable-log-stats": True}


def test_docker_run_gives_image_environment_and_the_engines_arguments() -> None:
    parsed = parse(
        "docker run -d --rm --gpus all -p 8000:8000 --ipc=host -e VLLM_USE=1 -e HF_TOKEN \\\n"
        "  --env X='a b' -v ~/.cache:/root/.cache --name web vllm/vllm-openai:v0.26.0 \\\n"
        "  --model acme/tiny --max-num-seqs 32"
    )
    assert parsed.image == "vllm/vllm-openai:v0.26.0"
    assert parsed.command == ("vllm", "serve")
    assert parsed.model == "acme/tiny"
    assert parsed.env == {"VLLM_USE": "1", "X": "a b"}
    assert parsed.params == {"max-num-seqs": 32}


def test_docker_run_may_name_its_own_entry_point() -> None:
    parsed = parse("sudo docker run --entrypoint 'vllm' -it img:v1 serve acme/tiny --seed 4")
    assert parsed.command == ("vllm", "serve")
    assert (parsed.model, parsed.params) == ("acme/tiny", {"seed": 4})
    shell = parse("docker run img:v1 bash -c 'A=1 vllm serve acme/tiny --seed 5'")
    assert (shell.model, shell.params, shell.env) == ("acme/tiny", {"seed": 5}, {"A": "1"})


def test_a_whole_script_is_searched_for_the_launch() -> None:
    parsed = parse(
        "#!/usr/bin/env bash\n"
        "set -euo pipefail\n"
        "# starts the server; don't edit\n"
        "export VLLM_ATTENTION_BACKEND=FLASH_ATTN\n"
        "MODEL='acme/tiny 14b'\n"
        'PORT="${PORT:-8000}"\n'
        'if [[ -z "${X:-}" ]]; then echo "${0##*/}: x" >&2; fi\n'
        'exec vllm serve "$MODEL" --port "$PORT" --max-num-seqs ${SEQS:-48} \\\r\n'
        "   --seed 3 > server.log 2>&1 &\n"
        "echo started | tee x\n"
    )
    assert parsed.model == "acme/tiny 14b"
    assert parsed.params == {"max-num-seqs": 48, "seed": 3}
    assert parsed.env == {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}


def test_a_script_that_keeps_its_command_in_an_array_is_read() -> None:
    parsed = parse(
        'cmd=(\n  vllm\n  serve  # the server\n  acme/tiny\n  --host\n  "$HOST"\n'
        '  --speculative-config\n  \'{"a":"it\'\\\'\'s"}\'\n)\nexec "${cmd[@]}" "$@"\n'
    )
    assert parsed.model == "acme/tiny"
    assert parsed.params == {"speculative-config": {"a": "it's"}}


def test_bare_flags_are_parameters() -> None:
    parsed = parse("--max-num-seqs 5 --enforce-eager")
    assert parsed.command == ()
    assert parsed.params == {"max-num-seqs": 5, "enforce-eager": True}


def test_unknown_flags_are_typed_by_their_looks() -> None:
    parsed = parse("vllm serve M --a 1 --b 0.5 --c --d x y --e '[1, 2]' --no-f -cc.mode=3 --g 1e-3")
    assert parsed.params == {
        "a": 1, "b": 0.5, "c": True, "d": ["x", "y"], "e": [1, 2], "f": False,
        "compilation-config.mode": 3, "g": 1e-3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no vllm launch command found"),
        ("ls -la", "this is no vllm launch command: ls -la"),
        ("echo a\necho b", "no vllm launch command found"),
        ("vllm serve 'M --x", "open quote"),
        ("cmd=(vllm serve M", "open bracket"),
        ("vllm serve M --max-num-seqs", "`max-num-seqs` has no value"),
        ("vllm serve M --max-num-seqs --seed 1", "`max-num-seqs` has no value"),
        ("vllm serve M extra", "belongs to no flag: extra"),
        ("vllm serve M --enforce-eager=7", "takes no value"),
        ("vllm serve $MODEL", "`model` is set by a shell variable of unknown value"),
        ("vllm serve M --tokenizer $(cat x)", "`tokenizer` is set by a shell variable"),
        ("vllm serve M --config c.yaml", "reads its settings from a file"),
        ("docker run --rm", "names no image"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(InputError, match=r".") as caught:
        parse(text)
    assert message in str(caught.value)


_TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")) | st.sampled_from("'\"\\$ #;"),
    min_size=1,
    max_size=12,
).filter(lambda text: not text.startswith("-"))
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | _TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def _values(flag: Flag) -> st.SearchStrategy[Any]:
    match flag.kind:
        case "switch":
            return st.booleans()
        case "bare":
            return st.just(value=True)
        case "int" | "size":
            return st.integers(-1, 2**40)
        case "float":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "ints":
            return st.lists(st.integers(0, 4096), min_size=1, max_size=4)
        case "strs":
            return st.lists(_TEXT, min_size=2, max_size=3) | _TEXT
        case "json":
            return st.dictionaries(_TEXT, _JSON, max_size=3)
        case "str":
            return _TEXT


_FLAGS = [
    flag for flag in engine_facts("vllm").flags.values()
    if flag.name not in engine_facts("vllm").managed
]  # fmt: skip


@st.composite
def _params(draw: st.DrawFn) -> dict[str, Any]:
    flags = draw(st.lists(st.sampled_from(_FLAGS), unique_by=lambda flag: flag.name, max_size=6))
    return {flag.name: draw(_values(flag)) for flag in flags}


@settings(max_examples=150, deadline=None)
@given(params=_params(), model=_TEXT.map("acme/{}".format))
def test_a_planned_command_parses_back_to_its_parameters(
    params: dict[str, Any], model: str
) -> None:
    target = LaunchTarget(model=model, launcher="process")
    plan = VllmEngine().plan(Candidate(params), target)
    parsed = parse(shlex.join(plan.argv_for("127.0.0.1", 8000)))
    assert parsed.command == ("vllm", "serve")
    assert parsed.model == model
    assert Candidate(parsed.params) == Candidate(params)
    again = VllmEngine().plan(Candidate(parsed.params), target)
    assert again.argv == plan.argv


@settings(max_examples=300, deadline=None)
@given(words=st.lists(_TEXT, min_size=1, max_size=6))
def test_quoted_words_are_read_as_they_were_written(words: list[str]) -> None:
    shell = read_shell("run " + shlex.join(words))
    assert shell.commands == [["run", *words]]
    assert not shell.unresolved


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("vllm serve-m=x'\"\\$(){}#;&|<>\n 1@"), max_size=40))
def test_any_text_is_taken_apart_or_refused(text: str) -> None:
    try:
        parsed = parse("vllm serve M " + text)
    except InputError as error:
        assert str(error)  # noqa: PT017 - either end is right
    else:
        assert not any(isinstance(v, float) and math.isnan(v) for v in parsed.params.values())
