"""The OpenAI wire format: requests in, answers and stream events out (as vLLM writes them)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.simulator.voice import SOUND, Voice

Kind = Literal["completion", "chat"]
DONE = b"data: [DONE]\n\n"
_CHAT_ANSWER_TOKENS = 64
_COMPLETION_ANSWER_TOKENS = 16


class BadRequestError(Exception):
    """A request that is refused: HTTP status, vLLM's error type, text, and the field at fault."""

    def __init__(
        self,
        text: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        field: str | None = None,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.status = status
        self.kind = kind
        self.field = field

    def body(self) -> bytes:
        """The JSON body of the answer."""
        return error_body(self.text, self.kind, self.status, self.field)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A parsed request. `finish_reason` is how the answer will end."""

    kind: Kind
    prompt: Sequence[int]
    output_tokens: int
    finish_reason: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str | None
    logprobs: bool = False
    prompt_logprobs: bool = False


def error_body(text: str, kind: str, code: int, field: str | None = None) -> bytes:
    """The error object, as vLLM sends it."""
    return json.dumps(
        {"error": {"message": text, "type": kind, "param": field, "code": code}}
    ).encode()


def parse_request(
    kind: Kind, body: bytes, *, names: Sequence[str], max_model_len: int, vocab_size: int
) -> Asked:
    """Read and check a request body. Raises BadRequestError with vLLM's status and text.

    Text is split at blanks, one token per word. Without `max_tokens` a chat answer stops by itself
    after 64 tokens; a completion has 16. Stop words and sampling settings have no effect.
    """
    try:
        data = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"Invalid JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRequestError("the request body must be a JSON object")
    model = data.get("model")
    if model is not None and model not in names:
        raise BadRequestError(
            f"The model `{model}` does not exist.", status=404, kind="NotFoundError", field="model"
        )
    for name in ("n", "best_of"):
        if data.get(name) not in (None, 1):
            raise BadRequestError(
                f"the simulated engine gives one answer: {name} must be 1", field=name
            )
    wanted = _log_probabilities(data)
    prompt = _chat_prompt(data) if kind == "chat" else _completion_prompt(data)
    if len(prompt) == 0:
        raise BadRequestError("The prompt cannot be empty", field="prompt")
    if max(prompt) >= vocab_size or min(prompt) < 0:
        raise BadRequestError(f"Token id {max(prompt)} is out of vocabulary", field="prompt")
    asked, reason = _output_tokens(kind, data, len(prompt), max_model_len)
    options = data.get("stream_options") or {}
    return Asked(
        kind=kind,
        prompt=prompt,
        output_tokens=asked,
        finish_reason=reason,
        stream=bool(data.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        cache_salt=data.get("cache_salt"),
        **wanted,
    )


def _log_probabilities(data: Mapping[str, Any]) -> dict[str, bool]:
    """Which log-probabilities are asked for: of the given token only, and not in a stream."""
    if data.get("echo"):
        raise BadRequestError("the simulated engine does not echo the prompt", field="echo")
    wanted = {name: data.get(name) is not None and data[name] is not False
              for name in ("logprobs", "prompt_logprobs")}  # fmt: skip
    for name, asked in wanted.items():
        if asked and data.get("stream"):
            raise BadRequestError(f"the simulated engine gives no {name} in a stream", field=name)
    return wanted


def _output_tokens(
    kind: Kind, data: Mapping[str, Any], prompt: int, max_model_len: int
) -> tuple[int, str]:
    limit = data.get("max_completion_tokens", data.get("max_tokens"))
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BadRequestError(f"max_tokens must be at least 1, got {limit}.", field="max_tokens")
    least = data.get("min_tokens") or 0
    if limit is not None and least > limit:
        raise BadRequestError(
            f"min_tokens must be less than or equal to max_tokens={limit}, got {least}.",
            field="min_tokens",
        )
    if prompt >= max_model_len:
        raise BadRequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {prompt} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt.",
            field="input_tokens",
        )
    room = max_model_len - prompt
    if limit is None:
        own = _CHAT_ANSWER_TOKENS if kind == "chat" else _COMPLETION_ANSWER_TOKENS
        return min(max(own, least), room), "stop" if kind == "chat" else "length"
    if limit > room:
        raise BadRequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {limit} output tokens and your prompt contains {prompt} input tokens, "
            f"for a total of {limit + prompt} tokens. Please reduce the length of the "
            "input prompt or the number of requested output tokens.",
            field="input_tokens",
        )
    return limit, "length"


def _completion_prompt(data: Mapping[str, Any]) -> Sequence[int]:
    prompt = data.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (list, str)):
        if len(prompt) > 1:
            raise BadRequestError(
                "the simulated engine takes one prompt per request", field="prompt"
            )
        prompt = prompt[0]
    if isinstance(prompt, str):
        return text_tokens(prompt)
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return prompt
    raise BadRequestError("prompt must be a string or a list of token ids", field="prompt")


def _chat_prompt(data: Mapping[str, Any]) -> Sequence[int]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a list of at least one message", field="messages")
    words = []
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise BadRequestError("each message needs a role", field="messages")
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content)
        words.append(f"<{message['role']}> {content} <end>")
    return text_tokens(" ".join(words))


def text_tokens(text: str) -> list[int]:
    """One stable token id per word, below 30,000."""
    return [zlib.crc32(word.encode()) % 30_000 for word in text.split()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Writes one answer. `id`, `created` and `model` as sent; `cached` None: not reported."""

    asked: Asked
    id: str
    created: int
    model: str
    voice: Voice = SOUND

    def usage(self, completion: int, cached: int | None) -> dict[str, Any]:
        """The usage object."""
        prompt = len(self.asked.prompt)
        details = None if cached is None else {"cached_tokens": cached}
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": details,
        }

    def whole(self, cached: int | None) -> bytes:
        """The body of an answer that is not streamed."""
        count = self.asked.output_tokens
        words = self.voice.words(self.asked.prompt, 0, count)
        text = "".join(words)
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.asked.finish_reason}
        if self.asked.logprobs:
            choice["logprobs"] = self._answer_logprobs(words)
        if self.asked.prompt_logprobs:
            choice["prompt_logprobs"] = [
                None if value is None else {str(token): {"logprob": value, "rank": 1}}
                for token, value in zip(
                    self.asked.prompt, self.voice.logprobs(self.asked.prompt), strict=True
                )
            ]
        if self.asked.kind == "chat":
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return self._object(self._name(stream=False), [choice], self.usage(count, cached))

    def role_event(self) -> bytes:
        """The first event of a chat stream: a role, no token."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        usage = self.usage(0, None) if self.asked.continuous_usage else None
        return _event(self._object(self._name(stream=True), [choice], usage))

    def token_event(self, first: int, count: int, last: bool) -> bytes:
        """An event with `count` tokens from number `first` (from 0)."""
        text = "".join(self.voice.words(self.asked.prompt, first, count))
        choice: dict[str, Any] = {"index": 0, "finish_reason": None, "logprobs": None}
        if self.asked.kind == "chat":
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
        if last:
            choice["finish_reason"] = self.asked.finish_reason
        usage = self.usage(first + count, None) if self.asked.continuous_usage else None
        return _event(self._object(self._name(stream=True), [choice], usage))

    def usage_event(self, cached: int | None) -> bytes:
        """The last event before `[DONE]`: usage, no choice."""
        usage = self.usage(self.asked.output_tokens, cached)
        return _event(self._object(self._name(stream=True), [], usage))

    def _answer_logprobs(self, words: Sequence[str]) -> dict[str, Any]:
        """Of every token of the answer the same one: it is certain of what it says."""
        if self.asked.kind == "chat":
            entries = [{"token": word, "logprob": -0.1, "top_logprobs": []} for word in words]
            return {"content": entries}
        return {"tokens": list(words), "token_logprobs": [-0.1] * len(words), "top_logprobs": None}

    def _name(self, *, stream: bool) -> str:
        if self.asked.kind == "completion":
            return "text_completion"
        return "chat.completion.chunk" if stream else "chat.completion"

    def _object(
        self, name: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> bytes:
        value: dict[str, Any] = {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            value["usage"] = usage
        return json.dumps(value, separators=(",", ":")).encode()


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"
