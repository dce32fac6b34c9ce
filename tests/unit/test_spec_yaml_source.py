from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.spec.yaml_source import Document, parse_yaml, read_yaml, scalar


def faults(document: Document) -> list[tuple[int, int, int, str]]:
    places = [(problem.place, problem.message) for problem in document.problems]
    return [(p.line, p.column, p.length, message) for p, message in places if p is not None]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("true", True),
        ("false", False), ("TRUE", True), ("null", None), ("~", None), ("", None),
        ("010", 10), ("0x10", 16), ("0o10", 8), ("-3", -3), ("12:30:45", "12:30:45"),
        ("1.5", 1.5), (".5", 0.5), ("1.0e+3", 1000.0), ("2026-01-01", "2026-01-01"),
        ("'1e3'", "1e3"), ('"5"', "5"), ("!!str 12", "12"), ("v0.26.0", "v0.26.0"),
        ("1.2.3", "1.2.3"),
        ("120s", "120s"), ("[1, a]", [1, "a"]), ("{b: [true]}", {"b": [True]}),
    ],
)  # fmt: skip
def test_values_are_read_by_yaml_1_2(written: str, value: object) -> None:
    document = parse_yaml(f"a: {written}\n", "s.yaml")
    assert document.problems == ()
    assert {"a": value} == document.data
    assert type(value) is type(document.data["a"])


@pytest.mark.parametrize(
    ("text", "fault", "data"),
    [
        ("a: 1e3", (1, 4, 3, "`a`: text, not a number: YAML 1.1 reads 1e3 as text; write 1000"),
         {"a": 1000}),
        ("a: [8, 1e-3]",
         (1, 8, 4, "`a[2]`: text, not a number: YAML 1.1 reads 1e-3 as text; write 0.001"),
         {"a": [8, 0.001]}),
        ("a: 1_000",
         (1, 4, 5, "`a`: text, not a number: YAML 1.2 reads 1_000 as text; write 1000"),
         {"a": 1000}),
        ("a: .inf", (1, 4, 4, "`a`: not a finite number"), {"a": ".inf"}),
        ("a: 9e999", (1, 4, 5, "`a`: a number that is too large"), {"a": "9e999"}),
        ("b:\n  a: 1\n  a: 2", (3, 3, 1, "`b.a`: repeated key; first on line 2"), {"b": {"a": 1}}),
        ("a: !!int '3'", (1, 4, 9, "`a`: a tag (int); write the plain value"), {"a": "3"}),
        ("? [1]\n: 2", (1, 3, 3, "a key that is not text"), {}),
        ("a: &x [*x]", (1, 4, 7, "`a[1]`: an alias to what contains it"), {"a": [None]}),
    ],
)  # fmt: skip
def test_traps_are_named_with_their_place_and_the_rest_is_read(
    text: str, fault: tuple[int, int, int, str], data: object
) -> None:
    document = parse_yaml(text, "s.yaml")
    assert [fault] == faults(document)
    if "!!int" not in text:
        assert data == document.data


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a:\n\t- b", 2, 1, "a tab; YAML indents with spaces"),
        ("a: b: c", 1, 5, "a second `:` in one value; put the text in quotes"),
        ("x: 1\na: 'b", 2, 4, "a quote that is not closed"),
        ("a: [1, 2\nb: 3", 2, 2, "a list that is not closed by ]"),
        ("a: {b: 1", 1, 4, "a mapping that is not closed by }"),
        ("a: *z", 1, 4, "an alias without its anchor"),
        ("a: 1\n---\nb: 2", 2, 1, "a second document; keep one"),
        ("a: @b", 1, 4, "a value that starts with a special character; put it in quotes"),
        ("a:\n  b: 1\n c: 2", 3, 2, "indentation that fits no line above"),
        ("a: \x00", 1, 4, "a character that is not text (U+0000)"),
        ("", 1, 1, "empty; expected `key: value` lines"),
        ("# nothing\n", 1, 1, "empty; expected `key: value` lines"),
        ("- a\n- b\n", 1, 1, "a list, not a mapping; expected `key: value` lines"),
        ("hello\n", 1, 1, "a text, not a mapping; expected `key: value` lines"),
        ("[" * 3000, 1, 1, "nested too deeply"),
    ],
)
def test_what_is_no_yaml_mapping_is_one_problem_with_its_place(
    text: str, line: int, column: int, message: str
) -> None:
    document = parse_yaml(text, "s.yaml")
    assert [(line, column, message)] == [(f[0], f[1], f[3]) for f in faults(document)]
    assert document.data is None


