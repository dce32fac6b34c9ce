from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.spec.expressions import ExpressionError, parse_constraint, parse_objective
from autotune.spec.nearest import nearest
from autotune.spec.vocabulary import METRICS


def caret(error: ExpressionError) -> str:
    return " " * error.offset + "^" * error.length


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("minimize ttft_p95", "minimize ttft_p95"),
        ("  min   ttft_p95 ", "minimize ttft_p95"),
        ("minimise e2e_mean", "minimize e2e_mean"),
        ("maximize output_throughput", "maximize output_throughput"),
        ("max goodput", "maximize goodput"),
        ("ttft_p95", "minimize ttft_p95"),
        ("output_throughput", "maximize output_throughput"),
    ],
)
def test_an_objective_has_one_canonical_text(written: str, canonical: str) -> None:
    objective = parse_objective(written)
    assert canonical == objective.text
    assert objective == parse_objective(objective.text)


@pytest.mark.parametrize(
    ("written", "under", "message"),
    [
        ("minimize tttf_p95",
         "         ^^^^^^^^", "unknown metric; nearest: ttft_p95"),
        ("minimize p95_ttft",
         "         ^^^^^^^^", "unknown metric; nearest: ttft_p95"),
        ("throughput",
         "^^^^^^^^^^", "unknown metric; nearest: output_throughput, request_throughput"),
        ("minimize happiness",
         "         ^^^^^^^^^", "unknown metric"),
        ("minimize ttft",
         "         ^^^^",
         "no statistic: write one of ttft_p50, ttft_p90, ttft_p95, ttft_p99, ttft_mean, ttft_max"),
        ("minimize capacity",
         "^^^^^^^^", "higher capacity is better; write `maximize capacity`"),
        ("minimize",
         "^^^^^^^^", "expected a metric after it, such as `minimize ttft_p95`"),
        ("lower ttft_p95",
         "^^^^^", "expected `minimize` or `maximize`"),
        ("minimize ttft_p95 tpot_p95",
         "                  ^^^^^^^^",
         "one metric per objective; a list holds up to three objectives"),
        ("maximize ttft_p95",
         "^^^^^^^^", "lower ttft_p95 is better; write `minimize ttft_p95`"),
        ("minimize chunk_gap_p95",
         "         ^^^^^^^^^^^^^", "chunk_gap_p95 can be limited or shown, not optimised"),
    ],
)  # fmt: skip
def test_the_caret_stands_under_the_word_at_fault_in_an_objective(
    written: str, under: str, message: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_objective(written)
    assert under == caret(caught.value)
    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("written", "op", "value", "relative", "canonical"),
    [
        ("tpot_p95 <= 1.1 x baseline", "<=", 1.1, True, "tpot_p95 <= 1.1 x baseline"),
        ("tpot_p95<=1.1*baseline", "<=", 1.1, True, "tpot_p95 <= 1.1 x baseline"),
        ("ttft_p95 \N{LESS-THAN OR EQUAL TO} 0.5 \N{MULTIPLICATION SIGN} baseline",
         "<=", 0.5, True, "ttft_p95 <= 0.5 x baseline"),
        ("ttft_p95 <= baseline", "<=", 1.0, True, "ttft_p95 <= 1 x baseline"),
        ("ttft_p95 < 500ms", "<=", 0.5, False, "ttft_p95 <= 500ms"),
        ("ttft_p95 < 0.5 s", "<=", 0.5, False, "ttft_p95 <= 500ms"),
        ("e2e_max <= 2min", "<=", 120.0, False, "e2e_max <= 120s"),
        ("success_rate >= 99.9 %", ">=", 0.999, False, "success_rate >= 0.999"),
        ("success_rate \N{GREATER-THAN OR EQUAL TO} 0.999", ">=", 0.999, False,
         "success_rate >= 0.999"),
        ("output_throughput > 1000 tok/s", ">=", 1000.0, False, "output_throughput >= 1000"),
        ("goodput >= 3 req/s", ">=", 3.0, False, "goodput >= 3"),
        ("gpu_memory_peak <= 80GiB", "<=", 80 * 1024.0**3, False, "gpu_memory_peak <= 80GiB"),
        ("power_mean <= 0.3kW", "<=", 300.0, False, "power_mean <= 300W"),
        ("preemptions <= 0", "<=", 0.0, False, "preemptions <= 0"),
    ],
)  # fmt: skip
def test_a_limit_is_read_in_base_units(
    written: str, op: str, value: float, relative: bool, canonical: str
) -> None:
    limit = parse_constraint(written)
    assert (op, value, relative, canonical) == (limit.op, limit.value, limit.relative, limit.text)
    assert limit == parse_constraint(limit.text)


