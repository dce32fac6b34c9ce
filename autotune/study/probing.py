"""Probes of a server that is up: single prompts of a few lengths, and a few decode batches.

What a busy replay cannot tell apart (time per prompt token, per decode step, per request) an idle
engine shows in seconds. The probes run after the measurement, so they never touch it, with prompts
of their own. `probes.json` in the trial's folder holds what came back, untouched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from autotune.canonical import Json
from autotune.measure.metrics import e2e, tpot, ttft_service
from autotune.measure.quantiles import percentile
from autotune.replay.records import RequestRecord
from autotune.study.directory import read_json, write_json
from autotune.study.engine_view import flags_of, longest_request, understanding_of
from autotune.study.measuring import MeasureSession
from autotune.study.prepare import PreparedStudy
from autotune.study.task import TrialTask
from autotune.workload.trace import Request, Trace

Kind = Literal["whole", "short"]
FILE = "probes.json"
MOST_S, LEAST_S = 15.0, 4.0
"""Probing takes about as long as the window, within these seconds."""
SHORT_SHARE = 0.4
"""Share of it in a launch that only adds another token budget."""
FAR_BUDGET = 3.5
"""A token budget so many times another one is far from it."""
LENGTHS = 5
BATCHES = (1, 4, 16)
OUTPUT_TOKENS = 32
SCOUT_TOKENS = 8
BATCH_PROMPT_SHARE = 0.5
"""Prompts of a decode batch are so long, as a share of the window's median."""
LONGEST = 2.0
"""The longest prompt is so many times the window's longest, where the model allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """`at_once` equal requests sent to an idle engine together."""

    prompt_tokens: int
    output_tokens: int
    at_once: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request of a shot saw, in seconds; `tpot_s` None for a single token."""

    ttft_s: float
    e2e_s: float
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A shot and the answers to it, in the order in which they were sent."""

    shot: Shot
    answers: tuple[Answer, ...]


@dataclass(slots=True)
class Probes:
    """All probes of one launch, and how long they took."""

    probes: list[Probe] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Json]:
        return {
            "seconds": round(self.seconds, 3),
            "probes": [
                {**asdict(p.shot), "answers": [asdict(answer) for answer in p.answers]}
                for p in self.probes
            ],
        }


class Probing:
    """Decides which launches of a study are probed: the baseline's, and the first of the search
    with a token budget far from the baseline's, for what only steps of another size show.
    """

    def __init__(self, study: PreparedStudy) -> None:
        self._study = study
        self._done = False

    def wanted(self, task: TrialTask) -> Kind | None:
        """How the launch of this task is to be probed; None: not at all."""
        if self._study.spec.search.sampler != "guided" or self._done:
            return None
        if task.role == "baseline":
            return "whole"
        if task.role != "search":
            return None
        understanding = understanding_of(self._study)
        here, there = (
            understanding.limits(flags_of(self._study, candidate)).budget
            for candidate in (self._study.baseline, task.candidate)
        )
        self._done = max(here / there, there / here) >= FAR_BUDGET
        return "short" if self._done else None

    def run(self, session: MeasureSession, kind: Kind, *, left_s: float | None) -> None:
        """Probe a server that has been measured, if there is time."""
        if left_s is not None and left_s < LEAST_S:
            return
        run_probes(
            session,
            self._study.search_trace,
            session.folder,
            max_tokens=longest_request(self._study),
            seqs=session.max_num_seqs,
            short=kind == "short",
        )


class Answering(Protocol):
    """A measurement session as far as probing needs it."""

    def ask(
        self,
        requests: Sequence[Request],
        after: Sequence[int | None],
        *,
        patience_s: float,
    ) -> Sequence[RequestRecord]:
        """Send requests that count for nothing; see `MeasureSession.ask`."""
        ...


def run_probes(
    session: Answering,
    trace: Trace,
    folder: Path,
    *,
    max_tokens: int | None = None,
    seqs: int | None = None,
    short: bool = False,
) -> Probes:
    """Probe a server and write `probes.json`.

    `max_tokens`: the longest request that the model takes, None: not known. `seqs`: requests that
    run together at most. `short`: less of it. Raises what the session's replay raises.
    """
    limit_s = min(MOST_S, max(LEAST_S, trace.duration_s)) * (SHORT_SHARE if short else 1.0)
    lengths = prompt_lengths(trace, max_tokens)
    found = Probes()
    scouts = [
        Shot(prompt_tokens=lengths[0], output_tokens=SCOUT_TOKENS),
        Shot(prompt_tokens=lengths[len(lengths) // 2], output_tokens=SCOUT_TOKENS),
    ]
    _fire(session, scouts, found, patience_s=4 * limit_s)
    if len(found.probes) == len(scouts):
        shots = plan_shots(
            lengths, found.probes, limit_s - found.seconds, batches=batches(seqs),
            prompt=max(1, int(BATCH_PROMPT_SHARE * _percentile(trace, 50))),
        )  # fmt: skip
        _fire(session, shots, found, patience_s=4 * limit_s)
    write_json(folder / FILE, found.to_json())
    return found


def prompt_lengths(trace: Trace, max_tokens: int | None) -> list[int]:
    """The lengths to probe in rising order: over the window's own range and up to `LONGEST` times
    its longest, as far as the model takes it; equal ratios between them.
    """
    longest = max(request.input_tokens for request in trace.requests)
    top = int(LONGEST * longest)
    if max_tokens is not None:
        top = max(longest, min(top, max_tokens - SCOUT_TOKENS - 1))
    low = max(1, min(_percentile(trace, 5), top))
    ratio = (top / low) ** (1 / (LENGTHS - 1))
    return sorted({round(low * ratio**i) for i in range(LENGTHS)})


def batches(seqs: int | None) -> list[int]:
    """The sizes of decode batches, as far as so many requests run together."""
    return [size for size in BATCHES if seqs is None or size <= seqs]


def plan_shots(
    lengths: Sequence[int],
    scouts: Sequence[Probe],
    limit_s: float,
    *,
    batches: Sequence[int],
    prompt: int,
) -> list[Shot]:
    """The shots that fit into `limit_s`, by what two scouts say of the engine's speed: each kind
    once before any is repeated, cheap ones first.
    """
    pace_s = max(p.answers[0].ttft_s / p.shot.prompt_tokens for p in scouts[-1:])
    decode_s = max((p.answers[0].tpot_s or 0.0) for p in scouts)

    def cost_s(shot: Shot) -> float:
        prefill_s = shot.at_once * shot.prompt_tokens * pace_s
        return 0.25 + prefill_s + shot.output_tokens * decode_s * (1 + shot.at_once / 32)

    singles = [Shot(prompt_tokens=length, output_tokens=1) for length in lengths]
    decodes = [
        Shot(prompt_tokens=prompt, output_tokens=OUTPUT_TOKENS, at_once=size) for size in batches
    ]
    wanted = [*sorted([*singles, *decodes], key=cost_s), *singles, *decodes[:2], *singles]
    chosen: list[Shot] = []
    left_s = limit_s
    for shot in wanted:
        if cost_s(shot) <= left_s:
            chosen.append(shot)
            left_s -= cost_s(shot)
    return chosen


def read_probes(folder: Path) -> Probes | None:
    """The probes of a finished trial, None if it has none. Raises InputError for a broken file."""
    if not (folder / FILE).is_file():
        return None
    data = read_json(folder / FILE)
    return Probes(
        probes=[_probe(entry) for entry in data["probes"]], seconds=float(data["seconds"])
    )


def _probe(entry: Mapping[str, Json]) -> Probe:
    shot = Shot(
        prompt_tokens=entry["prompt_tokens"], output_tokens=entry["output_tokens"],
        at_once=entry["at_once"],
    )  # fmt: skip
    return Probe(shot=shot, answers=tuple(Answer(**answer) for answer in entry["answers"]))


def _fire(session: Answering, shots: Iterable[Shot], found: Probes, *, patience_s: float) -> None:
    """Send shots one after the other; those that were not wholly answered are left out."""
    requests: list[Request] = []
    after: list[int | None] = []
    spans: list[tuple[Shot, range]] = []
    for shot in shots:
        begin = len(requests)
        requests += [
            Request(at_s=0.0, input_tokens=shot.prompt_tokens, output_tokens=shot.output_tokens)
        ] * shot.at_once
        after += [begin - 1 if begin else None] * shot.at_once
        spans.append((shot, range(begin, len(requests))))
    if not requests:
        return
    records = {r.index: r for r in session.ask(requests, after, patience_s=patience_s)}
    ends = [r.end_s for r in records.values() if r.end_s is not None]
    found.seconds += max(ends, default=0.0)
    for shot, span in spans:
        answers = [_answer(records[i]) for i in span if i in records]
        whole = [answer for answer in answers if answer is not None]
        if len(whole) == shot.at_once:
            found.probes.append(Probe(shot=shot, answers=tuple(whole)))


def _answer(record: RequestRecord) -> Answer | None:
    waited, whole = ttft_service(record), e2e(record)
    if record.failure is not None or waited is None or whole is None or waited <= 0:
        return None
    if record.sent_s is not None:
        whole -= record.sent_s - record.due_s
    return Answer(ttft_s=waited, e2e_s=whole, tpot_s=tpot(record))


def _percentile(trace: Trace, percent: float) -> int:
    return math.floor(percentile([float(r.input_tokens) for r in trace.requests], percent))