def test_a_byte_order_mark_and_crlf_change_no_place() -> None:
    document = parse_yaml(b"\xef\xbb\xbfa: 1\r\nb: [1e3]\r\n", "s.yaml")
    assert document.data == {"a": 1, "b": [1000]}
    assert [fault[:2] for fault in faults(document)] == [(2, 5)]


def test_bytes_that_are_no_utf8_are_placed() -> None:
    document = parse_yaml(b"a: 1\nb: caf\xe9\n", "s.yaml")
    assert faults(document) == [(2, 7, 1, "not UTF-8 (byte 0xE9); save as UTF-8")]
    wide = parse_yaml("a: 1".encode("utf-16"), "s.yaml")
    assert wide.problems[0].message == "UTF-16 (byte 0xFF); save as UTF-8"


def test_anchors_and_aliases_share_values() -> None:
    document = parse_yaml("a: &x [1, 2]\nb: *x\n", "s.yaml")
    assert document.data == {"a": [1, 2], "b": [1, 2]}
    assert document.problems == ()


TEXT = """\
model: m
engine:
  args: {max-model-len: 32768}
constraints:
  - ttft_p95 < 5ms
  - "tpot_p95 < 5ms"
"""


@pytest.mark.parametrize(
    ("path", "key", "line", "column", "length"),
    [
        (("model",), False, 1, 8, 1),
        (("model",), True, 1, 1, 5),
        (("engine",), False, 2, 1, 6),
        (("engine", "args"), False, 3, 9, 22),
        (("engine", "args", "max-model-len"), False, 3, 25, 5),
        (("engine", "args", "max-model-len"), True, 3, 10, 13),
        (("constraints", 1), False, 6, 5, 16),
        (("engine", "nowhere"), False, 2, 1, 6),
        (("nowhere",), False, 1, 1, 8),
    ],
)
def test_every_path_has_its_place(
    path: tuple[str | int, ...], key: bool, line: int, column: int, length: int
) -> None:
    place = parse_yaml(TEXT, "s.yaml").place(path, key=key)
    assert (line, column, length) == (place.line, place.column, place.length)
    assert TEXT.splitlines()[line - 1] == place.text


def test_an_offset_inside_a_text_moves_the_caret_past_its_quote() -> None:
    document = parse_yaml(TEXT, "s.yaml")
    plain = document.place(("constraints", 0), offset=11, length=3)
    quoted = document.place(("constraints", 1), offset=11, length=3)
    assert (plain.line, plain.column, plain.length) == (5, 16, 3)
    assert (quoted.line, quoted.column, quoted.length) == (6, 17, 3)


def test_secrets_in_a_line_are_masked_and_columns_stay() -> None:
    document = parse_yaml(
        "env: {HF_TOKEN: hf_abcdef, max-num-batched-tokens: 8192000, X: 1e3}", "s"
    )
    place = document.problems[0].place
    assert place is not None
    assert place.text == "env: {HF_TOKEN: *********, max-num-batched-tokens: 8192000, X: 1e3}"
    assert place.text[place.column - 1 :][: place.length] == "1e3"


def test_a_missing_or_unreadable_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        read_yaml(tmp_path)


def test_a_flag_value_is_read_like_a_file_value() -> None:
    assert (scalar("5"), scalar("on"), scalar("true")) == (5, "on", True)
    with pytest.raises(ValueError, match="write 1000"):
        scalar("1e3")


@given(
    st.text(
        alphabet=st.sampled_from("ab:-[]{}#'\"&*!|>%@\t\n\r 01e3.,~\u2028\ufeff\x00"), max_size=40
    )
)
def test_any_text_is_read_or_has_problems_inside_the_file(text: str) -> None:
    document = parse_yaml(text, "s.yaml")
    assert document.data is not None or document.problems
    for problem in document.problems:
        place = problem.place
        assert place is not None
        assert 1 <= place.column <= len(place.text) + 1
        assert place.length >= 1


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_have_problems(raw: bytes) -> None:
    document = parse_yaml(raw, "s.yaml")
    assert document.data is not None or document.problems
