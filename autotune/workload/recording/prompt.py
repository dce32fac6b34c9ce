"""What a request asks, reduced to bytes that can be compared and forgotten."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from autotune.canonical import Json

BYTES_PER_TOKEN = 4
"""Of text whose tokens nobody counted."""


class UnrecordableError(Exception):
    """A request that a workload cannot express; its text is a snake_case reason."""

    @property
    def reason(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as bytes: a prompt that begins with another one's text has bytes that begin with the
    other one's. `scope` tells what can share a cache at all (route, model, salt); `tokens` the
    exact length where it was sent as token ids; `chat` whether it is a conversation.
    """

    content: bytes
    scope: bytes
    chat: bool = False
    tokens: int | None = None

    @property
    def likely_tokens(self) -> int:
        """The length, estimated for text."""
        if self.tokens is not None:
            return self.tokens
        return max(1, -(-len(self.content) // BYTES_PER_TOKEN))


def prompt_of(body: Mapping[str, Json], *, chat: bool) -> Prompt:
    """The prompt of a completion or chat request. Raises UnrecordableError."""
    scope = orjson.dumps([chat, str(body.get("model")), str(body.get("cache_salt"))])
    if chat:
        return Prompt(content=_conversation(body), scope=scope, chat=True)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return Prompt(content=prompt.encode("utf-8", "surrogatepass"), scope=scope)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        try:
            packed = struct.pack(f"<{len(prompt)}I", *prompt)
        except struct.error:
            raise UnrecordableError("bad_prompt") from None
        return Prompt(content=packed, scope=scope, tokens=len(prompt))
    raise UnrecordableError(
        "several_prompts" if isinstance(prompt, list) and prompt else "bad_prompt"
    )


def _conversation(body: Mapping[str, Json]) -> bytes:
    """Tools first, as templates place them, then one piece per message, so that a conversation
    that goes on begins with its earlier self.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise UnrecordableError("bad_prompt")
    tools = body.get("tools")
    pieces = [orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)] if tools else []
    pieces += [orjson.dumps(message, option=orjson.OPT_SORT_KEYS) for message in messages]
    return b"\n".join([*pieces, b""])
