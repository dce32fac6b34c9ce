"""Masking: secrets and prompts never reach a file, a report or a console.

Works on one line of text at a time, from three sources: values that are known to be secret,
values that stand after a secret-looking name (`--api-key X`, `hf_token='X'`,
`Authorization: Bearer X`), and the prompts and token ids that dying engines dump. Names stay,
values become `***`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from urllib.parse import quote

MASK = "***"

_SHORTEST_SECRET = 4
_SHORTEST_SECRET_LINE = 8

# "token" is the unit of this trade: only names in which it is a credential count, so that
# max_num_batched_tokens, tokenizer or eos_token keep their values.
_CREDENTIAL = (
    r"(?:(?:hf|hub|huggingface|huggingfacehub|hugging_face_hub|auth|oauth|access|api|bearer|refresh|"
    r"session|id|github|gitlab|wandb|ms|modelscope|aws_session|security|x_auth|private|secret|user|"
    r"admin|service|registry|ngc|client|bot|deploy|csrf)[-_]?token"
    r"|secret|password|passwd|passphrase|api[-_]?keys?|access[-_]?key|private[-_]?key|secret[-_]?key"
    r"|credentials?|authorization)"
)
_NAME = rf"(?:[A-Za-z0-9]+[-_])*{_CREDENTIAL}(?:[-_](?:id|value|key|read|write))?"
_SECRET_NAME = re.compile(rf"(?:{_NAME}|token)", re.IGNORECASE)

_QUOTED = r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)"""
_BRACKETED = r"[\[(][^\])]*(?:[\])]|$)"
_BARE = r"""[^\s,;'"\])}]+"""
_EMPTY = r"(?!(?:None|null|True|False|true|false|''|\"\"|\[\]|\*\*\*)(?:[\s,;\])}]|$))"

_AUTH_HEADER = re.compile(
    r"""(?i)(authorization['"]?\s*[:=,]\s*(?:b(?=['"]))?['"]?)(?:(?:bearer|basic|token|digest)\s+)?[^'",\s)}\]]+"""
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}")
_NAMED = re.compile(
    rf"(?i)(?<![A-Za-z0-9_-])({_NAME}['\"]?\s*(?:=|:)\s*){_EMPTY}"
    rf"(?:SecretStr\()?(?:{_BRACKETED}|{_QUOTED}|{_BARE})"
)
_TOKEN = re.compile(
    rf"(?i)(?<![A-Za-z0-9_-])(token(?:['\"]\s*[:=]|=)\s*){_EMPTY}(?!-?[\d.]+(?:[\s,;\])}}]|$))"
    rf"(?:{_QUOTED}|{_BARE})"
)
_FLAG = re.compile(
    rf"(?i)((?<![A-Za-z0-9_-])--?{_NAME}|(?<![A-Za-z0-9_-])--token)"
    rf"(=|['\"]\s*,\s*|\s+)({_QUOTED}|[^\s'\"]+)((?:\s+(?=\S*\d)[A-Za-z0-9_.-]{{12,}})*)"
)
_PROSE = frozenset(
    [
        "is",
        "are",
        "was",
        "to",
        "for",
        "or",
        "and",
        "not",
        "must",
        "may",
        "can",
        "cannot",
        "needs",
        "requires",
        "required",
        "with",
        "without",
        "in",
        "has",
        "flag",
        "option",
        "argument",
        "instead",
        "as",
        "if",
        "when",
    ]
)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{12,}|gh[pousr]_[A-Za-z0-9]{20,}|"
    r"github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|nvapi-[A-Za-z0-9_-]{16,}|"
    r"AKIA[A-Z0-9]{16}|xox[abpr]-[A-Za-z0-9-]{10,}|"
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)"
)
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]*:)[^\s/@]+(@)")

