"""ShareGPT json: conversations as text; each answered question becomes one turn of a session.

A list (or jsonl) of objects with `conversations` (SGLang: also `conversation`) of {`from` or
`role`, `value` or `content`}. There are no times: turns follow each other's answers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from autotune.canonical import Json
from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.rows import Unusable, json_rows, objects_of
from autotune.workload.formats.text import Texts
from autotune.workload.trace import Message, Request, Skipped

KEYS = ("conversations", "conversation")
ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "system": "system",
}  # fmt: skip
_START = b"["


class ShareGptFormat:
    """Recorded chats with their text."""

    name = "sharegpt"
    title = "ShareGPT conversations (json or jsonl, text, no times)"

    def sniff(self, head: Sequence[bytes]) -> float:
        if any(key in row for row in objects_of(head, arrays=True) for key in KEYS):
            return 1.0
        # The first conversation may be longer than the lines looked at
        text = b"".join(head)
        named = any(b'"%s"' % key.encode() in text for key in KEYS)
        return 0.5 if named and text.lstrip().startswith(_START) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        texts = Texts(options)
        yield About(block_size=texts.block_size, untimed=True, meta={"source": self.name})
        sessions = cut = 0
        for row in json_rows(lines, arrays=True):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                messages = _messages(row.data)
                turns = _turns(messages, row.line, f"s{sessions}", texts)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
                continue
            sessions += len(turns) > 1
            cut += messages[-1][0] != "assistant"
            yield from turns
        yield texts.about()
        if cut:
            yield About(notes=(f"{cut} conversations end in an unanswered question: left out",))


def _messages(data: Mapping[str, Json]) -> list[Message]:
    """The conversation from its first question (or the system prompt before it) on.

    Raises Unusable: `no_turns`, `bad_conversation`.
    """
    turns = next((data[key] for key in KEYS if data.get(key) is not None), None)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Unusable("missing_conversations" if turns is None else "bad_conversations")
    if not turns:
        raise Unusable("no_turns")
    found: list[Message] = []
    for index, turn in enumerate(turns):
        who = turn.get("from", turn.get("role", "gpt" if index % 2 else "human"))
        text = turn.get("value", turn.get("content"))
        role = ROLES.get(who.lower()) if isinstance(who, str) else None
        if role is None or not isinstance(text, str):
            raise Unusable("bad_conversations")
        if role != "assistant" or any(known == "user" for known, _ in found):
            found.append((role, text))
    if not any(role == "user" for role, _ in found):
        raise Unusable("no_question")
    return found


def _turns(messages: Sequence[Message], line: int, session: str, texts: Texts) -> list[Request]:
    """One request per answered question. Raises Unusable: `no_answer`, `empty_prompt`."""
    found: list[Request] = []
    data = b""
    for index, (role, text) in enumerate(messages):
        if role == "assistant":
            asked = messages[index - 1][1]
            output_tokens = texts.count(text)
            if not asked.strip() or not output_tokens:
                if found:
                    break
                raise Unusable("no_answer" if asked.strip() else "empty_prompt")
            prompt = texts.of(data, messages[:index])
            found.append(
                Request(
                    at_s=0.0,
                    input_tokens=prompt.tokens,
                    output_tokens=output_tokens,
                    blocks=prompt.blocks,
                    session=session,
                    turn=len(found),
                    gap_s=0.0 if found else None,
                    line=line,
                    messages=prompt.messages,
                )
            )
        data += texts.encoded([(role, text)])
    if not found:
        raise Unusable("no_answer")
    return [replace(found[0], session=None)] if len(found) == 1 else found


FORMAT = ShareGptFormat()
