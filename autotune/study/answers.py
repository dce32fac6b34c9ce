"""What one running server says of the texts of a study, in bounded time, and how that is kept.

A reading holds scores of passages and salted hashes of greedy answers, no text: it may lie in a
study directory in which nobody asked for texts to be kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.canonical import Json, digest
from autotune.clock import Clock, StopSignal
from autotune.engines.facts import Likelihood, engine_facts
from autotune.launch.launcher import RunningServer
from autotune.measure.likelihood import Scored
from autotune.spec.model import QualitySpec
from autotune.study.asking import Answer, Asker, Broken, Passage, Refused, ask_all
from autotune.study.directory import read_json, write_text
from autotune.study.passages import passages_of
from autotune.study.prepared import PreparedStudy
from autotune.study.task_score import TaskRun, run_task

FILE = "quality.json"
MOST_ANSWERS = 16
"""Greedy answers asked for, to the first passages."""
ANSWERS_SHARE = 0.35
"""So much of the time goes to greedy answers where something else decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one server said. `scores`, `answers`: passage key -> its score, -> (hashed units, what
    is wrong with it); `documents`: document of a task -> its score. `broken`: passages whose
    numbers are none. `refused`: the first refusal in words, None where nothing was refused.
    """

    engine: str
    texts: str
    scores: Mapping[str, Scored] = field(default_factory=dict)
    answers: Mapping[str, tuple[Sequence[str], str | None]] = field(default_factory=dict)
    documents: Mapping[str, float] = field(default_factory=dict)
    broken: int = 0
    refused: str | None = None

    @property
    def units(self) -> dict[str, Sequence[str]]:
        """Passage key -> the hashed units of its answer."""
        return {key: units for key, (units, _) in self.answers.items()}

    @property
    def wrong(self) -> dict[str, str | None]:
        """Passage key -> what is wrong with its answer."""
        return {key: wrong for key, (_, wrong) in self.answers.items()}

    def write(self, folder: Path) -> None:
        """Keep it in a trial's folder, for its owner only."""
        data: dict[str, Json] = {
            "engine": self.engine,
            "texts": self.texts,
            "scores": {key: [one.nll, one.tokens] for key, one in self.scores.items()},
            "answers": {key: [list(units), wrong] for key, (units, wrong) in self.answers.items()},
            "documents": dict(self.documents),
            "broken": self.broken,
            "refused": self.refused,
        }
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
        write_text(folder / FILE, text + "\n", mode=0o600)

    @classmethod
    def of(cls, folder: Path) -> Reading | None:
        """What lies in a trial's folder; None if nothing does. Raises InputError."""
        if not (folder / FILE).is_file():
            return None
        data = read_json(folder / FILE)
        return cls(
            engine=data["engine"],
            texts=data["texts"],
            scores={k: Scored(nll=nll, tokens=n) for k, (nll, n) in data["scores"].items()},
            answers={k: (tuple(units), wrong) for k, (units, wrong) in data["answers"].items()},
            documents=data["documents"],
            broken=data["broken"],
            refused=data["refused"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What every server of a study is asked. `form`: how this engine gives likelihoods (None: it
    does not). `tokenizer`: folder or hub name, for tasks. `api_key_env`: where the key is.
    """

    engine: str
    passages: Sequence[Passage]
    texts: str
    form: Likelihood | None
    tokenizer: str
    api_key_env: str | None = None

    @classmethod
    def of(cls, study: PreparedStudy) -> Questions:
        passages, texts = passages_of(study.search_trace, study.study_id)
        kind = study.engine.kind
        return cls(
            engine=kind,
            passages=passages,
            texts=texts,
            form=engine_facts(kind).asks_likelihood(study.engine_version),
            tokenizer=study.spec.model,
            api_key_env=study.measure.api_key_env,
        )


class AnswerReader:
    """Puts the same questions to one server after another."""

    def __init__(
        self, questions: Questions, quality: QualitySpec, *, clock: Clock, stop: StopSignal
    ) -> None:
        self._questions = questions
        self._quality = quality
        self._clock = clock
        self._stop = stop

    def read(self, server: RunningServer, seconds: float) -> Reading:
        """Ask one server everything that the check needs, in at most `seconds` and one request.
        Raises Interrupted.
        """
        ask, check = self._questions, self._quality.check
        url, model = server.url, server.plan.model
        end_s = self._clock.monotonic() + seconds
        answers_end_s = end_s if check == "agreement" else end_s - (1 - ANSWERS_SHARE) * seconds
        asker = Asker(url, model, ask.form, api_key_env=ask.api_key_env)
        scores: list[tuple[Passage, Scored | Refused | Broken]] = []
        try:
            answers = ask_all(
                ask.passages[:MOST_ANSWERS], asker.answer,
                until_s=answers_end_s, clock=self._clock, stop=self._stop,
            )  # fmt: skip
            if check == "likelihood":
                scores = ask_all(
                    ask.passages, asker.score, until_s=end_s, clock=self._clock, stop=self._stop
                )
        finally:
            asker.close()
        task = TaskRun(scores={})
        if check == "lm-eval":
            task = run_task(
                self._quality, model=model, tokenizer=ask.tokenizer, url=url,
                api_key=os.environ.get(ask.api_key_env or ""),
                seconds=end_s - self._clock.monotonic(), clock=self._clock, stop=self._stop,
            )  # fmt: skip
        replies = [reply for _, reply in (*scores, *answers)]
        refused = [r.words for r in replies if isinstance(r, Refused) and not r.late]
        return Reading(
            engine=ask.engine,
            texts=ask.texts,
            scores={p.key: r for p, r in scores if isinstance(r, Scored)},
            answers={
                p.key: (_hashed(p.key, r.units), r.wrong)
                for p, r in answers
                if isinstance(r, Answer)
            },
            documents=task.scores,
            broken=sum(isinstance(r, Broken) for _, r in scores),
            refused=task.problem or next(iter(refused), None),
        )


def _hashed(salt: str, units: Sequence[str]) -> tuple[str, ...]:
    """Each unit together with all before it, as a short hash: equal as long as answers are."""
    hashes: list[str] = []
    for unit in units:
        hashes.append(digest([hashes[-1] if hashes else salt, unit], length=8))
    return tuple(hashes)
