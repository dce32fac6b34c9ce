"""The best of each problem's space, found by trying all of it without noise.

Takes about an hour of two cores; what was tried is kept in `--cache` and not tried again. The
results stand in `lab_optima.json`: `limits` of the problem in seconds, `optimum`, how many
`settings` there are, and which shares of them `fail` and are `near` the optimum (within 3 %; of a
capacity: on the same rung of the ladder).

    python benchmarks/lab_optima.py --jobs 2
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lab import Lab, LabShelf, Truth, scratch
from lab_problems import AIMS, SCENES, Aim, Problem, limits_of

from autotune.search.capacity import multiplier_of, rung_of
from autotune.space.candidate import Candidate

HERE = Path(__file__).parent
OPTIMA = HERE / "lab_optima.json"
NEAR = 0.03


def problems(names: Sequence[str] = ()) -> list[Problem]:
    """The problems by their names (`rag/ttft`), with the limits that are on file."""
    known = json.loads(OPTIMA.read_text(encoding="utf-8"))
    every = [
        Problem(
            name=f"{scene}/{aim}", scene=SCENES[scene], aim=aim,
            limits=known[f"{scene}/{aim}"]["limits"],
        )
        for scene in SCENES
        for aim in AIMS
    ]  # fmt: skip
    return [problem for problem in every if not names or problem.name in names]


def optimum_of(problem: Problem) -> float:
    """The best value of a problem's space without noise."""
    return float(json.loads(OPTIMA.read_text(encoding="utf-8"))[problem.name]["optimum"])


def find_optimum(
    work: tuple[str, Aim], *, cache: Path, end_s: float | None
) -> tuple[str, dict[str, Any] | None]:
    """A problem's name and its row in `lab_optima.json`; None where time ended first."""
    scene, aim = work
    with scratch() as folder:
        plain = Lab(Problem(name=scene, scene=SCENES[scene], aim="ttft", limits={}), folder / "a")
        today = Truth(plain, folder / "b").measure(plain.study.baseline)
        assert today is not None
        ttft, tpot = today.metrics["ttft_p95_s"], today.metrics["tpot_p95_s"]
        assert ttft is not None
        assert tpot is not None
        problem = Problem(
            name=f"{scene}/{aim}", scene=SCENES[scene], aim=aim, limits=limits_of(aim, ttft, tpot)
        )
        truth = Truth(Lab(problem, folder / aim, LabShelf()), folder / f"{aim}-truth")
        kept = Kept(cache / f"truth-{scene}-{aim}.jsonl")
        best = (_fastest if aim == "ttft" else _largest)(truth, kept, end_s)
        return problem.name, best and {"limits": dict(problem.limits), **best}


class Kept:
    """Lines of JSON under keys, in a file that is only added to."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: dict[str, Any] = dict(json.loads(line) for line in lines)

    def add(self, key: str, value: Any) -> Any:
        """Keep a value."""
        self.rows[key] = value
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([key, value]) + "\n")
        return value


def _fastest(truth: Truth, kept: Kept, end_s: float | None) -> dict[str, Any] | None:
    """The lowest value; of settings that are not near it, only that they are not."""
    best = min((v for v, bad in kept.rows.values() if v and bad <= 0), default=math.inf)
    every = _shuffled(truth)
    for candidate in every:
        if end_s is not None and time.monotonic() > end_s:
            return None
        if candidate.key in kept.rows:
            continue
        if truth.too_slow(candidate, best * (1 + NEAR)):
            kept.add(candidate.key, [0.0, 0.0])
            continue
        value, violation = kept.add(candidate.key, truth.value(candidate))
        if value is not None and violation <= 0:
            best = min(best, value)
        truth.forget()
    rows = list(kept.rows.values())
    return {
        "optimum": best,
        "settings": len(every),
        "fail": sum(value is None for value, _ in rows) / len(rows),
        "near": sum(bad <= 0 and 0 < (v or 0) <= best * (1 + NEAR) for v, bad in rows) / len(rows),
    }


def _largest(truth: Truth, kept: Kept, end_s: float | None) -> dict[str, Any] | None:
    """The highest rate of the ladder that any setting holds: each is asked whether it holds what
    the best so far holds, and if so, whether it holds more.
    """
    found = [rung for rung in kept.rows.values() if rung is not None]
    best = max(found, default=rung_of(1.0))
    every = _shuffled(truth)
    for candidate in every:
        if end_s is not None and time.monotonic() > end_s:
            return None
        if candidate.key in kept.rows:
            continue
        rung = None
        if truth.starts(candidate):
            rung = best - 1
            while truth.holds(candidate, multiplier_of(rung + 1)):
                rung += 1
            best = max(best, rung)
        kept.add(candidate.key, rung)
        truth.forget()
    rows = list(kept.rows.values())
    return {
        "optimum": multiplier_of(best),
        "settings": len(every),
        "fail": sum(rung is None for rung in rows) / len(rows),
        "near": sum(rung == best for rung in rows) / len(rows),
    }


def _shuffled(truth: Truth) -> list[Candidate]:
    """All settings in an order without pattern, so that a good one comes early."""
    every = list(truth.candidates())
    random.Random(0).shuffle(every)
    return every


def cache_folder(asked: Path | None) -> Path:
    """Where results are kept: apart for every change of the problems and their truth."""
    names = ("hidden_engine.py", "lab_problems.py")
    text = "".join((HERE / name).read_text(encoding="utf-8") for name in names)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    base = asked or home / "autotune" / "lab"
    return base / hashlib.sha256(text.encode()).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--scenes", nargs="*", default=list(SCENES), choices=list(SCENES))
    parser.add_argument("--aims", nargs="*", default=list(AIMS), choices=list(AIMS))
    parser.add_argument("--minutes", type=float, help="stop after so long, to go on another time")
    asked = parser.parse_args()
    end_s = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    work = [(scene, aim) for scene in asked.scenes for aim in asked.aims]
    solve = partial(find_optimum, cache=cache_folder(asked.cache), end_s=end_s)
    known = json.loads(OPTIMA.read_text(encoding="utf-8")) if OPTIMA.exists() else {}
    with get_context("spawn").Pool(asked.jobs) as pool:
        for name, found in pool.imap_unordered(solve, work):
            print(name, "not done" if found is None else json.dumps(found), flush=True)
            if found is not None:
                known[name] = found
                order = [f"{scene}/{aim}" for scene in SCENES for aim in AIMS]
                rows = {key: known[key] for key in order if key in known}
                OPTIMA.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
