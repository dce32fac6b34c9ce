"""What is written about engines' flags, against the tables made from their own parsers."""

from __future__ import annotations

from itertools import pairwise

import pytest
import yaml

from autotune.engines.facts import EngineFacts, engine_facts
from autotune.engines.flag_table import FlagTable, flag_table, read_table, table_versions
from autotune.engines.known_flags import NEVER
from autotune.engines.versions import written_numbers
from autotune.spec.resources import shipped_names

ENGINES = ("vllm", "sglang")
WANTED = {
    "vllm": {"0.11.0", "0.26.0", "0.32.0", "0.33.0"},
    "sglang": {"0.5.3", "0.5.13", "0.5.18", "0.5.23"},
}


@pytest.fixture(params=ENGINES)
def facts(request: pytest.FixtureRequest) -> EngineFacts:
    return engine_facts(request.param)


@pytest.fixture
def tables(facts: EngineFacts) -> list[FlagTable]:
    return [read_table(facts.engine, version) for version in table_versions(facts.engine)]


def has(table: FlagTable, name: str) -> bool:
    flag = table.find(name)
    return flag is not None and flag.refused is None


def written(facts: EngineFacts) -> dict[str, object]:
    from importlib.resources import files

    text = (files("autotune.engines") / "facts" / f"{facts.engine}.yaml").read_text("utf-8")
    data = yaml.safe_load(text)
    assert isinstance(data, dict)
    return data


def test_there_are_tables_of_the_versions_that_matter(
    facts: EngineFacts, tables: list[FlagTable]
) -> None:
    versions = table_versions(facts.engine)
    assert WANTED[facts.engine] <= set(versions)
    assert all(written_numbers(a) < written_numbers(b) for a, b in pairwise(versions))
    assert all(len(table.flags) > 150 for table in tables)


def test_first_versions_are_those_of_the_parsers(
    facts: EngineFacts, tables: list[FlagTable]
) -> None:
    told = {name: v for v, names in written(facts).get("since", {}).items() for name in names}
    wrong = [
        (name, since, table.versions[0])
        for name, since in told.items()
        for table in tables
        if has(table, name) != (written_numbers(table.versions[0]) >= written_numbers(since))
        and name not in facts.removed
    ]
    assert wrong == []


def test_a_flag_said_to_be_gone_is_gone_and_was_there_before(
    facts: EngineFacts, tables: list[FlagTable]
) -> None:
    """Between `until` and `gone_since` nothing is claimed."""
    wrong = []
    for name, removed in facts.removed.items():
        for table in tables if removed.until != NEVER else ():
            number = written_numbers(table.versions[0])
            last = written_numbers(removed.until)
            if removed.gone(table.versions[0]) and has(table, name):
                wrong.append((name, table.versions[0], "still there"))
            if last and number[: len(last)] == last and not has(table, name):
                wrong.append((name, table.versions[0], "gone already"))
    assert wrong == []


def test_what_is_to_be_used_instead_exists(facts: EngineFacts, tables: list[FlagTable]) -> None:
    """The first word of each advice that looks like a flag is one of the newest version."""
    newest = tables[-1]
    wrong = {
        removed.name: removed.instead
        for removed in facts.removed.values()
        # What begins otherwise is the parser's own refusal, or no flag at all
        if removed.instead
        and not removed.instead.startswith(("nothing", "the variable", "NOTE", "--"))
        and not has(newest, removed.instead.split()[0].rstrip(",:;").partition(".")[0])
    }  # fmt: skip
    assert wrong == {}


def test_renamed_flags_are_in_the_versions_between_them(
    facts: EngineFacts, tables: list[FlagTable]
) -> None:
    for entry in facts.renamed:
        assert any(has(table, entry.new.partition(".")[0]) for table in tables)
        assert not (has(tables[-1], entry.old) and not entry.inverted)


def test_every_flag_that_the_facts_name_is_one(facts: EngineFacts, tables: list[FlagTable]) -> None:
    order = facts.memory_order
    named = {
        *facts.compile_key, *order.share, *order.need, *order.neutral, *facts.always,
        *facts.opposites.values(), *facts.aliases.values(), *facts.shm["parallel_flags"],
        *(n for n in facts.managed), *(n for n in facts.secrets),
    }  # fmt: skip
    missing = {n for n in named if not any(table.find(n) for table in tables)}
    assert missing <= {"hf-token", "model-tag"}


def test_the_parsers_print_what_proves_a_whole_list(
    facts: EngineFacts, tables: list[FlagTable]
) -> None:
    assert all(has(table, name) for table in tables for name in facts.help_proof)


@pytest.mark.parametrize("space", shipped_names("search_spaces"))
def test_every_value_of_a_shipped_space_is_taken_by_the_newest_parsers(space: str) -> None:
    from autotune.space.space_file import read_space

    found = read_space(space).space
    assert found is not None
    if found.engine not in ENGINES:
        pytest.skip(f"a space for {found.engine}")
    table = flag_table(found.engine, None)
    assert table is not None
    facts = engine_facts(found.engine)
    from autotune.engines.flags import canonical_params, flag_words

    problems = []
    for knob in found.knobs:
        if knob.env is None and knob.exists_in(table.versions[0]):
            for value in knob.grid():
                for name, v in canonical_params(facts, {knob.flag or knob.name: value}).items():
                    if v is not None:
                        problems += table.check(flag_words(facts, name, v))
    assert problems == []
