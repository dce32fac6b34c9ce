"""Prompts given as text: their length in tokens, their block ids, and nothing else unless asked."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import orjson

from autotune.canonical import Json
from autotune.workload.formats.format import About, ReadOptions
from autotune.workload.formats.rows import Unusable
from autotune.workload.hashing import BYTES_PER_TOKEN, PrefixHasher
from autotune.workload.tokens import EXTRA, Estimate
from autotune.workload.trace import Message

TEXT_BLOCK_SIZE = 16
"""Tokens per block of hashed text: the smallest block of common engines, so no sharing is lost."""
_REMEMBERED = 256


class Prompt(NamedTuple):
    """A prompt as it is kept: length, block ids, and the messages if the user wants them."""

    tokens: int
    blocks: tuple[int, ...]
    messages: tuple[Message, ...]


class Texts:
    """Turns the texts of one file into lengths and ids, and remembers what to tell of it."""

    def __init__(self, options: ReadOptions) -> None:
        self.block_size = options.block_size or TEXT_BLOCK_SIZE
        self.keeps = options.keep_text
        self._encoder = options.encoder or Estimate()
        self._hasher = PrefixHasher(self.block_size)
        self._encode = lru_cache(_REMEMBERED)(self._encoder.encode)
        self._measured = 0

    def prompt(
        self, messages: Sequence[Message], *, stated: int | None = None, tools: Json = None
    ) -> Prompt:
        """The prompt of a request. `stated`: its length by the file, which outranks ours.

        A chat message counts as its role and content on lines of their own, in place of the
        model's chat template; tool definitions count as one message in front. Raises Unusable:
        `empty_prompt`.
        """
        if not any(content.strip() for role, content in messages if role != "system"):
            raise Unusable("empty_prompt")
        data = self.encoded(messages)
        if tools:
            data = self.encoded([("tools", orjson.dumps(tools).decode())]) + data
        return self.of(data, messages, stated=stated)

    def encoded(self, messages: Sequence[Message]) -> bytes:
        """Messages as tokens, one after another, so that a longer conversation extends them."""
        return b"".join(self._encode(message_text(role, text)) for role, text in messages)

    def of(
        self, data: bytes, messages: Sequence[Message] = (), *, stated: int | None = None
    ) -> Prompt:
        """The prompt of encoded text or of token ids."""
        tokens = self.length(data) if stated is None else stated
        ids = self._hasher.ids(data, -(-tokens // self.block_size))
        return Prompt(tokens, ids, tuple(messages) if self.keeps else ())

    def unknown(self, tokens: int) -> bytes:
        """The place of an answer whose text is not recorded: tokens that nothing shares."""
        return secrets.token_bytes(BYTES_PER_TOKEN * tokens)

    def count(self, text: str) -> int:
        """The length of an answer in tokens; 0 for an empty one."""
        return self.length(self._encoder.encode(text)) if text else 0

    def length(self, data: bytes) -> int:
        """Tokens of encoded text."""
        self._measured += 1
        return len(data) // BYTES_PER_TOKEN

    def about(self) -> About:
        """What to tell of the texts read so far."""
        if not self._measured:
            return About()
        if not self._encoder.estimated:
            return About(meta={"lengths": f"tokenizer {self._encoder.name}"})
        note = (
            f"lengths of texts are estimated at {BYTES_PER_TOKEN} bytes per token; name the "
            f"model's tokenizer ({EXTRA}) to count them"
        )
        return About(meta={"lengths": "estimated"}, notes=(note,))


def message_text(role: str, content: str) -> str:
    """A message as it is counted; a plain prompt (no role) is itself."""
    return f"{role}\n{content}\n" if role else content


def messages_of(value: Json) -> tuple[Message, ...]:
    """Chat messages as (role, content); parts that are no text are left out.

    Raises Unusable: `bad_messages`.
    """
    if not isinstance(value, list) or not value:
        raise Unusable("bad_messages")
    return tuple(_message(entry) for entry in value)


def prompt_of(body: Mapping[str, Json]) -> tuple[Message, ...]:
    """The prompt of an OpenAI request body: `messages`, `prompt`, or `input`.

    Raises Unusable: `missing_prompt`, `bad_messages`, `bad_prompt`.
    """
    if body.get("messages") is not None:
        return messages_of(body["messages"])
    for key in ("prompt", "input"):
        value = body.get(key)
        if isinstance(value, str):
            return (("", value),)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return messages_of(value)
        if value is not None:
            raise Unusable("bad_prompt")
    raise Unusable("missing_prompt")


def _message(entry: Json) -> Message:
    if not isinstance(entry, dict) or not isinstance(entry.get("role"), str):
        raise Unusable("bad_messages")
    content = entry.get("content")
    if content is None:  # an assistant's tool call
        calls = entry.get("tool_calls")
        return entry["role"], orjson.dumps(calls).decode() if calls else ""
    if isinstance(content, str):
        return entry["role"], content
    if not isinstance(content, list):
        raise Unusable("bad_messages")
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return entry["role"], "".join(text for text in texts if isinstance(text, str))
