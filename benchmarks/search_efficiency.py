"""How much GPU time a search needs to come near the best settings, by search method.

Whole studies run in virtual time: the real loop with its refusals, early stops and budget, on
engines that no part of the product knows (`hidden_engine.py`, problems in `lab_problems.py`; how
the truth was made stands there). After each launch the trial that the study would confirm if the
search ended there is judged by what its settings do *without noise*: its regret is how much worse
that is than the best of the whole space. Settings that break a limit by more than a launch's noise
(2 %) have no regret but infinity. GPU time is that of all launches, failed ones and the baseline's
included; "after 6 launches" counts the baseline's as the first one. A run that is near the
optimum after 12 launches ends there, another one after 40 (`guided`: 12).

The best of each space was found by trying all of it (`lab_optima.py`). Runs are kept in `--cache`
and not made again: name another folder after a change of the product.

    python benchmarks/search_efficiency.py --seeds 20 --jobs 2
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from hidden_noise import NOISE
from lab import Lab, Truth, scratch
from lab_optima import NEAR, Kept, cache_folder, optimum_of, problems
from lab_plot import draw
from lab_problems import AIMS, SCENES, Problem

from autotune.space.candidate import Candidate
from autotune.study.record import TrialRecord

METHODS = ("guided", "tpe", "random", "grid")
CHECKPOINTS = (6, 10)
CLOSE = 0.05
LAUNCHES = 40
SURE = 12
"""A run that is near the optimum after so many launches is not continued."""
MOST = {"guided": SURE}
"""Launches of a method at most: its median is known by then, and each costs seconds of thought."""


@dataclass(frozen=True, slots=True)
class Run:
    """One study: per launch the GPU seconds up to its end, and the regret of the best so far."""

    problem: str
    method: str
    seed: int
    gpu_s: tuple[float, ...]
    regrets: tuple[float, ...]

    def near_s(self) -> float:
        """GPU seconds until the best so far is near the optimum for the first time."""
        pairs = zip(self.gpu_s, self.regrets, strict=True)
        return next((seconds for seconds, regret in pairs if regret <= NEAR), math.inf)

    def regret_after(self, launches: int) -> float:
        """The regret after so many launches."""
        return self.regrets[min(launches, len(self.regrets)) - 1]

    def regret_at(self, gpu_s: float) -> float:
        """The regret after so many GPU seconds."""
        done = [r for s, r in zip(self.gpu_s, self.regrets, strict=True) if s <= gpu_s]
        return done[-1] if done else math.inf


def run_problem(
    problem: Problem, *, methods: Sequence[str], seeds: int, launches: int, cache: Path
) -> list[Run]:
    """All runs of a problem, those on file included."""
    files = {method: Kept(cache / f"{problem.name.replace('/', '-')}-{method}.jsonl")
             for method in methods}  # fmt: skip
    if any(str(seed) not in kept.rows for kept in files.values() for seed in range(seeds)):
        with scratch() as folder:
            lab = Lab(problem, folder / "lab")
            judge = Judge(problem, Truth(lab, folder / "truth"), cache)
            for seed in range(seeds):
                for method, kept in files.items():
                    if str(seed) not in kept.rows:
                        began = time.monotonic()
                        most = min(launches, MOST.get(method, launches))
                        run = _run(lab, judge, method, seed, most)
                        kept.add(str(seed), {**asdict(run), "regrets": _written(run.regrets)})
                        spent = time.monotonic() - began
                        print(f"{problem.name} {method} {seed}: {spent:.1f} s", file=sys.stderr)
    found = []
    for kept in files.values():
        for seed in range(seeds):
            row = kept.rows[str(seed)]
            row |= {"gpu_s": tuple(row["gpu_s"]), "regrets": tuple(_read(row["regrets"]))}
            found.append(Run(**row))
    return found


def _written(regrets: Sequence[float]) -> list[float | None]:
    return [None if math.isinf(regret) else round(regret, 5) for regret in regrets]


def _read(values: Iterable[float | None]) -> Iterator[float]:
    return (math.inf if value is None else value for value in values)


class Judge:
    """Tells the regret of settings; looks each up once."""

    def __init__(self, problem: Problem, truth: Truth, cache: Path) -> None:
        self._truth = truth
        self._best = optimum_of(problem)
        self._larger = problem.aim == "capacity"
        self._kept = Kept(cache / f"judged-{problem.name.replace('/', '-')}.jsonl")

    def regret(self, candidate: Candidate) -> float:
        """How much worse than the optimum, at least 0; infinite where a limit is broken."""
        known = self._kept.rows.get(candidate.key)
        value, violation = known or self._kept.add(
            candidate.key, self._truth.value(candidate, best=self._best)
        )
        if value is None or violation > NOISE:
            return math.inf
        ratio = self._best / value if self._larger else value / self._best
        return max(0.0, float(ratio) - 1)


def _run(lab: Lab, judge: Judge, method: str, seed: int, launches: int) -> Run:
    def enough(count: int, choice: TrialRecord | None) -> bool:
        return count >= SURE and choice is not None and judge.regret(choice.candidate) <= NEAR

    _, records = lab.run(method, seed, trials=launches, enough=enough)
    gpu_s, times, regrets = 0.0, [], []
    for record, best in zip(records, lab.choices, strict=True):
        gpu_s += record.seconds["total"]
        times.append(round(gpu_s, 1))
        regrets.append(math.inf if best is None else judge.regret(best.candidate))
    return Run(
        problem=lab.problem.name,
        method=method,
        seed=seed,
        gpu_s=tuple(times),
        regrets=tuple(regrets),
    )


# ---- the table


def table(runs: Sequence[Run]) -> list[str]:
    """Lines of Markdown: per problem and method, and over all problems."""
    heads = [
        "problem", "method", *(f"within {NEAR:.0%} after {n}" for n in CHECKPOINTS),
        f"within {CLOSE:.0%} after {CHECKPOINTS[0]}", f"median regret after {CHECKPOINTS[-1]}",
        f"median GPU time to {NEAR:.0%}", "of random's",
    ]  # fmt: skip
    lines = [_line(heads), _line(["---"] * len(heads))]
    names = list(dict.fromkeys(run.problem for run in runs))
    methods = list(dict.fromkeys(run.method for run in runs))
    for name in [*names, "all"]:
        here = [run for run in runs if name in (run.problem, "all")]
        random = [run for run in here if run.method == "random"]
        for method in methods:
            mine = [run for run in here if run.method == method]
            regret = statistics.median_high(run.regret_after(CHECKPOINTS[-1]) for run in mine)
            cells = [
                name, f"`{method}`", *(_share(mine, n, NEAR) for n in CHECKPOINTS),
                _share(mine, CHECKPOINTS[0], CLOSE),
                "none feasible" if math.isinf(regret) else f"{regret:.1%}",
                _minutes(median_s(mine)), _ratio(mine, random),
            ]  # fmt: skip
            lines.append(_line(cells))
    return lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _share(runs: Sequence[Run], launches: int, regret: float) -> str:
    return f"{statistics.mean(run.regret_after(launches) <= regret for run in runs):.0%}"


def median_s(runs: Sequence[Run]) -> float:
    """The median GPU seconds until near; infinite where half of the runs never come near."""
    return statistics.median_high(run.near_s() for run in runs)


def _minutes(seconds: float) -> str:
    return "not in half" if math.isinf(seconds) else f"{seconds / 60:.0f} min"


def _ratio(mine: Sequence[Run], random: Sequence[Run]) -> str:
    """Of the median GPU time of random search; over all problems, the geometric mean of theirs.
    Where half of the random runs never come near, at least the time that they took.
    """
    ratios, bound = [], ""
    for name in dict.fromkeys(run.problem for run in mine):
        ours = median_s([run for run in mine if run.problem == name])
        others = [run for run in random if run.problem == name]
        theirs = median_s(others or mine)
        if math.isinf(ours):
            return "never"
        if math.isinf(theirs):
            theirs, bound = statistics.median(run.gpu_s[-1] for run in others), "<"
        ratios.append(ours / theirs)
    return f"{bound}{statistics.geometric_mean(ratios):.2f}"


def main() -> None:
    names = [f"{scene}/{aim}" for scene in SCENES for aim in AIMS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--launches", type=int, default=LAUNCHES)
    parser.add_argument("--problems", nargs="*", default=[], choices=names, metavar="SCENE/AIM")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path, help="folder for results.json and plot.svg")
    asked = parser.parse_args()
    cache = cache_folder(asked.cache) / f"runs-{asked.launches}"
    solve = partial(
        run_problem, methods=asked.methods, seeds=asked.seeds, launches=asked.launches, cache=cache
    )
    with get_context("spawn").Pool(asked.jobs) as pool:
        runs = [run for found in pool.imap(solve, problems(asked.problems)) for run in found]
    print("\n".join(table(runs)))
    print(f"{asked.seeds} seeds, up to {asked.launches} launches; near: within {NEAR:.0%}")
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        rows = [{**asdict(run), "regrets": _written(run.regrets)} for run in runs]
        (asked.out / "results.json").write_text(json.dumps(rows), encoding="utf-8")
        (asked.out / "plot.svg").write_text(draw(runs), encoding="utf-8")


if __name__ == "__main__":
    main()
