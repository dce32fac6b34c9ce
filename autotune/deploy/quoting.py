"""Words and strings as bash, YAML and systemd read them back unchanged."""

from __future__ import annotations

import re

from autotune.errors import InputError

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMED_ESCAPES = {"\n": "n", "\t": "t", "\r": "r"}


def bash_word(word: str) -> str:
    """One word of bash on one line: bare, in single quotes, or in $'...' if it has control
    characters.
    """
    if _PLAIN.fullmatch(word):
        return word
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in word):
        return "$'" + "".join(_ansi_c(c) for c in word) + "'"
    return "'" + word.replace("'", "'\\''") + "'"


def yaml_string(text: str) -> str:
    """A double-quoted YAML scalar on one line."""
    return '"' + "".join(_yaml_char(c) for c in text) + '"'


def systemd_word(word: str, *, command: bool = True) -> str:
    """One word of a unit file: `%` doubled, and in a `command` line also `$`."""
    text = word.replace("\\", "\\\\").replace("%", "%%")
    if command:
        text = text.replace("$", "$$")
    if re.fullmatch(r"[A-Za-z0-9_@+=:,./$%-]+", text):
        return text
    text = text.replace('"', '\\"')
    for char, name in _NAMED_ESCAPES.items():
        text = text.replace(char, f"\\{name}")
    return '"' + "".join(c if ord(c) >= 0x20 else f"\\x{ord(c):02x}" for c in text) + '"'


def shell_name(name: str) -> str:
    """A variable name that a shell can export. Raises InputError for any other."""
    if _NAME.fullmatch(name):
        return name
    raise InputError(
        message=f"a script cannot set the environment variable `{name}`",
        seen="names have letters, digits and underscores, and no digit in front",
    )


def kubernetes_name(text: str) -> str:
    """A DNS label made from a free text; at most 50 characters."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-")
    return label or "study"


def _ansi_c(char: str) -> str:
    if char in _NAMED_ESCAPES:
        return f"\\{_NAMED_ESCAPES[char]}"
    if char in "\\'":
        return f"\\{char}"
    return f"\\x{ord(char):02x}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def _yaml_char(char: str) -> str:
    if char in _NAMED_ESCAPES:
        return f"\\{_NAMED_ESCAPES[char]}"
    if char in '\\"':
        return f"\\{char}"
    if char == " " or char.isprintable():
        return char
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
