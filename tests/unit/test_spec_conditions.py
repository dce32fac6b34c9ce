from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.spec.conditions import parse_condition
from autotune.spec.expressions import ExpressionError
from autotune.spec.terms import (
    And,
    Arithmetic,
    Comparison,
    Literal,
    Membership,
    Name,
    Negation,
    Not,
    Or,
    Term,
)

VALUES = {
    "max-num-batched-tokens": 2048,
    "max-num-seqs": 256,
    "enable-chunked-prefill": False,
    "kv-cache-dtype": "fp8",
    "gpu.compute_capability": 8.9,
    "engine.version": "0.26.1",
    "fixed-switch": "off",
    "nothing": None,
}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("max-num-batched-tokens >= max-num-seqs", True),
        ("max-num-batched-tokens < max-num-seqs", False),
        ("max-num-batched-tokens - max-num-seqs == 1792", True),
        ("2 * max-num-seqs + 1 <= 513 and max-num-seqs // 100 == 2", True),
        ("max-num-seqs % 7 / 2 == 2", True),
        ("-max-num-seqs < 0", True),
        ("enable-chunked-prefill", False),
        ("not enable-chunked-prefill", True),
        ("enable-chunked-prefill == off", True),
        ("fixed-switch == off and not fixed-switch", True),
        ("kv-cache-dtype == 'fp8'", True),
        ('kv-cache-dtype in [auto, "fp8"]', True),
        ("kv-cache-dtype not in [auto]", True),
        ("max-num-seqs in [128, 256]", True),
        ("gpu.compute_capability >= 8.9", True),
        ("engine.version >= 0.3", True),
        ("engine.version >= 0.30", False),
        ("engine.version >= 0.26.0", True),
        ('engine.version < "0.26.1"', False),
        ("true or nothing", True),
        ("nothing or false", None),
        ("nothing and false", False),
        ("unknown > 3", None),
        ("not unknown", None),
        ("unknown in [1]", None),
        ("unknown + 1 > 0 or max-num-seqs == 256", True),
        ("max-num-seqs / 0 > 1", None),
        ("max-num-seqs > 'many'", None),
        ("max-num-seqs and true", None),
        ("kv-cache-dtype + 1 > 1", None),
        ("(true or false) and not (false or false)", True),
        ("not not true", True),
        ("max-num-seqs != 3", True),
        ("enable-chunked-prefill == 0", False),
    ],
)
def test_a_condition_is_true_false_or_undecided(text: str, result: bool | None) -> None:
    assert result is parse_condition(text).evaluate(VALUES)


@pytest.mark.parametrize(
    ("text", "under", "message"),
    [
        ("1 < a < 3", "      ^", "one comparison at a time; join two with `and`"),
        ("a >", "  ^", "ends too early"),
        ("a b", "  ^", "expected an operator such as `>=` or `and`"),
        ("a $ b", "  ^", "a character that has no meaning here"),
        ("a == 'b", "     ^", "a character that has no meaning here"),
        ("(a or b", "      ^", "expected `)`"),
        ("a in (1, 2)", "     ^", "expected `[`"),
        ("a in [1, 2", "         ^", "expected `]`"),
        ("a in [b > 3]", "        ^", "expected `]`"),
        ("a not b", "      ^", "expected `in`"),
        ("and b", "^^^", "expected a value before it"),
        ("42", "^^", "a value, not a yes or no: compare it with something"),
        ("a + 1", "^^^^^", "a value, not a yes or no: compare it with something"),
        ("__import__('os')", "          ^", "expected an operator such as `>=` or `and`"),
        ("a = 3", "  ^", "a character that has no meaning here"),
        ("a if b else c", "  ^^", "expected an operator such as `>=` or `and`"),
        ("[1][0] == 1", "^", "expected a name or a value"),
    ],
)
def test_the_caret_stands_under_the_word_at_fault(text: str, under: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_condition(text)
    assert under == " " * caught.value.offset + "^" * caught.value.length
    assert message == str(caught.value)


def test_nesting_is_bounded() -> None:
    for text in ("(" * 500 + "a" + ")" * 500, "- " * 500 + "1 > 0"):
        with pytest.raises(ExpressionError, match="nested too deeply"):
            parse_condition(text)
    assert parse_condition("not " * 501 + "a").evaluate({"a": False}) is True


def test_names_and_text_are_kept() -> None:
    condition = parse_condition("  a-b  >= gpu.count\nor c in [d] ")
    assert {"a-b", "gpu.count", "c"} == condition.names
    assert str(condition) == "a-b >= gpu.count or c in [d]"


@pytest.mark.parametrize("text", [None, 5, "", "  ", ["a"]])
def test_what_is_no_text_is_no_condition(text: object) -> None:
    with pytest.raises(ValueError, match="expected a condition"):
        parse_condition(text)
    assert parse_condition(True).evaluate({}) is True


names = st.from_regex(r"[a-z]{1,3}(-[a-z0-9]{1,3})?(\.[a-z]{1,2})?", fullmatch=True).filter(
    lambda name: name not in {"and", "or", "not", "in", "on", "off", "true", "false"}
)
literals = st.one_of(
    st.integers(0, 10**6),
    st.floats(0, 1e6, allow_subnormal=False),
    st.booleans(),
    st.text(alphabet="abc d.5", max_size=5),
).map(lambda value: Literal(value_=value))
leaves: st.SearchStrategy[Term] = st.one_of(names.map(lambda name: Name(name=name)), literals)


def grown(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    pairs = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        pairs.map(lambda terms: Or(terms=terms)),
        pairs.map(lambda terms: And(terms=terms)),
        inner.map(lambda term: Not(term=term)),
        inner.map(lambda term: Negation(term=term)),
        st.builds(Comparison, op=st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), left=inner,
                  right=inner),
        st.builds(Arithmetic, op=st.sampled_from(["+", "-", "*", "/", "//", "%"]), left=inner,
                  right=inner),
        st.builds(Membership, term=inner, values=st.lists(literals, min_size=1).map(tuple),
                  inside=st.booleans()),
    )  # fmt: skip


trees = st.recursive(leaves, grown, max_leaves=8)


@given(trees, st.dictionaries(names, st.one_of(st.booleans(), st.integers(-5, 5), st.none())))
def test_a_tree_reads_back_from_its_text_with_the_same_meaning(
    tree: Term, values: dict[str, object]
) -> None:
    condition = parse_condition(f"{Not(term=tree)}")
    assert str(Not(term=tree)) == str(condition.tree)
    for assignment in (values, {name.name: 1 for name in tree.names()}, {}):
        assert Not(term=tree).value(assignment) == condition.tree.value(assignment)


@given(st.text(alphabet="ab-. ()[]<>=!'\"+*/%0159,ornti", min_size=1, max_size=40))
def test_any_text_is_a_condition_or_refused_with_a_place_inside_it(text: str) -> None:
    fault = refusal(text)
    if isinstance(fault, ExpressionError):
        assert 0 <= fault.offset < len(text)
        assert 1 <= fault.length <= len(text)
    elif fault is not None:
        assert text.isspace()


def refusal(text: str) -> ValueError | None:
    try:
        parse_condition(text).evaluate({"a": 1})
    except ValueError as error:
        return error
    return None
