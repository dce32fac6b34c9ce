"""Which texts an answer check asks about: the user's recorded ones where they were kept, else the
built-in set. The same for every trial of a study, and after a resume.
"""

from __future__ import annotations

from autotune.canonical import digest
from autotune.measure.built_in_texts import built_in
from autotune.study.asking import Passage
from autotune.workload.trace import Request, Trace

MOST_RECORDED = 48
"""Recorded texts at most, spread over the recording."""
ENOUGH_RECORDED = 24
"""With fewer recorded texts the built-in ones are added: a verdict needs texts."""
LONGEST_TEXT = 2000
"""Characters of a recorded text that are scored: an engine computes a row of logits as wide as the
vocabulary for each of its tokens."""
PROMPT_SHARE = 0.6
"""So much of a built-in passage is the prompt of its greedy answer."""


def passages_of(trace: Trace, salt: str) -> tuple[tuple[Passage, ...], str]:
    """The passages, and where they are from: `built-in`, `recorded` or `recorded and built-in`.

    Keys are salted digests, so that a file of them tells nothing of a text.
    """
    recorded = _recorded(trace, salt) if trace.has_text else ()
    if len(recorded) >= ENOUGH_RECORDED:
        return recorded, "recorded"
    own = tuple(
        Passage(key=_key(salt, b.text), text=b.text, prompt=b.text[: _cut(b.text)])
        for b in built_in()
    )
    return (*recorded, *own), "recorded and built-in" if recorded else "built-in"


def _recorded(trace: Trace, salt: str) -> tuple[Passage, ...]:
    """Different recorded prompts, evenly over the recording."""
    different: dict[str, tuple[str, Request]] = {}
    for request in trace.requests:
        text = "\n\n".join(content for _, content in request.messages)
        if text.strip():
            different.setdefault(_key(salt, text), (text, request))
    step = max(1.0, len(different) / MOST_RECORDED)
    items = list(different.items())
    chosen = [items[int(i * step)] for i in range(min(MOST_RECORDED, len(items)))]
    return tuple(
        Passage(key=key, text=text[:LONGEST_TEXT], prompt=text, messages=request.messages)
        for key, (text, request) in chosen
    )


def _cut(text: str) -> int:
    """Where the prompt of a built-in passage ends: before a blank, where there is one."""
    end = int(PROMPT_SHARE * len(text))
    blank = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end))
    return blank if blank > end // 2 else end


def _key(salt: str, text: str) -> str:
    return digest([salt, text])
