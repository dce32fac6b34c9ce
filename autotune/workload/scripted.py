"""Traffic whose requests belong together: pairs, dialogues, bursts, steps of concurrency.

A unit is a function of its number and a source of randomness that gives requests timed from the
unit's start; `scripted` lets the units come by a process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.workload.synthesis import Lengths, Process
from autotune.workload.trace import Request, Trace

TIERS = (8192, 16384, 32768, 65536)
STEPS = (1, 2, 4, 8)
TURNS_PER_STREAM = 6
AGENT_TURNS = 20
CONTEXT_LIMIT = 32768
BURST, CALM, PERIOD_S = 20, 10, 15.0
_TOKEN_S = 0.02
"""How long a token of an answer takes in the nominal times of later turns, which a replay does not
keep: it waits for the answer."""


class PromptTree:
    """Block ids of prompts that are told as named segments: equal beginnings, equal leading ids."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._ids: dict[tuple[int, tuple[tuple[str, int, int], ...]], int] = {}

    def blocks(self, segments: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        """One id per started block of the segments (name, tokens), set one after the other."""
        found: list[int] = []
        pieces: list[tuple[str, int, int]] = []
        room = self._size
        for name, tokens in segments:
            start = 0
            while start < tokens:
                end = min(tokens, start + room)
                pieces.append((name, start, end))
                room -= end - start
                start = end
                if room == 0:
                    found.append(self._id(found, pieces))
                    pieces, room = [], self._size
        if pieces:
            found.append(self._id(found, pieces))
        return tuple(found)

    def request(
        self, segments: Sequence[tuple[str, int]], output_tokens: int, at_s: float = 0.0
    ) -> Request:
        """The request with this prompt."""
        return Request(
            at_s=at_s,
            input_tokens=sum(tokens for _, tokens in segments),
            output_tokens=output_tokens,
            blocks=self.blocks(segments),
        )

    def _id(self, before: Sequence[int], pieces: Sequence[tuple[str, int, int]]) -> int:
        key = (before[-1] if before else -1, tuple(pieces))
        return self._ids.setdefault(key, len(self._ids))


Unit = Callable[[int, random.Random, PromptTree], list[Request]]


def scripted(
    unit: Unit,
    *,
    process: Process,
    count: int | None,
    duration_s: float | None,
    seed: int,
    block_size: int,
) -> Trace:
    """The trace of `count` units, or of those that begin up to `duration_s`; the same for the same
    arguments. The rate of `process` counts units.
    """
    rng = random.Random(seed)
    tree = PromptTree(block_size)
    requests: list[Request] = []
    for number, start_s in enumerate(process.times(rng)):
        if (count is not None and number >= count) or (duration_s or start_s) < start_s:
            break
        requests += [
            replace(request, at_s=round(start_s + request.at_s, 3))
            for request in unit(number, rng, tree)
        ]
    requests.sort(key=lambda request: request.at_s)
    return Trace(requests=tuple(requests), block_size=block_size, source_format="synthetic")


_ANSWERS = Lengths(median=150, low=16, high=500, spread=0.6)


def tier_prompt(number: int, rng: random.Random, tree: PromptTree) -> list[Request]:
    """One prompt of exactly 8K, 16K, 32K or 64K tokens, in turn; nothing shared."""
    return [tree.request([(f"tier {number}", TIERS[number % len(TIERS)])], 128)]


def prefix_pair(number: int, rng: random.Random, tree: PromptTree) -> list[Request]:
    """Two prompts over the same 20K tokens, with 1K of their own; the second 2 to 6 s later."""
    shared = (f"shared {number}", 20 * 1024)
    return [
        tree.request([shared, (f"own {number} {i}", 1024)], _ANSWERS.draw(rng), at_s)
        for i, at_s in enumerate((0.0, rng.uniform(2.0, 6.0)))
    ]


def agent_dialogue(number: int, rng: random.Random, tree: PromptTree) -> list[Request]:
    """A session of 20 turns: tools and instructions that all agents share, a task of its own, then
    after each answer the result of a tool.
    """
    results = Lengths(median=400, low=40, high=2500, spread=0.8)
    segments = [("tools", 3000), (f"task {number}", rng.randint(200, 1200))]
    requests: list[Request] = []
    at_s, gap_s = 0.0, None
    for turn in range(AGENT_TURNS):
        answer = _ANSWERS.draw(rng)
        request = tree.request(segments, answer, at_s)
        requests.append(replace(request, session=f"agent {number}", turn=turn, gap_s=gap_s))
        gap_s = round(rng.lognormvariate(0.0, 0.8), 3)
        at_s += answer * _TOKEN_S + gap_s
        segments = [
            *segments,
            (f"answer {number} {turn}", answer),
            (f"result {number} {turn}", results.draw(rng)),
        ]
    return requests


def rag_question(number: int, rng: random.Random, tree: PromptTree) -> list[Request]:
    """Instructions, 2 to 8 documents of 1K tokens from a corpus of 40 (the popular ones more
    often, in the order found), and a question.
    """
    wanted = rng.randint(2, 8)
    ranks = range(40)
    documents: list[int] = []
    while len(documents) < wanted:
        document = rng.choices(ranks, [1 / (rank + 1) for rank in ranks])[0]
        if document not in documents:
            documents.append(document)
    question = (f"question {number}", rng.randint(20, 200))
    prompt = [("instructions", 512), *((f"document {d}", 1024) for d in documents), question]
    return [tree.request(prompt, _ANSWERS.draw(rng))]


def near_limit(number: int, rng: random.Random, tree: PromptTree) -> list[Request]:
    """Prompt and answer together 98 to 100 % of a 32K context; every fifth fills it exactly."""
    answer = Lengths(median=200, low=32, high=512).draw(rng)
    spare = 0 if number % 5 == 4 else rng.randint(1, CONTEXT_LIMIT // 50)
    return [tree.request([(f"long {number}", CONTEXT_LIMIT - answer - spare)], answer)]


def concurrency_step(number: int, rng: random.Random, tree: PromptTree) -> list[Request]:
    """1, 2, 4 or 8 streams at once, in turn: sessions whose next prompt, new each time, follows at
    once upon the answer, so that a server that is slower is asked less.
    """
    requests = []
    for stream in range(STEPS[number % len(STEPS)]):
        for turn in range(TURNS_PER_STREAM):
            request = tree.request([(f"{number} {stream} {turn}", 1024)], 128)
            at_s = turn * (128 * _TOKEN_S + 0.1)
            session = f"step {number} stream {stream}"
            gap_s = 0.0 if turn else None
            requests.append(replace(request, at_s=at_s, session=session, turn=turn, gap_s=gap_s))
    return requests


def burst(number: int, rng: random.Random, tree: PromptTree) -> list[Request]:
    """Twenty chat requests within half a second, then ten spread over the rest of 15 s."""
    prompts = Lengths(median=300, low=32, high=1500, spread=0.7)
    times = [rng.uniform(0.0, 0.5) for _ in range(BURST)]
    times += [rng.uniform(0.5, PERIOD_S) for _ in range(CALM)]
    return [
        tree.request([("system", 256), (f"{number} {i}", prompts.draw(rng))], _ANSWERS.draw(rng), t)
        for i, t in enumerate([0.0, *sorted(times)[1:]])
    ]
