"""Asking a running server what it thinks of texts: log-probabilities, and greedy answers.

Plain control traffic, a few requests at a time and never while a replay runs. A request that is
refused, or comes too late, is an answer of its own kind: it is told apart from broken numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import httpx

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.facts import Likelihood
from autotune.measure.likelihood import Scored, garbage, scored
from autotune.workload.trace import Message

TOGETHER = 4
"""So many requests at a time: an engine computes the logits of a whole passage for each of them."""
ANSWER_TOKENS = 32
"""The length of a greedy answer: beyond its first difference an answer says nothing more."""
LEAST_TIME_S = 0.5
"""No request is begun with less time than this."""

Item = TypeVar("Item")
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One text to ask about. `key` names it in files. `text` is scored; the answer is asked for
    with `messages` through the chat route, or without any with `prompt` through completions.
    """

    key: str
    text: str
    prompt: str
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The server gave no usable answer: what it said instead. `late`: time was up first."""

    words: str
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The server answered with numbers that are none (NaN, infinite, missing)."""

    words: str = "log-probabilities that are no numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A greedy answer: its units (tokens where the server names them, else characters) and, in a
    word, what makes it garbage (None: nothing).
    """

    units: tuple[str, ...]
    wrong: str | None


class Asker:
    """Speaks with one server. `form`: how it is asked for likelihoods (None: it cannot be)."""

    def __init__(
        self, url: str, model: str, form: Likelihood | None, *, api_key_env: str | None = None
    ) -> None:
        key = os.environ.get(api_key_env, "") if api_key_env else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=url.rstrip("/"), trust_env=False, headers=headers)
        self._model = model
        self._form = form

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def score(self, passage: Passage, timeout_s: float) -> Scored | Refused | Broken:
        """The likelihood of the passage's text."""
        form = self._form
        if form is None:
            return Refused(words="this engine gives no log-probabilities of a prompt")
        body = {**form.body, form.text: passage.text}
        if form.text == "prompt":
            body["model"] = self._model
        answer = self._post(form.route, body, timeout_s)
        if isinstance(answer, Refused):
            return answer
        try:
            logprobs = READERS[form.read](answer)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            return Refused(words=f"an answer of another form: {type(error).__name__}: {error}")
        if len(logprobs) < 2:
            return Refused(words="this text is a single token to the server")
        return scored(logprobs) or Broken()

    def answer(self, passage: Passage, timeout_s: float) -> Answer | Refused:
        """The greedy answer to the passage's prompt."""
        fixed: dict[str, Json] = {
            "model": self._model,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "seed": 0,
        }
        if self._form is not None:
            fixed["logprobs"] = True if passage.messages else 1
        if passage.messages:
            messages = [{"role": role, "content": text} for role, text in passage.messages]
            body = {**fixed, "messages": messages}
            found = self._post("/v1/chat/completions", body, timeout_s)
        else:
            found = self._post("/v1/completions", {**fixed, "prompt": passage.prompt}, timeout_s)
        if isinstance(found, Refused):
            return found
        try:
            return _answer(found)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            return Refused(words=f"an answer of another form: {type(error).__name__}: {error}")

    def _post(self, route: str, body: Mapping[str, Json], timeout_s: float) -> Json | Refused:
        try:
            answer = self._client.post(route, json=body, timeout=timeout_s)
        except httpx.TimeoutException:
            return Refused(words=f"no answer within {timeout_s:.0f} s", late=True)
        except httpx.TransportError as error:
            return Refused(words=f"{type(error).__name__}: {error}".rstrip(": "))
        if answer.status_code != 200:
            # An engine's words may repeat the prompt: the status says enough
            return Refused(words=f"HTTP {answer.status_code} from {route}")
        try:
            return answer.json()
        except ValueError:
            return Refused(words=f"no JSON from {route}")


def ask_all(
    items: Sequence[Item],
    ask: Callable[[Item, float], Reply],
    *,
    until_s: float,
    clock: Clock,
    stop: StopSignal,
) -> list[tuple[Item, Reply]]:
    """Ask about each item in order, a few at a time, until the clock shows `until_s`. Raises
    Interrupted (when what is under way has ended).
    """
    waiting, lock = iter(items), Lock()
    found: list[tuple[Item, Reply]] = []

    def work() -> None:
        while not stop.requested and (left_s := until_s - clock.monotonic()) >= LEAST_TIME_S:
            with lock:
                item = next(waiting, None)
            if item is None:
                return
            reply = ask(item, left_s)
            with lock:
                found.append((item, reply))

    with ThreadPoolExecutor(max_workers=TOGETHER, thread_name_prefix="asking") as pool:
        for ended in [pool.submit(work) for _ in range(TOGETHER)]:
            ended.result()
    stop.check()
    return found


def _vllm(answer: Json) -> list[float | None]:
    """vLLM: per prompt token a mapping token id -> {logprob}, with 0 alternatives one entry."""
    return [
        None if entry is None else _number(next(iter(entry.values()))["logprob"])
        for entry in answer["choices"][0]["prompt_logprobs"]
    ]


def _sglang(answer: Json) -> list[float | None]:
    """SGLang's native route: per prompt token [log-probability, token id, text]."""
    return [_number(entry[0]) for entry in answer["meta_info"]["input_token_logprobs"]]


def _echo(answer: Json) -> list[float | None]:
    """The OpenAI form: the prompt's tokens, then the generated ones."""
    numbers = answer["choices"][0]["logprobs"]["token_logprobs"]
    return [_number(value) for value in numbers[: answer["usage"]["prompt_tokens"]]]


READERS: Mapping[str, Callable[[Json], list[float | None]]] = {
    "prompt_logprobs": _vllm,
    "input_token_logprobs": _sglang,
    "echo": _echo,
}
"""Form of an answer (`engines/facts`) -> the log-probability of each prompt token."""


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _answer(found: Json) -> Answer:
    """An answer of either OpenAI route, with its tokens where they are named."""
    choice = found["choices"][0]
    chat = "message" in choice
    if chat:
        message = choice["message"]
        # A thinking model's answer may be cut before its content begins
        parts = [message.get(name) for name in ("reasoning_content", "reasoning", "content")]
        text = "".join(part for part in parts if isinstance(part, str))
    else:
        text = choice["text"] or ""
    named = choice.get("logprobs") or {}
    entries = named.get("content") or []
    tokens = [e["token"] for e in entries] if chat else named.get("tokens")
    numbers = [e.get("logprob") for e in entries] if chat else named.get("token_logprobs")
    units = tuple(str(token) for token in tokens) if tokens else tuple(text)
    wrong = garbage(text, units)
    if any(value is None or not math.isfinite(value) for value in numbers or ()):
        wrong = "numbers"
    return Answer(units=units, wrong=wrong)
