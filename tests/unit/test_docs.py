"""The reference pages name everything that exists, and nothing that does not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

import pytest
import typer.main
from pydantic import BaseModel

import autotune.errors as errors_module
from autotune.cli.app import STUDY_OPTIONS, app
from autotune.deploy.formats import FORMATS
from autotune.engines import engine as engine_module
from autotune.measure import comparison, prefill_decode, validity
from autotune.measure.comparison import VerdictName
from autotune.measure.measurement import Measurement, Validity
from autotune.replay import records
from autotune.simulator.profile import profile_names
from autotune.space.facts import FACTS
from autotune.space.study_space import open_study
from autotune.spec.model import StudySpec
from autotune.spec.resources import shipped_names
from autotune.spec.vocabulary import METRICS, STATISTICS
from autotune.study import events
from autotune.study.facts import gpu_facts, model_facts, workload_facts
from autotune.workload.formats.registry import formats
from autotune.workload.scenarios import SCENARIOS, make
from autotune.workload.statistics import describe
from autotune.workload.writer import write_trace

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
GUIDES = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "workloads" / "README.md"]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
_SHELL = ("sh", "bash", "console", "text")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`([^`\n]+)`")
_CONSTANT = re.compile(r"`([A-Z][A-Z_]+)` = ([\d.]+)")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def named(text: str) -> set[str]:
    """Everything that stands in backticks, once whole and once without its arguments."""
    found = set(_INLINE.findall(_FENCE.sub("", text)))
    return found | {item.split()[0] for item in found}


def missing(wanted: set[str] | list[str], text: str) -> list[str]:
    have = named(text)
    return sorted(name for name in wanted if name not in have)


# ---- the study file


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = list(models_in(field.annotation))
        mapping = "*." if get_origin(field.annotation) is dict else ""
        if not inner or mapping:
            yield prefix + name
        for part in inner:
            yield from keys_of(part, f"{prefix}{name}.{mapping}")


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from models_in(get_args(annotation)[0])
    else:
        for part in get_args(annotation):
            yield from models_in(part)


def test_every_key_of_the_study_file_is_in_its_reference() -> None:
    keys = set(keys_of(StudySpec))
    assert {"engine.env.*.from_env", "budget.trials", "quality.max_loss"} <= keys
    assert missing(keys, page("study-file.md")) == []


def test_no_key_is_documented_that_the_study_file_does_not_have() -> None:
    groups = {key.partition(".")[0] for key in keys_of(StudySpec) if "." in key}
    rows = re.findall(r"^\| `([a-z_.]+)` \|", page("study-file.md"), re.M)
    documented = {row for row in rows if row.partition(".")[0] in groups and "." in row}
    known = set(keys_of(StudySpec)) | set(FACTS)
    assert documented - known == set()


def test_every_choice_of_a_study_key_is_documented() -> None:
    def literals(annotation: Any) -> Iterator[str]:
        for part in get_args(annotation):
            if isinstance(part, str):
                yield part
            else:
                yield from literals(part)

    def of(model: type[BaseModel]) -> Iterator[str]:
        for field in model.model_fields.values():
            yield from literals(field.annotation)
            for inner in models_in(field.annotation):
                yield from of(inner)

    assert missing(set(of(StudySpec)), page("study-file.md")) == []


def test_every_key_of_a_search_space_is_documented() -> None:
    from autotune.space.space_file import _KnobEntry, _SpaceEntry

    wanted = {*_KnobEntry.model_fields, *_SpaceEntry.model_fields}
    assert missing(wanted, page("study-file.md")) == []


def test_every_fact_of_conditions_is_documented() -> None:
    assert missing(set(FACTS), page("study-file.md")) == []


def test_every_documented_fact_of_the_workload_can_be_known() -> None:
    given = set(workload_facts(describe(make("quickstart"))))
    given |= {"engine.kind", "engine.version", *gpu_facts([], None), *model_facts("none")}
    assert {name for name in FACTS if name.startswith("workload.")} <= given


def study_examples() -> list[tuple[str, int, str]]:
    return [
        (path.name, number, body)
        for path in [*PAGES, ROOT / "README.md"]
        for number, (language, body) in enumerate(_FENCE.findall(path.read_text(encoding="utf-8")))
        if language == "yaml"
    ]


@pytest.mark.parametrize(("file", "number", "body"), study_examples())
def test_every_yaml_example_is_a_study_that_loads(
    file: str, number: int, body: str, tmp_path: Path
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(body, encoding="utf-8")
    own = re.search(r"\bpath: ([\w./-]+/[\w.-]+)", body)
    if own is not None:  # a recording of the reader's own, beside the study file
        (tmp_path / own[1]).parent.mkdir(parents=True, exist_ok=True)
        write_trace(tmp_path / own[1], make("cpu-tiny"))
    opened = open_study(study)
    assert opened.space.knobs, f"{file}, fence {number}"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_example_names_what_is_documented(path: Path) -> None:
    keys = re.findall(r"^([a-z_]+):", path.read_text(encoding="utf-8"), re.M)
    assert set(keys) <= set(StudySpec.model_fields)


# ---- the command line


def commands() -> dict[tuple[str, ...], Any]:
    """Words after `autotune` -> click command; groups are left out."""
    return dict(_leaves(typer.main.get_command(app), ()))


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
    else:
        for name, part in inner.items():
            yield from _leaves(part, (*words, name))


def options_of(command: Any) -> dict[str, Any]:
    return {
        flag: parameter
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("-")
    }


def test_every_command_is_documented() -> None:
    text = page("command-line.md")
    for words in commands():
        assert f"`autotune {' '.join(words)}" in text, words


def test_every_option_is_documented_in_the_row_of_its_command() -> None:
    text = page("command-line.md")
    shared = {"-h", "--help", *(f"--{name}" for name in STUDY_OPTIONS)}
    for words, command in commands().items():
        row = re.search(rf"^\| `autotune {' '.join(words)}[ `].*$", text, re.M)
        assert row is not None, words
        own = set(options_of(command)) - (shared if words[0] in ("tune", "plan") else {"--help"})
        for option in own - {"-h", "--no-strict"}:
            assert re.search(rf"{re.escape(option)}\b", row[0]), (words, option)
    rest = {"--no-strict", *options_of(typer.main.get_command(app))}
    assert missing(rest, text) == []


def test_every_study_flag_is_documented_with_its_key() -> None:
    text = page("command-line.md")
    for option, key in STUDY_OPTIONS.items():
        assert re.search(rf"\| `--{option}`[^|]*\| `{re.escape(key)}`", text), option


def command_lines() -> list[tuple[str, list[str]]]:
    """(page, words) of every `autotune ...` in a shell fence, or inline in full."""
    found = []
    for path in GUIDES:
        text = path.read_text(encoding="utf-8")
        shell = [body for kind, body in _FENCE.findall(text) if kind in _SHELL]
        lines = [
            line.removeprefix("$ ")
            for body in shell
            for line in body.replace("\\\n", " ").splitlines()
        ]
        lines += [item.replace("\\|", "|") for item in _INLINE.findall(_FENCE.sub("", text))]
        for line in lines:
            words = shlex.split(line, comments=True) if "autotune " in line else []
            while "&&" in words:
                words = words[words.index("&&") + 1 :]
            if words[:1] == ["autotune"] and words[1:]:
                found.append((path.name, words[1:]))
    return found


@pytest.mark.parametrize(("file", "words"), command_lines(), ids=lambda value: str(value)[:60])
def test_every_command_line_in_the_docs_exists(file: str, words: list[str]) -> None:
    while words and words[0].startswith("--"):
        assert words[0] in options_of(typer.main.get_command(app)), file
        words = words[2 if words[0] == "--log-level" else 1 :]
    known = commands()
    chosen = next((n for n in (2, 1) if tuple(words[:n]) in known), None)
    if chosen is None:
        assert any(tuple(words) == name[: len(words)] for name in known), words
        return
    options = options_of(known[tuple(words[:chosen])])
    for word in words[chosen:]:
        flag = word.partition("=")[0]
        if re.match(r"--?[a-z]", flag):
            assert flag in options, (file, words)


def test_every_exit_code_is_documented() -> None:
    def codes(kind: type[errors_module.AutotuneError]) -> Iterator[int]:
        yield kind.exit_code
        for inner in kind.__subclasses__():
            yield from codes(inner)

    section = page("command-line.md").partition("## Exit codes")[2].partition("\n## ")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.M)}
    assert documented == {0, *codes(errors_module.AutotuneError)}


def test_json_contracts_name_the_keys_that_are_printed() -> None:
    text = page("command-line.md")
    finding = engine_module.Diagnosis(
        fault="unknown", phase="startup", reason="r", remedy=None, message="m"
    )
    measurement = Measurement(
        validity=Validity(verdict="valid"), planned=0, ok=0, failed=0, failed_by_reason={},
        metrics={}, intervals={}, client={},
    )  # fmt: skip
    for command, keys in {
        "diagnose --json": finding.to_json(),
        "workload inspect --json": describe(make("cpu-tiny")),
        "replay --json": measurement.to_json(),
    }.items():
        row = re.search(rf"^\| `{command}`.*$", text, re.M)
        assert row is not None, command
        assert missing(set(keys), row[0]) == []


# ---- metrics


def test_every_metric_and_statistic_is_documented() -> None:
    text = page("metrics.md")
    assert missing({metric.family for metric in METRICS.values()}, text) == []
    assert missing(list(STATISTICS), text) == []


def test_every_failure_and_bound_is_documented() -> None:
    text = page("metrics.md")
    assert missing(list(get_args(records.Failure)), text) == []
    assert missing(list(get_args(prefill_decode.Bound)), text) == []


def test_validity_thresholds_are_documented_with_their_values() -> None:
    written = {name: float(value) for name, value in _CONSTANT.findall(page("metrics.md"))}
    assert written == numbers_of(validity)


def numbers_of(module: ModuleType) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, int | float)
    }


def test_thresholds_quoted_in_words_are_the_ones_in_the_code() -> None:
    assert (prefill_decode.PREFILL_SHARE, prefill_decode.DECODE_SHARE) == (0.7, 0.3)
    assert (prefill_decode.KV_FULL, prefill_decode.QUEUE_SHARE) == (0.95, 0.5)
    assert (comparison.MIN_PAIRS, comparison.PROMISING) == (3, 0.05)
    text = page("metrics.md")
    assert "`ttft_share` above 0.7 / below 0.3 / between" in text
    assert "KV usage at 95 % or more" in text
    assert "by more than 5 %" in page("verdicts.md")


# ---- workloads, spaces, the rest


def test_every_workload_format_is_documented() -> None:
    assert missing(set(formats()), page("workloads.md")) == []


def test_everything_shipped_is_documented() -> None:
    workloads = {name.partition(".")[0] for name in shipped_names("workloads")}
    assert missing(workloads | set(SCENARIOS), page("workloads.md")) == []
    assert missing(shipped_names("search_spaces"), page("study-file.md")) == []
    assert missing(list(profile_names()), page("simulator.md")) == []


def test_every_verdict_script_format_and_event_is_documented() -> None:
    assert missing(list(get_args(VerdictName)), page("verdicts.md")) == []
    row = re.search(r"^\| `autotune script.*$", page("command-line.md"), re.M)
    assert row is not None
    for name in FORMATS:
        assert re.search(rf"\b{name}\b", row[0]), name
    assert missing(list(get_args(events.Kind)), page("architecture.md")) == []
    text = page("command-line.md")
    for word in (*get_args(engine_module.Fault), *get_args(engine_module.Phase)):
        assert re.search(rf"`(?:fault|phase)` \([^)]*\b{word}\b", text), word


def test_every_room_is_on_the_map() -> None:
    rooms = {f"{path.parent.name}/" for path in (ROOT / "autotune").glob("*/__init__.py")}
    assert missing(rooms, page("architecture.md")) == []


def test_modules_on_the_map_exist() -> None:
    table = re.findall(r"^\| `(\w+)/` \|[^|]*\| (.*) \|$", page("architecture.md"), re.M)
    assert len(table) >= 12
    for room, cell in table:
        for module in _INLINE.findall(cell):
            assert list((ROOT / "autotune" / room).glob(module)), (room, module)
    for path in re.findall(r"`([a-z_]+/[a-z_/]+\.(?:py|yaml))`", page("architecture.md")):
        places = (ROOT / path, ROOT / "autotune" / path)
        assert any(place.exists() for place in places), path


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    for target in _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.M)
            assert anchor in {slug(heading) for heading in headings}, target


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_stay_short(path: Path) -> None:
    most = {"metrics.md": 200, "study-file.md": 200}.get(path.name, 120)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most
