from __future__ import annotations

from autotune.errors import EnvironmentFault, InputError, Place, Problem
from autotune.spec.render import problems_title, render_error


def place(line: int, column: int, length: int, text: str, label: str = "") -> Place:
    return Place(file="study.yaml", line=line, column=column, length=length, text=text, label=label)


def problem(at: Place) -> Problem:
    return Problem(message=at.label, place=at)


def test_three_problems_of_a_study_file_look_as_the_template_says() -> None:
    problems = (
        problem(
            place(14, 21, 8, "objective: minimize tttf_p95", "unknown metric; nearest: ttft_p95")
        ),
        problem(
            place(17, 23, 7, "  - tpot_p95 <= 1.1 x basline", "expected a number or `baseline`")
        ),
        problem(place(123, 23, 3, "    max-num-seqs: [8, 1e3]", "text, not a number")),
    )
    error = InputError(
        message=problems_title(problems, "study.yaml"),
        problems=problems,
        so="nothing was started",
        hint="`autotune plan study.yaml` checks again without starting anything",
    )
    assert render_error(error).splitlines() == [
        "error: 3 problems in study.yaml",
        "  --> study.yaml:14:21",
        " 14 | objective: minimize tttf_p95",
        "    |                     ^^^^^^^^ unknown metric; nearest: ttft_p95",
        "  --> study.yaml:17:23",
        " 17 |   - tpot_p95 <= 1.1 x basline",
        "    |                       ^^^^^^^ expected a number or `baseline`",
        "  --> study.yaml:123:23",
        "123 |     max-num-seqs: [8, 1e3]",
        "    |                       ^^^ text, not a number",
        "  so:   nothing was started",
        "",
        "hint: `autotune plan study.yaml` checks again without starting anything",
    ]


def test_an_error_without_a_place_has_its_facts_below() -> None:
    error = EnvironmentFault(
        message="GPU 0 still holds 71.3 GiB",
        seen="0.4 GiB before the study\npid 4711 survived",
        so="the study is stopped after trial 6; 6 results are kept",
    )
    assert render_error(error).splitlines() == [
        "error: GPU 0 still holds 71.3 GiB",
        "  seen: 0.4 GiB before the study",
        "        pid 4711 survived",
        "  so:   the study is stopped after trial 6; 6 results are kept",
    ]


def test_one_problem_is_named_in_the_first_line() -> None:
    only = Problem(message="`nmae`: unknown key", place=place(1, 1, 4, "nmae: x", "unknown key"))
    error = InputError(message=problems_title([only], "study.yaml"), problems=[only])
    assert render_error(error).splitlines() == [
        "error: study.yaml: `nmae`: unknown key",
        "  --> study.yaml:1:1",
        " 1 | nmae: x",
        "   | ^^^^ unknown key",
    ]
    bare = Problem(message="`model` is missing")
    lone = InputError(message=problems_title([bare], "study.yaml"), problems=[bare])
    assert render_error(lone) == "error: study.yaml: `model` is missing"


def test_ten_problems_are_shown_and_the_rest_counted() -> None:
    problems = [Problem(message=f"thing {number}") for number in range(13)]
    error = InputError(message=problems_title(problems, "study.yaml"), problems=problems)
    lines = render_error(error).splitlines()
    assert lines[:2] == ["error: 13 problems in study.yaml", "  - thing 0"]
    assert lines[-2:] == ["  - thing 9", "  ... and 3 more"]


def test_wide_characters_and_tabs_keep_the_caret_in_its_column() -> None:
    wide = place(1, 6, 3, "名前: \tabc", "here")
    lines = render_error(InputError(message="x", problems=[problem(wide)])).splitlines()
    assert lines[2:] == [" 1 | 名前:  abc", "   |        ^^^ here"]


def test_a_long_line_is_cut_around_the_caret() -> None:
    long = place(1, 501, 3, "x" * 500 + "bad" + "y" * 500, "here")
    _, _, text, caret = render_error(InputError(message="m", problems=[problem(long)])).splitlines()
    assert len(text) < 140
    assert text[caret.index("^") : caret.rindex("^") + 1] == "bad"


def test_control_characters_of_a_file_never_reach_the_terminal() -> None:
    nasty = place(1, 1, 1, "a: \x1b[31m\x07", "l\x1babel")
    text = render_error(InputError(message="m\x1b", problems=[problem(nasty)], seen="s\x9b"))
    assert all(char == "\n" or char.isprintable() for char in text)
