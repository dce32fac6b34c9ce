"""How often a study's verdict is right: false improvements, and true ones that are found.

Whole studies in virtual time (`lab.py`), with the real search, confirmation and verdict, on a
hidden engine with 2 % noise per launch. In the first kind no setting differs from today's: every
`better` is false. In the second one setting is 8 % better. Bars: at most 5 % and at least 90 %.

    python benchmarks/verdict_power.py --studies 400 --jobs 2
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

from hidden_engine import HiddenMachine
from lab import Lab, LabShelf, scratch
from lab_problems import SCENES, Problem

from autotune.engines.plan import LaunchPlan
from autotune.measure.quantiles import wilson_interval
from autotune.study.virtual_machine import VirtualLaunch

LUCKY = 3
"""The value of the knob without effect that makes the engine better, where one does."""
GAIN = 0.92
SCENE = replace(
    SCENES["bursts"],
    today={"seed": 0},
    knobs={"seed": {"type": "int", "values": list(range(10))}},
    rules=(),
)
TRIALS = 10


class LuckyMachine(HiddenMachine):
    """A hidden machine on which one setting makes everything faster by `GAIN`."""

    def launch(self, plan: LaunchPlan, trial: int) -> VirtualLaunch:
        """See `VirtualMachine`."""
        launch = super().launch(plan, trial)
        words = list(plan.argv)
        if launch.engine is not None and words[words.index("--seed") + 1] == str(LUCKY):
            launch.engine.blur.gain = GAIN  # type: ignore[attr-defined]
        return launch


@dataclass(frozen=True, slots=True)
class Told:
    """How one study ended: the verdict, whether it names the better setting, and its launches."""

    verdict: str
    right: bool
    launches: int


def one(numbers: tuple[int, ...], *, lucky: bool, search: Mapping[str, Any]) -> list[Told]:
    """The studies with these seeds."""
    problem = Problem(name="verdict", scene=SCENE, aim="ttft", limits={})
    found = []
    with scratch() as folder:
        lab = Lab(problem, folder, LabShelf())
        for seed in numbers:
            machine = (LuckyMachine if lucky else HiddenMachine)(SCENE.machine, seed=seed)
            end, records = lab.run("random", seed, trials=TRIALS, machine=machine, **search)
            best = next((r for r in records if r.number == end.verdict.best), None)
            right = best is not None and best.params.get("seed") == LUCKY
            found.append(Told(end.verdict.verdict, right, len(records)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--extra-repeats", type=int)
    asked = parser.parse_args()
    search: dict[str, Any] = {"repeats": asked.repeats}
    if asked.extra_repeats is not None:
        search["extra_repeats"] = asked.extra_repeats
    shares = [tuple(range(i, asked.studies, 8 * asked.jobs)) for i in range(8 * asked.jobs)]
    print(f"{'kind':<18}{'better':>9}{'95 % interval':>18}{'launches':>10}  verdicts")
    with get_context("spawn").Pool(asked.jobs) as pool:
        for lucky in (False, True):
            ends = pool.map(partial(one, lucky=lucky, search=search), shares)
            told = [end for share in ends for end in share]
            hits = sum(t.verdict == "better" and (t.right or not lucky) for t in told)
            low, high = wilson_interval(hits, len(told))
            kind = "one is 8 % better" if lucky else "no difference"
            launches = statistics.mean(t.launches for t in told)
            counts = dict(Counter(t.verdict for t in told))
            span = f"{low:.1%} to {high:.1%}"
            print(f"{kind:<18}{hits / len(told):>9.1%}{span:>18}{launches:>10.1f}  {counts}")


if __name__ == "__main__":
    main()
