"""The study's flags against those that the engine lists of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.facts import engine_facts
from autotune.engines.help_text import parse_help
from autotune.errors import InputError
from autotune.launch.probe import HelpReading
from autotune.space.search_space import load_space
from autotune.spec.render import render_error
from autotune.study import flag_check as module
from autotune.study.flag_check import FlagCheck

HELP = Path(__file__).parents[1] / "help_texts" / "vllm-0.32.txt"
VLLM = FlagCheck(
    engine="vllm",
    version="0.32.0",
    facts=engine_facts("vllm"),
    reading=HelpReading(help=parse_help(HELP.read_text("utf-8")), where="`vllm serve --help=all`"),
)


def fitted(**knobs: Any) -> tuple[dict[str, Any], list[str]]:
    space, notes = VLLM.fit_space(
        load_space({"knobs": {name.replace("_", "-"): knob for name, knob in knobs.items()}})
    )
    return {knob.name: (knob.flag, knob.grid()) for knob in space.knobs}, notes


def test_knobs_that_the_engine_has_stay_as_they_are() -> None:
    knobs, notes = fitted(
        max_num_seqs=[8, 16], enforce_eager={"type": "switch"}, kv_cache_dtype=["auto", "fp8"]
    )
    assert knobs == {
        "max-num-seqs": (None, (8, 16)),
        "enforce-eager": (None, (False, True)),
        "kv-cache-dtype": (None, ("auto", "fp8")),
    }
    assert notes == []


def test_a_knob_that_the_engine_lacks_is_left_out_with_a_note() -> None:
    knobs, notes = fitted(swap_space=[0, 8], max_num_seqs=[8, 16])
    assert list(knobs) == ["max-num-seqs"]
    assert notes == [
        (
            "knob swap-space is left out: vLLM 0.32.0 has no flag `--swap-space` "
            "(last present in 0.17; instead: kv-offloading-size)"
        )
    ]


def test_a_renamed_knob_keeps_its_name_and_gets_the_flag_of_this_version() -> None:
    knobs, notes = fitted(cuda_graph_sizes=[64, 128])
    assert knobs == {"cuda-graph-sizes": ("cudagraph-capture-sizes", (64, 128))}
    assert "`cudagraph-capture-sizes` here" in notes[0]


def test_values_that_are_no_choice_here_are_left_out() -> None:
    knobs, notes = fitted(kv_cache_dtype=["auto", "fp8", "fp7"], performance_mode=["eager"])
    assert knobs == {"kv-cache-dtype": (None, ("auto", "fp8"))}
    assert "fewer values" in notes[0]
    assert "performance-mode is left out" in notes[1]


def test_knobs_of_the_environment_and_of_other_versions_are_not_asked_for() -> None:
    knobs, notes = fitted(
        threads={"values": [1, 2], "env": "OMP_NUM_THREADS"},
        swap_space={"values": [0, 8], "versions": "<0.18"},
    )
    assert set(knobs) == {"threads", "swap-space"}
    assert notes == []


def test_without_a_list_the_version_table_decides() -> None:
    by_table = FlagCheck(
        engine="vllm", version="0.26.0", facts=engine_facts("vllm"),
        reading=HelpReading(help=None, where="", note="flags were not checked"),
    )  # fmt: skip
    space, notes = by_table.fit_space(
        load_space({"knobs": {"swap-space": [0, 8], "brand-new": [1, 2]}})
    )
    assert [knob.name for knob in space.knobs] == ["brand-new"]
    assert "has no flag `--swap-space`" in notes[0]
    assert by_table.notes == [
        "flags were not checked; the flag table of vllm 0.26.0 was used instead"
    ]
    asked_for = replace(by_table, reading=None)
    _, notes = asked_for.fit_space(load_space({"knobs": {"brand-new": [1, 2]}}))
    assert "has no flag `--brand-new`" in notes[0]


def vllm_study(lab: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """A vLLM study whose engine answers with the real list."""
    monkeypatch.setattr(module, "read_help", lambda target, facts, version: VLLM.reading)
    model = lab.folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    program = lab.folder / "vllm"
    program.write_text("#!/bin/sh\necho vllm 0.32.0\n")
    program.chmod(0o755)
    engine = {"kind": "vllm", "launcher": "process", "command": [str(program), "serve"]}
    engine |= changes.pop("engine", {})
    return lab.prepare(
        model=str(model), engine=engine,
        space={"engine": "vllm", "knobs": {"max-num-seqs": [8, 16, 32]}},
        **changes,
    ).study  # fmt: skip


def test_a_fixed_flag_that_the_engine_lacks_is_refused_with_its_place(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as caught:
        vllm_study(lab, monkeypatch, engine={"args": {"swap-space": 8}})
    lines = render_error(caught.value).splitlines()
    assert lines[0] == ("error: vLLM 0.32.0 has no flag `--swap-space`; every trial would fail")
    assert lines[1].startswith(f"  --> {lab.folder}/study.yaml:1:")
    assert any(line.rstrip().endswith("fixed for all trials") for line in lines)
    assert "  seen: read from `vllm serve --help=all`" in lines
    assert "        last present in 0.17; instead: kv-offloading-size" in lines
    assert "  so:   nothing was launched" in lines


def test_all_unfit_flags_are_named_at_once(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    args = {"swap-space": 8, "max-num-sqes": 4, "performance-mode": "fast"}
    with pytest.raises(InputError, match="3 flags do not fit vLLM") as caught:
        vllm_study(lab, monkeypatch, engine={"args": args})
    assert "nearest: max-num-seqs" in (caught.value.seen or "")
    assert len(caught.value.problems) == 3


def test_a_baseline_flag_that_the_engine_lacks_is_refused(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no flag `--swap-space`") as caught:
        vllm_study(lab, monkeypatch, baseline={"max-num-seqs": 8, "swap-space": 4})
    assert caught.value.problems[0].place is not None
    assert caught.value.problems[0].place.label == "runs today"


def test_a_pasted_command_is_held_to_the_list_too(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"vllm serve {lab.folder}/model --max-num-seqs 8 --swap-space 4"
    with pytest.raises(InputError, match="no flag `--swap-space`"):
        vllm_study(lab, monkeypatch, baseline=command)


def test_renamed_and_shortened_fixed_flags_are_launched_by_their_name_here(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = vllm_study(
        lab, monkeypatch,
        engine={"args": {"disable-log-requests": True, "max-model-le": 2048}},
        baseline={"max-num-seqs": 8, "cuda-graph-sizes": [8]},
    )  # fmt: skip
    words = " ".join(study.baseline_plan().argv)
    assert "--no-enable-log-requests" in words
    assert "--max-model-len 2048" in words
    assert "--cudagraph-capture-sizes 8" in words
    assert sum(" is `" in note or "short for" in note for note in study.notes) == 3
    assert study.facts["max-model-len"] == 2048


def test_a_simulated_study_is_checked_without_a_process(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: Any) -> None:
        raise AssertionError("a process was asked")

    monkeypatch.setattr(module, "read_help", no_process)
    with pytest.raises(InputError, match="simulated engine has no flag `--max-nmu-seqs`"):
        lab.prepare(engine={"kind": "simulated", "args": {"max-nmu-seqs": 4}})
    study = lab.prepare(
        space={"knobs": {"max-num-seqs": [8, 16], "enable-dbo": {"type": "switch"}}}
    ).study
    assert [knob.name for knob in study.space.knobs] == ["max-num-seqs"]
    assert any("knob enable-dbo is left out" in note for note in study.notes)
