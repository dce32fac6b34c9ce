"""Shell text as words: what a launch script's commands are, without running any of it.

Knows quotes, escapes, line continuations, comments, separators, redirections, arrays
(`cmd=( ... )`) and variables that the same text sets or gives a default. Anything else that only a
shell could work out stays as written and is listed in `ShellText.unresolved`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from autotune.errors import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-=?+])([^}]*))?\}|\{[^}]*\})")
_SEPARATORS = ";\n&|"
# The arguments of the script itself, of which there are none here.
_OWN_ARGUMENTS = ('"$@"', '"$*"')


def assignment(word: str) -> tuple[str, str] | None:
    """("X", "y") for the word `X=y`; None for any other."""
    match = _ASSIGNMENT.fullmatch(word)
    return (match[1], match[2]) if match else None


@dataclass(slots=True, kw_only=True)
class ShellText:
    """The commands of a text, each a list of words; arrays count as commands. `exports` are the
    variables that the text exports.
    """

    commands: list[list[str]] = field(default_factory=list)
    exports: dict[str, str] = field(default_factory=dict)
    unresolved: set[str] = field(default_factory=set)


def read_shell(text: str) -> ShellText:
    """Take a script or a pasted command apart. Raises InputError for an open quote or bracket."""
    reader = _Reader(text.replace("\r\n", "\n"))
    reader.read()
    return reader.result


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._word: list[str] | None = None
        self._words: list[str] = []
        self._variables: dict[str, str] = {}
        self._in_array = False
        self.result = ShellText()

    def read(self) -> None:
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if char == "\\":
                self._escape()
            elif char in "'\"":
                self._quoted(char)
            elif char == "#" and self._word is None:
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif char in "()":
                self._bracket(char)
            elif char in "<>":
                self._redirection()
            elif char in _SEPARATORS:
                self._separator(char)
            elif char.isspace():
                self._end_word()
                self._at += 1
            elif char == "$":
                self._variable()
            else:
                self._add(char)
                self._at += 1
        if self._in_array:
            raise InputError(message="the launch command ends inside an open bracket")
        self._end_command()

    def _add(self, text: str) -> None:
        if self._word is None:
            self._word = []
        self._word.append(text)

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append("".join(self._word))
        self._word = None

    def _end_command(self) -> None:
        self._end_word()
        words, self._words = self._words, []
        if not words:
            return
        exported = words[0] in ("export", "declare", "local", "readonly")
        pairs = [assignment(word) for word in (words[1:] if exported else words)]
        known = {pair[0]: pair[1] for pair in pairs if pair is not None}
        if exported or len(known) == len(words):
            self._variables |= known
            if words[0] == "export":
                self.result.exports |= known
            return
        self.result.commands.append(words)

    def _escape(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following != "\n":
            self._add(following)
        self._at += 2

    def _quoted(self, mark: str) -> None:
        text = self._text
        if text.startswith(_OWN_ARGUMENTS, self._at):
            self._at += 4
            return
        self._add("")
        self._at += 1
        while self._at < len(text):
            char = text[self._at]
            if char == mark:
                self._at += 1
                return
            if mark == '"' and char == "$":
                self._variable()
                continue
            if (
                mark == '"'
                and char == "\\"
                and text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n")
            ):
                following = text[self._at + 1]
                self._add("" if following == "\n" else following)
                self._at += 2
                continue
            self._add(char)
            self._at += 1
        raise InputError(message=f"the launch command ends inside an open quote: {mark}")

    def _bracket(self, char: str) -> None:
        self._at += 1
        if char == "(" and self._word is not None and "".join(self._word).endswith("="):
            self._word = None
            self._end_command()
            self._in_array = True
        elif char == ")" and self._in_array:
            self._in_array = False
            self._end_command()
        else:
            self._end_command()

    def _separator(self, char: str) -> None:
        self._at += 1
        if self._in_array:
            self._end_word()
            return
        if char == "&" and self._text[self._at : self._at + 1] == ">":
            self._end_word()
            return
        self._end_command()

    def _redirection(self) -> None:
        if self._word is not None and "".join(self._word).isdigit():
            self._word = None
        self._end_word()
        match = re.compile(r"[<>]+[&|]?[ \t]*(?:'[^']*'|\"[^\"]*\"|[^\s;|&]*)").match(
            self._text, self._at
        )
        self._at = match.end() if match else self._at + 1

    def _variable(self) -> None:
        if self._text.startswith("$(", self._at):
            self._substitution()
            return
        match = _VARIABLE.match(self._text, self._at)
        if match is None:
            own_arguments = self._text[self._at + 1 : self._at + 2] in ("@", "*")
            if not own_arguments:
                self._add("$")
            self._at += 2 if own_arguments else 1
            return
        self._at = match.end()
        name = match[1] or match[2] or ""
        default = match[4] if match[3] in ("-", ":-", "=", ":=") else None
        value = self._variables.get(name, default)
        if value is None:
            self.result.unresolved.add(match[0])
            value = match[0]
        self._add(value.strip("'\"") if value == default else value)

    def _substitution(self) -> None:
        depth, start = 0, self._at
        while self._at < len(self._text):
            char = self._text[self._at]
            depth += (char == "(") - (char == ")")
            self._at += 1
            if char == ")" and depth == 0:
                break
        written = self._text[start : self._at]
        self.result.unresolved.add(written)
        self._add(written)
