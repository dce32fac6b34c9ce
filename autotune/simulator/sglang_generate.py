"""SGLang's native `/generate` over the simulated engine: one prompt, one whole answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autotune.simulator.voice import Voice
from autotune.simulator.wire import Asked, BadRequestError, text_tokens

_ANSWER_TOKENS = 128


def read_native(body: bytes, *, max_model_len: int, vocab_size: int) -> Asked:
    """Read and check a request body: `text` or `input_ids`, `sampling_params.max_new_tokens`,
    `return_logprob` with `logprob_start_len`. Raises BadRequestError.
    """
    try:
        data = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"Invalid JSON: {error}") from error
    if not isinstance(data, dict) or data.get("stream"):
        raise BadRequestError("the simulated engine takes a JSON object here, without a stream")
    prompt = data.get("input_ids")
    if isinstance(data.get("text"), str):
        prompt = text_tokens(data["text"])
    if not isinstance(prompt, list) or not prompt or not all(isinstance(t, int) for t in prompt):
        raise BadRequestError("Either text or input_ids of one prompt should be provided.")
    if max(prompt) >= vocab_size or min(prompt) < 0:
        raise BadRequestError(f"token id {max(prompt)} is out of vocabulary")
    sampling = data.get("sampling_params") or {}
    wanted = sampling.get("max_new_tokens", _ANSWER_TOKENS)
    if not isinstance(wanted, int) or wanted < 1 or len(prompt) + wanted > max_model_len:
        raise BadRequestError(
            f"The input ({len(prompt)} tokens) and max_new_tokens ({wanted}) do not fit the "
            f"context length of {max_model_len} tokens."
        )
    return Asked(
        kind="completion",
        prompt=prompt,
        output_tokens=wanted,
        finish_reason="length",
        stream=False,
        include_usage=False,
        continuous_usage=False,
        cache_salt=None,
        prompt_logprobs=bool(data.get("return_logprob")) and data.get("logprob_start_len") == 0,
    )


def native_answer(asked: Asked, voice: Voice, number: str, cached: int | None) -> bytes:
    """The body of the answer; log-probabilities as [value, token id, text]."""
    words = voice.words(asked.prompt, 0, asked.output_tokens)
    about: dict[str, Any] = {
        "id": number,
        "finish_reason": {"type": "length", "length": asked.output_tokens},
        "prompt_tokens": len(asked.prompt),
        "completion_tokens": asked.output_tokens,
        "cached_tokens": cached or 0,
    }
    if asked.prompt_logprobs:
        values = zip(voice.logprobs(asked.prompt), asked.prompt, strict=True)
        about["input_token_logprobs"] = [[value, token, None] for value, token in values]
        about["output_token_logprobs"] = [[-0.1, 0, None] for _ in words]
    answer: Mapping[str, Any] = {"text": "".join(words), "meta_info": about}
    return json.dumps(answer, separators=(",", ":")).encode()
