from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.spec.loader import load_study, study_from_flags
from autotune.spec.model import FromEnv
from autotune.spec.render import render_error

Write = Callable[[str], Path]

GOOD = """\
name: qwen-rag-overnight
model: Qwen/Qwen2.5-7B-Instruct
engine:
  kind: vllm
  launcher: docker
  image: vllm/vllm-openai:v0.26.0
  args: {max_model_len: 32768, compilation-config.cudagraph_mode: FULL}
  env: {HF_TOKEN: {from_env: HF_TOKEN}, TOKENIZERS_PARALLELISM: "false"}
  gpus: [0]
baseline: {--max-num-batched-tokens: 8192}
space: vllm
workload: {path: traces/prod.jsonl, window: 120s, time_scale: 1.0, warmup: auto}
objective: minimize ttft_p95
constraints:
  - tpot_p95 <= 1.1 x baseline
  - success_rate >= 0.999
budget: {time: 8h, trials: 40}
search: {sampler: tpe, seed: 7, finalists: 3, repeats: 3}
quality: {check: likelihood, max_loss: 1%}
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "prod.jsonl").write_text("{}\n")

    def _write(text: str) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return path

    return _write


def shown(path: Path, **overrides: Any) -> list[str]:
    """The rendered error of a study, with the file's folder left out."""
    with pytest.raises(InputError) as caught:
        load_study(path, overrides)
    return render_error(caught.value).replace(f"{path.parent}/", "").splitlines()


def labels(path: Path, **overrides: Any) -> list[tuple[int, int, str]]:
    with pytest.raises(InputError) as caught:
        load_study(path, overrides)
    places = [problem.place for problem in caught.value.problems]
    return [(p.line, p.column, p.label) for p in places if p is not None]


def test_a_whole_study_file_is_read(write: Write, tmp_path: Path) -> None:
    study = load_study(write(GOOD))
    spec = study.spec
    assert spec.name == "qwen-rag-overnight"
    assert str(tmp_path / "traces" / "prod.jsonl") == spec.workload.path
    assert spec.workload.window == 120.0
    assert spec.budget.time == 28800.0
    assert [objective.text for objective in spec.objective] == ["minimize ttft_p95"]
    assert [limit.text for limit in spec.constraints] == [
        "tpot_p95 <= 1.1 x baseline",
        "success_rate >= 0.999",
    ]
    assert FromEnv(from_env="HF_TOKEN") == spec.engine.env["HF_TOKEN"]
    assert spec.engine.args == {"max-model-len": 32768, "compilation-config.cudagraph_mode": "FULL"}
    assert spec.baseline == {"max-num-batched-tokens": 8192}
    assert spec.quality is not None
    assert spec.quality.max_loss == 0.01


def test_every_value_knows_where_it_came_from(write: Write) -> None:
    origins = load_study(write(GOOD), {"budget.trials": 3, "engine.args.seed": 0}).origins
    assert origins["budget.time"] == "study file"
    assert origins["budget.trials"] == "flag"
    assert origins["engine.args.seed"] == "flag"
    assert origins["engine.args.max-model-len"] == "study file"
    assert origins["baseline.max-num-batched-tokens"] == "study file"
    assert origins["engine.startup_timeout"] == "default"


def test_flags_outrank_the_file_and_none_means_not_given(write: Write) -> None:
    spec = load_study(
        write(GOOD), {"budget.time": "2h", "search.seed": None, "space": "quick"}
    ).spec
    assert (spec.budget.time, spec.search.seed, spec.space) == (7200.0, 7, "quick")


def test_what_the_file_leaves_out_has_defaults(write: Write) -> None:
    spec = load_study(
        write("model: m\nworkload: {path: traces/prod.jsonl}\nobjective: ttft_p95\n")
    ).spec
    assert (spec.name, spec.space, spec.budget.trials) == ("study", "vllm", 40)
    assert spec.baseline == {}