_TOKEN_IDS = re.compile(
    r"""(?i)(\b\w*(?:token_ids|input_ids|output_ids|prompt_tokens_ids|prompt_embeds)['"]?\s*[:=]\s*)"""
    r"""((?:tensor|array|deque)?\(?\[)"""
)
_TEXT = re.compile(
    r"""(?i)(?<![A-Za-z0-9_])((?:\w*_)?(?:prompts?|text|messages|content|completion)['"]?\s*[:=]\s*)"""
    rf"""(?:({_QUOTED})|(\[))"""
)
_HINTS = re.compile(
    r"(?i)token|secret|passw|passphrase|key|credential|authori|bearer|prompt|_ids|text|messages|"
    r"content|completion|hf_|sk-|gh[pousr]_|github_pat|glpat|nvapi|akia|xox|eyj|://"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable, flag or field of this name holds a credential (`HF_TOKEN`, `api-key`)."""
    return _SECRET_NAME.fullmatch(name.lstrip("-")) is not None


def mask(line: str, secrets: Collection[str] = ()) -> str:
    """The line with secrets, prompt texts and token-id lists replaced by `***`.

    `secrets` are known values; each is also found in its JSON, repr and URL spelling. Values that
    are shorter than four characters are taken for no secret. Numbers that belong to diagnosis
    (`max_num_batched_tokens=2048`) stay. An unclosed quote or bracket is masked to the line's end.
    """
    for value in _spellings(secrets):
        if value in line:
            line = line.replace(value, MASK)
    if not _HINTS.search(line):
        return line
    line = _mask_token_ids(line)
    line = _mask_texts(line)
    line = _AUTH_HEADER.sub(rf"\1{MASK}", line)
    line = _FLAG.sub(_masked_flag, line)
    line = _NAMED.sub(_masked_value, line)
    line = _TOKEN.sub(_masked_value, line)
    line = _BEARER.sub(rf"\1{MASK}", line)
    line = _SHAPES.sub(MASK, line)
    return _URL_PASSWORD.sub(rf"\1{MASK}\2", line)


def _spellings(secrets: Collection[str]) -> list[str]:
    """All forms in which the values may stand in a line, longest first."""
    forms: set[str] = set()
    for secret in secrets:
        value = secret.strip()
        if len(value) < _SHORTEST_SECRET:
            continue
        forms |= {value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe="")}
        parts = value.splitlines()
        if len(parts) > 1:
            forms |= {part for part in parts if len(part) >= _SHORTEST_SECRET_LINE}
    return sorted(forms, key=len, reverse=True)


def _masked_flag(match: re.Match[str]) -> str:
    flag, separator, value, more = match.groups()
    if separator.isspace() and (value.startswith("-") or value.rstrip(".,:;").lower() in _PROSE):
        return match.group(0)
    quote_mark = value[0] if value[0] in "'\"" else ""
    if separator.strip().endswith(",") and not quote_mark:
        return match.group(0)
    rest = re.sub(r"\S+", MASK, more or "")
    return f"{flag}{separator}{quote_mark}{MASK}{quote_mark}{rest}"


def _masked_value(match: re.Match[str]) -> str:
    name = match.group(1)
    value = match.group(0)[len(name) :]
    mark = value[0] if value[0] in "'\"" else ""
    return f"{name}{mark}{MASK}{mark}"


def _mask_token_ids(line: str) -> str:
    return _mask_brackets(line, _TOKEN_IDS, lambda match: match.start(2))


def _mask_texts(line: str) -> str:
    def quoted(match: re.Match[str]) -> str:
        if match.group(3) is not None:
            return match.group(0)
        mark = match.group(2)[0]
        return f"{match.group(1)}{mark}{MASK}{mark}"

    line = _TEXT.sub(quoted, line)
    return _mask_brackets(line, _TEXT, lambda match: match.start(3))


def _mask_brackets(
    line: str, pattern: re.Pattern[str], opening: Callable[[re.Match[str]], int]
) -> str:
    """Replace the balanced bracket that starts where `opening` says (below 0: none) by `***`."""
    done: list[str] = []
    position = 0
    for match in pattern.finditer(line):
        start = opening(match)
        if start < position:
            continue
        done += [line[position:start], MASK]
        position = _bracket_end(line, start)
    return "".join([*done, line[position:]])


def _bracket_end(line: str, start: int) -> int:
    """Where a bracketed value ends: behind its closing bracket, else at the line's end."""
    depth = 0
    mark = ""
    position = start
    while position < len(line):
        char = line[position]
        if mark:
            if char == "\\":
                position += 1
            elif char == mark:
                mark = ""
        elif char in "'\"":
            mark = char
        elif char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return len(line)
