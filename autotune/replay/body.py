"""The JSON bodies of a replay, made before it starts."""

from __future__ import annotations

import hashlib
import re

import orjson

from autotune.canonical import Json
from autotune.errors import InputError
from autotune.replay.options import CHAT, COMPLETIONS, ReplayOptions
from autotune.replay.records import PlannedRequest

_SALT_OK = re.compile(r"[^@/\\\x00]{1,128}")


def request_body(planned: PlannedRequest, *, model: str, options: ReplayOptions) -> bytes:
    """The body of one request: greedy, streamed, with usage, of exactly the planned output length.

    Raises InputError for a route that cannot carry the request.
    """
    body: dict[str, Json] = {"model": model}
    if options.route.endswith(CHAT):
        if not planned.chat:
            raise InputError(
                message=f"the route {options.route} needs prompts as text",
                seen=f"request {planned.index} has token ids only",
                hint=f"replay it through {COMPLETIONS}",
            )
        body["messages"] = [{"role": role, "content": text} for role, text in planned.chat]
    else:
        body["prompt"] = planned.text if planned.text is not None else list(planned.prompt)
    body["max_tokens"] = planned.output_tokens
    if options.fixed_length:
        body["min_tokens"] = planned.output_tokens
        body["ignore_eos"] = True
    body["temperature"] = 0
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    if options.continuous_usage:
        body["stream_options"]["continuous_usage_stats"] = True
    if options.cache_salt is not None:
        body["cache_salt"] = safe_salt(options.cache_salt)
    if options.send_priority and planned.priority is not None:
        body["priority"] = planned.priority
    body.update(options.extra_body)
    return orjson.dumps(body)


def safe_salt(salt: str) -> str:
    """`salt` if engines accept it (1 to 128 characters, none of @ / backslash NUL), else its
    SHA-256 in hex, which is as distinct.
    """
    return salt if _SALT_OK.fullmatch(salt) else hashlib.sha256(salt.encode()).hexdigest()