@pytest.mark.parametrize(
    ("written", "under", "message"),
    [
        ("tpot_p95 <= 1.1 x basline",
         "                  ^^^^^^^", "expected a number or `baseline`"),
        ("tpot_p95 <= 1.1 baseline",
         "                ^^^^^^^^", "expected `x` before it, as in `1.1 x baseline`"),
        ("tpot_p95 <= 1.1 x",
         "                ^", "expected a number or `baseline`"),
        ("tpto_p95 <= 5ms",
         "^^^^^^^^", "unknown metric; nearest: tpot_p95"),
        ("ttft_p95 500ms",
         "         ^^^^^", "expected <= or >="),
        ("ttft_p95 == 500ms",
         "         ^^", "expected <= or >="),
        ("ttft_p95 <=",
         "         ^^", "expected a number or `baseline` after it"),
        ("ttft_p95",
         "^^^^^^^^", "expected a limit after it, such as `<= 500ms`"),
        ("<= 500ms",
         "^^", "expected a metric in front"),
        ("ttft_p95 < 500",
         "           ^^^", "no unit: write 500ms or 500s"),
        ("ttft_p95 < 3 parsecs",
         "             ^^^^^^^", "unknown unit; ttft_p95 is in ms, s, m, h"),
        ("preemptions <= 3s",
         "                ^", "unknown unit; expected a number alone"),
        ("success_rate >= 99.9",
         "                ^^^^", "a share is at most 1; write 99.9%"),
        ("capacity >= 1.2",
         "^^^^^^^^", "capacity can be optimised, not limited"),
        ("ttft_p95 >= 3s",
         "         ^^", "lower ttft_p95 is better; write <="),
        ("ttft_p95 <= -3s",
         "            ^^^", "expected a number or `baseline`"),
    ],
)  # fmt: skip
def test_the_caret_stands_under_the_word_at_fault_in_a_limit(
    written: str, under: str, message: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_constraint(written)
    assert under == caret(caught.value)
    assert message == str(caught.value)


@pytest.mark.parametrize("written", [None, 5, "", "  ", ["a"], {"ttft_p95": 3}])
def test_what_is_no_text_is_no_expression(written: object) -> None:
    with pytest.raises(ValueError, match="expected an objective"):
        parse_objective(written)
    with pytest.raises(ValueError, match="expected a limit"):
        parse_constraint(written)


@given(
    st.sampled_from(sorted(name for name, metric in METRICS.items() if not metric.searched)),
    st.floats(min_value=0, max_value=1, allow_subnormal=False),
    st.booleans(),
)
def test_every_limit_reads_back_from_its_canonical_text(
    name: str, value: float, relative: bool
) -> None:
    metric = METRICS[name]
    op = "<=" if metric.goal == "lower" else ">="
    unit = {"s": "s", "watts": "W", "joules": "J"}.get(metric.unit, "")
    bound = f"{value:.17f} x baseline" if relative else f"{value:.17f}{unit}"
    limit = parse_constraint(f"{name}{op}{bound}")
    assert limit == parse_constraint(limit.text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_place_inside_it(text: str) -> None:
    for fault in (refusal(parse_objective, text), refusal(parse_constraint, text)):
        if isinstance(fault, ExpressionError):
            assert 0 <= fault.offset < len(text)
            assert fault.length >= 1
        elif fault is not None:
            assert str(fault).startswith("expected")


def refusal(parse: Callable[[object], object], text: str) -> ValueError | None:
    try:
        parse(text)
    except ValueError as error:
        return error
    return None


def test_nearest_names_are_at_most_two_and_only_close_ones() -> None:
    known = ["max-num-seqs", "max-num-batched-tokens", "max-model-len"]
    assert nearest("max_num_seq", known) == ["max-num-seqs"]
    assert nearest("tensor", known) == []
    assert nearest("x", []) == []