def test_the_worked_example_is_shown_word_for_word(write: Write) -> None:
    path = write(
        "name: n\nmodel: m\n" + "#\n" * 11
        + "objective: minimize tttf_p95\n"
        + "constraints:\n  - success_rate >= 0.999\n  - tpot_p95 <= 1.1 x basline\n"
        + "workload: {path: traces/prod.jsonl}\nbudget: {time: 8h}\nspace:\n"
        + "  engine: vllm\n  knobs:\n    max-num-seqs: [8, 1e3]\n"
    )  # fmt: skip
    assert shown(path) == [
        "error: 3 problems in study.yaml",
        "  --> study.yaml:14:21",
        "14 | objective: minimize tttf_p95",
        "   |                     ^^^^^^^^ unknown metric; nearest: ttft_p95",
        "  --> study.yaml:17:23",
        "17 |   - tpot_p95 <= 1.1 x basline",
        "   |                       ^^^^^^^ expected a number or `baseline`",
        "  --> study.yaml:23:23",
        "23 |     max-num-seqs: [8, 1e3]",
        "   |                       ^^^ text, not a number: YAML 1.1 reads 1e3 as text; write 1000",
        "  so:   nothing was started",
        "",
        f"hint: `autotune plan {path.name}` checks again without starting anything",
    ]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("name: qwen", "nmae: qwen", (1, 1, "unknown key; nearest: name")),
        ("{sampler: tpe", "{smapler: tpe", (18, 10, "unknown key; nearest: sampler")),
        ("quality: {", "seed: 3\nquality: {",
         (19, 1, "unknown key here; it belongs under `search`")),
        ("budget: {time", "budget: {tiem", (17, 10, "unknown key; nearest: time")),
        ("kind: vllm", "kind: vlm",
         (4, 9, ("expected `vllm`, `sglang`, `simulated`, `simulated-sglang` or `generic`; "
                "nearest: vllm"))),
        ("kind: vllm", "kind: [vllm, vllm]", (4, 16, "named twice: vllm")),
        ("kind: vllm", "kind: [vllm, slang]",
         (4, 16, ("expected `vllm`, `sglang`, `simulated`, `simulated-sglang` or `generic`; "
                 "nearest: sglang"))),
        ("trials: 40", 'trials: "40"', (17, 28, "text; expected a whole number")),
        ("trials: 40", "trials: 0", (17, 28, "expected at least 1")),
        ("trials: 40", "trials: 4.5", (17, 28, "expected a whole number")),
        ("seed: 7", "seed: true", (18, 30, "expected a whole number")),
        ("time: 8h", "time: 8 hours",
         (17, 16, "expected a duration such as 90s, 500ms, 1.5h or 2h30m")),
        ("time: 8h", "time: 0", (17, 16, "expected more than 0")),
        ("warmup: auto", "warmup: -1", (12, 76, "expected `auto` or at least 0")),
        ("warmup: auto", "warmup: yes", (12, 76, "text; expected `auto` or a whole number")),
        ("name: qwen-rag-overnight", "name: 2026",
         (1, 7, "a number; expected text")),
        ("model: Qwen/Qwen2.5-7B-Instruct", "model:", (2, 1, "empty; expected text")),
        ("gpus: [0]", "gpus: 0", (9, 9, "expected a list")),
        ("space: vllm", "space: vlm", (11, 8, "no such space; nearest: vllm")),
        ("space: vllm", "space: my/space.yaml", (11, 8, "no such file")),
        ("traces/prod", "traces/pord",
         (12, 18, "no such file, here or among the shipped workloads")),
        ("path: traces/prod.jsonl", "path: traces", (12, 18, "a folder, not a workload file")),
        ("objective: minimize ttft_p95", "objective: [ttft_p95, maximize capacity]",
         (13, 23, "is found at a rate of its own: no objective beside it")),
        ("minimize ttft_p95\nconstraints:", "maximize capacity\nconstrains:",
         (13, 12, "needs a limit to hold, such as `constraints: ttft_p95 <= 500ms`")),
        ("objective: minimize ttft_p95", "objective: [ttft_p95, minimize ttft_p95]",
         (13, 23, "the same as an earlier one: minimize ttft_p95")),
        ("objective: minimize ttft_p95", "objective: []", (13, 12, "expected at least 1 of them")),
        ("success_rate >= 0.999", '"success_rate >= 99.9"',
         (16, 22, "a share is at most 1; write 99.9%")),
        ("success_rate >= 0.999", "[]", (16, 5, "expected a limit such as `ttft_p95 <= 500ms`")),
        ("max_loss: 1%", "max_loss: 3",
         (19, 40, "a share lies between 0 and 1; write 1% or 0.01 for one percent")),
        ("  image: vllm/vllm-openai:v0.26.0\n", "", (5, 13, "docker needs `image` beside it")),
        ("model: Qwen", "model: ./Qwen", (2, 8, "no such folder")),
        ("baseline: {--max-num-batched-tokens: 8192}", "baseline: old-launch.sh",
         (10, 11, "no such file, and not a launch command")),
        ("--max-num-batched-tokens: 8192", "max-model-len: 5",
         (10, 12, "fixed for every trial as 32768 in engine.args")),
        ("max_model_len: 32768,", "max_model_len: 32768, max-model-len: 3,",
         (7, 32, "the same flag as `max_model_len`")),
        ('TOKENIZERS_PARALLELISM: "false"', "X: true",
         (8, 44, "true or false; expected text or a number or a mapping")),
        ('TOKENIZERS_PARALLELISM: "false"', "VLLM_API_KEY: sk-123",
         (8, 41, "a secret is given by name only: VLLM_API_KEY: {from_env: VLLM_API_KEY}")),
        ("HF_TOKEN: {from_env: HF_TOKEN}", "HF_TOKEN: {from_evn: HF_TOKEN}",
         (8, 20, "unknown key; nearest: from_env")),
        ('TOKENIZERS_PARALLELISM: "false"', "A-B: x",
         (8, 41, "not a name of an environment variable")),
        ("  gpus: [0]", "  mounts: [/models]",
         (9, 12, "expected SOURCE:TARGET, or SOURCE:TARGET:rw to write there")),
        ("  gpus: [0]", "  mounts: [/data:/data:rx]",
         (9, 12, "expected SOURCE:TARGET, or SOURCE:TARGET:rw to write there")),
        ("  gpus: [0]", "  mounts: [{source: /a, target: /b}]",
         (9, 12, "expected SOURCE:TARGET, or SOURCE:TARGET:rw to write there")),
        ("max_model_len: 32768,", "api-key: sk-12345,",
         (7, 10, "a secret on the command line; pass it by name under engine.env")),
    ],
)  # fmt: skip
def test_each_fault_is_placed_and_named(
    write: Write, old: str, new: str, fault: tuple[int, int, str]
) -> None:
    assert old in GOOD
    assert fault in labels(write(GOOD.replace(old, new, 1)))


