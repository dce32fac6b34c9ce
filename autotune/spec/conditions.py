"""The language of `when` and `rules`: read by an allow-list, evaluated in three values, never run.

    max-num-batched-tokens >= max-num-seqs
    enable-chunked-prefill or max-num-batched-tokens >= max-model-len
    kv-cache-dtype in [auto, fp8] and gpu.compute_capability >= 8.9

Comparisons, and/or/not, + - * / // %, parentheses, numbers, texts in quotes, true/false/on/off, and
names. A dash between letters or digits belongs to the name: write `a - b` to subtract. Lists hold
values only, so words in them are texts. What depends on an unknown name is unknown (None).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from autotune.canonical import Json
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
    truth,
)

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<version>\d+\.\d+(?:\.\d+)+)
    | (?P<number>\d+(?:\.\d+)?|\.\d+)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*)
    | (?P<text>"[^"\n]*"|'[^'\n]*')
    | (?P<sign><=|>=|==|!=|//|[-<>+*/%()\[\],])
    )""",
    re.VERBOSE,
)
_CONSTANTS = {"true": True, "on": True, "false": False, "off": False}
_COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")
_DEEPEST = 30


@dataclass(frozen=True)
class Condition:
    """A condition as written (`text`) and its tree."""

    text: str
    tree: Term

    def evaluate(self, values: Mapping[str, Json]) -> bool | None:
        """True, False, or None where it cannot be decided: a name is unknown (absent or None) and
        matters, kinds do not compare, or a division by zero.
        """
        return truth(self.tree.value(values))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names it depends on."""
        return frozenset(name.name for name in self.occurrences())

    def occurrences(self) -> Iterator[Name]:
        """Each name with its offset in `text`."""
        return self.tree.names()

    def __str__(self) -> str:
        return self.text


def parse_condition(text: object) -> Condition:
    """Read a condition. Raises ExpressionError (a ValueError) at the word at fault."""
    if isinstance(text, bool):
        return Condition(text=str(text).lower(), tree=Literal(value_=text))
    if not isinstance(text, str) or not text.strip():
        raise ValueError("expected a condition such as `max-num-batched-tokens >= max-num-seqs`")
    parser = _Parser(text)
    tree = parser.either(0)
    if parser.kind:
        parser.fail("expected an operator such as `>=` or `and`")
    if isinstance(tree, Arithmetic | Negation) or (
        isinstance(tree, Literal) and not isinstance(tree.value_, bool)
    ):
        raise ExpressionError("a value, not a yes or no: compare it with something", 0, len(text))
    return Condition(text=" ".join(text.split()), tree=tree)


class _Parser:
    """Recursive descent over the tokens of one condition. `kind` is empty at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = 0
        self.kind = self.word = ""
        self.start = 0
        self._advance()

    def fail(self, message: str) -> NoReturn:
        length = len(self.word) if self.kind else 1
        raise ExpressionError(message, min(self.start, max(0, len(self._text) - 1)), length)

    def either(self, depth: int) -> Term:
        if depth > _DEEPEST:
            self.fail("nested too deeply")
        terms = [self._both(depth)]
        while self._take_word("or"):
            terms.append(self._both(depth))
        return terms[0] if len(terms) == 1 else Or(terms=tuple(terms))

    def _both(self, depth: int) -> Term:
        terms = [self._inverse(depth)]
        while self._take_word("and"):
            terms.append(self._inverse(depth))
        return terms[0] if len(terms) == 1 else And(terms=tuple(terms))

    def _inverse(self, depth: int) -> Term:
        negate = False
        while self._take_word("not"):
            negate = not negate
        term = self._comparison(depth)
        return Not(term=term) if negate else term

    def _comparison(self, depth: int) -> Term:
        left = self._sum(depth)
        if self.word in _COMPARISONS and self.kind == "sign":
            op = self._take()
            term: Term = Comparison(op=op, left=left, right=self._sum(depth))
        elif self._take_word("in"):
            term = Membership(term=left, values=self._list(), inside=True)
        elif self._take_word("not"):
            if not self._take_word("in"):
                self.fail("expected `in`")
            term = Membership(term=left, values=self._list(), inside=False)
        else:
            return left
        if self.word in _COMPARISONS and self.kind == "sign":
            self.fail("one comparison at a time; join two with `and`")
        return term

    def _sum(self, depth: int) -> Term:
        left = self._product(depth)
        while self.kind == "sign" and self.word in ("+", "-"):
            left = Arithmetic(op=self._take(), left=left, right=self._product(depth))
        return left

    def _product(self, depth: int) -> Term:
        left = self._operand(depth)
        while self.kind == "sign" and self.word in ("*", "/", "//", "%"):
            left = Arithmetic(op=self._take(), left=left, right=self._operand(depth))
        return left

    def _operand(self, depth: int) -> Term:
        if self.kind == "sign" and self.word == "-":
            if depth > _DEEPEST:
                self.fail("nested too deeply")
            self._take()
            return Negation(term=self._operand(depth + 1))
        if self.kind == "sign" and self.word == "(":
            self._take()
            inner = self.either(depth + 1)
            self._expect(")")
            return inner
        if self.kind == "name" and self.word not in _CONSTANTS:
            if self.word in ("and", "or", "not", "in"):
                self.fail("expected a value before it")
            return Name(offset=self.start, name=self._take())
        return self._literal()

    def _literal(self) -> Literal:
        kind, word = self.kind, self.word
        if kind == "name":
            value: Json = _CONSTANTS.get(word, word)
        elif kind == "text":
            value = word[1:-1]
        elif kind == "version":
            value = word
        elif kind == "number":
            value = float(word) if "." in word else int(word)
        else:
            self.fail("expected a name or a value" if kind else "ends too early")
        self._take()
        return Literal(value_=value, written=word)

    def _list(self) -> tuple[Literal, ...]:
        self._expect("[")
        values = [self._literal()]
        while self.word == "," and self.kind == "sign":
            self._take()
            values.append(self._literal())
        self._expect("]")
        return tuple(values)

    def _expect(self, sign: str) -> None:
        if self.word != sign or self.kind != "sign":
            self.fail(f"expected `{sign}`")
        self._take()

    def _take_word(self, word: str) -> bool:
        if self.kind != "name" or self.word != word:
            return False
        self._advance()
        return True

    def _take(self) -> str:
        word = self.word
        self._advance()
        return word

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._next)
        if match is None:
            rest = self._text[self._next :]
            self.start = self._next + len(rest) - len(rest.lstrip())
            self.kind, self.word = "", ""
            if rest.strip():
                self.kind, self.word = "odd", rest.lstrip()[0]
                self.fail("a character that has no meaning here")
            return
        self.kind = str(match.lastgroup)
        self.word, self.start, self._next = match[self.kind], match.start(self.kind), match.end()