def test_a_secret_in_the_file_is_in_no_error_text(write: Write) -> None:
    text = GOOD.replace('TOKENIZERS_PARALLELISM: "false"', "VLLM_API_KEY: sk-verysecret, X: true")
    assert "sk-verysecret" not in "\n".join(shown(write(text)))


def test_missing_keys_are_told_together(write: Write) -> None:
    assert shown(write("engine: {kind: vllm}\nworkload: {}\n"))[:5] == [
        "error: 3 problems in study.yaml",
        "  - `model` is missing",
        "  - `objective` is missing",
        "  --> study.yaml:2:1",
        " 2 | workload: {}",
    ]


def test_a_file_that_is_no_yaml_is_one_problem(write: Write) -> None:
    assert shown(write("a: 1\nb: c: d\n"))[:3] == [
        "error: study.yaml: a second `:` in one value; put the text in quotes",
        "  --> study.yaml:2:5",
        " 2 | b: c: d",
    ]


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    assert shown(tmp_path / "none.yaml")[0] == "error: no file none.yaml"
    with pytest.raises(InputError, match="is a folder, not a study file") as caught:
        load_study(tmp_path)
    assert caught.value.hint == f"to go on with a study: `autotune resume {tmp_path}`"


def test_a_baseline_is_a_script_or_a_command(write: Write, tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text("vllm serve m\n")
    old = "baseline: {--max-num-batched-tokens: 8192}"
    script = load_study(write(GOOD.replace(old, "baseline: launch.sh"))).spec.baseline
    assert str(tmp_path / "launch.sh") == script
    command = load_study(write(GOOD.replace(old, "baseline: vllm serve m --max-num-seqs 8"))).spec
    assert command.baseline == "vllm serve m --max-num-seqs 8"


def test_a_model_folder_may_be_one_inside_the_container(write: Write) -> None:
    text = GOOD.replace("model: Qwen/Qwen2.5-7B-Instruct", "model: /models/qwen")
    assert (2, 8, "no such folder") in labels(write(text))
    mounted = text.replace("  gpus: [0]", "  gpus: [0]\n  mounts: [/data/models:/models:ro]")
    assert load_study(write(mounted)).spec.model == "/models/qwen"


def test_flags_alone_make_a_study(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(GOOD).parent)
    study = study_from_flags(
        {
            "engine.kind": "simulated",
            "model": "org/Some-Model",
            "workload.path": "traces/prod.jsonl",
            "constraints": ["ttft_p95 < 500ms"],
            "budget.time": "8h",
        }
    )
    spec = study.spec
    assert (
        spec.name,
        spec.space,
        spec.objective[0].text,
    ) == ("Some-Model", "quick", "minimize e2e_p95")
    assert study.document is None
    assert (study.origins["constraints"], study.origins["objective"]) == ("flag", "default")


def test_several_objectives_are_given_several_finalists(write: Write) -> None:
    assert load_study(write(GOOD)).spec.search.finalists == 3
    text = GOOD.replace(", finalists: 3", "")
    assert load_study(write(text)).spec.search.finalists == 1
    several = text.replace("minimize ttft_p95", "[ttft_p95, tpot_p95]")
    assert load_study(write(several)).spec.search.finalists == 3


def test_faults_in_flags_are_shown_on_the_command_line() -> None:
    with pytest.raises(InputError) as caught:
        study_from_flags({"model": "m", "constraints": ["ttft_p95 < 5ms", "tpot_p95 < 5"]})
    assert render_error(caught.value).splitlines() == [
        "error: 2 problems in the flags",
        "  - `workload` is missing",
        "  --> the flags:1:18",
        " 1 | --slo tpot_p95 < 5",
        "   |                  ^ no unit: write 5ms or 5s",
        "  so:   nothing was started",
        "",
        "hint: `autotune tune --help` lists the flags",
    ]


yaml_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=3,
)
KEYS = [
    "name",
    "model",
    "engine",
    "baseline",
    "space",
    "workload",
    "objective",
    "constraints",
    "budget",
    "search",
    "quality",
    "engine.kind",
    "engine.args",
    "engine.env",
    "engine.mounts",
    "engine.launcher",
    "workload.path",
    "budget.time",
    "search.seed",
]


@given(st.dictionaries(st.sampled_from(KEYS), yaml_values, max_size=6))
def test_any_values_make_a_study_or_an_error_that_can_be_shown(values: dict[str, Any]) -> None:
    fault = None
    try:
        study_from_flags(values)
    except InputError as error:
        fault = error
    if fault is not None:
        assert fault.problems
        assert render_error(fault).startswith("error: ")
