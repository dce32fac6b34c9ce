"""How often an early stop is wrong, and how much replay time it saves.

    python benchmarks/early_stop.py [--replays 10000] [--seed 0]

Random search on the simulated engine in virtual time: four workloads, five objectives with a limit,
launches with random settings and 2 % noise. Every replay is run to its end; then the rules look at
it as they would have during it. A stop is wrong if the whole replay meets every limit and beats the
best before it. Hopeless are replays that do not. Prints one row per workload and rule: replays,
hopeless ones, stops, wrong stops, and the share of the seconds of replay and drain that the stops
saved, of the hopeless replays and of all. `off by` compares `saved_s`, which a trial's record
states, with what was really saved. Bars, for the exact rules: no wrong stop, 40 % of the hopeless
replays' time; exit code 1 below them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from autotune.measure.metrics import client_metrics
from autotune.measure.scoring import request_limits, resolve_limit, violation
from autotune.replay.glimpse import Glimpse
from autotune.replay.options import ReplayOptions
from autotune.replay.records import PlannedRequest, ReplayResult
from autotune.replay.replayer import HOPELESS
from autotune.search.early_stop import EarlyStop, Mode, bars
from autotune.simulator.config import resolve_config
from autotune.simulator.memory import plan_memory
from autotune.simulator.profile import load_profile
from autotune.simulator.scheduler import SimRequest
from autotune.simulator.traffic import Traffic, VirtualArrival
from autotune.simulator.virtual import simulate
from autotune.spec.expressions import Constraint, Objective, parse_constraint, parse_objective
from autotune.study.virtual_records import WholeReplay, ended_replay, whole_replay
from autotune.study.virtual_watch import ended_at

PER_STUDY = 25
NOISE = 0.02
DRAIN_S = 60.0
ROOM_TOKENS = 8192
"""An engine whose KV cache holds less does not start."""
OPTIONS = ReplayOptions(drain_timeout_s=DRAIN_S)
PROFILE = load_profile("quickstart")
GOALS = (
    ("minimize ttft_p95", "tpot_p95 <= 1.1 x baseline"),
    ("minimize e2e_p95", "ttft_p99 <= 1.2 x baseline"),
    ("minimize ttft_p50", "e2e_p90 <= 1.1 x baseline"),
    ("maximize output_throughput", "ttft_p95 <= 1.1 x baseline"),
    ("maximize goodput", "success_rate >= 0.99"),
)
"""Objective, limit; `goodput` counts requests within the absolute limits of `GOOD`."""
GOOD = ("ttft_p95 <= 1s", "tpot_p95 <= 60ms")
RULES: tuple[Mode, ...] = ("exact", "growing_queue")


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests per second, prompt and answer lengths (ranges), requests, and how they bunch."""

    rate: float
    prompt: tuple[int, int]
    answer: tuple[int, int]
    requests: int
    burst: int = 1


SHAPES = {
    "chat": Shape(9.0, (50, 600), (20, 120), 240),
    "documents": Shape(2.2, (2000, 6000), (20, 60), 120),
    "bursts": Shape(8.0, (100, 1200), (10, 60), 240, burst=12),
    "long answers": Shape(3.0, (100, 400), (150, 400), 120),
}


@dataclass(slots=True)
class Row:
    """What is added up over the replays of one workload under one rule. Seconds."""

    replays: int = 0
    hopeless: int = 0
    stopped: int = 0
    wrong: int = 0
    seconds: float = 0.0
    hopeless_s: float = 0.0
    saved_s: float = 0.0
    stated_s: float = 0.0

    def add(self, other: Row) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Study:
    """One random search: its goal, its traffic, the best so far."""

    objective: Objective
    constraints: list[Constraint]
    planned: list[PlannedRequest]
    traffic: Traffic
    baseline: dict[str, float | None] = field(default_factory=dict)
    best: float | None = None

    def replay(self, settings: Mapping[str, object], seed: int) -> WholeReplay | None:
        """A whole replay; None if the engine would not start, or died."""
        config = resolve_config({**settings, "enable_prefix_caching": False}, PROFILE)
        if plan_memory(config, PROFILE).num_blocks * config.block_size < ROOM_TOKENS:
            return None
        run = simulate(self.traffic, config, PROFILE, seed=seed, noise=NOISE)
        return None if run.died else whole_replay(self.planned, run, options=OPTIONS)

    def result(self, whole: WholeReplay) -> ReplayResult:
        return ended_replay(self.planned, whole, options=OPTIONS)

    def metrics(self, result: ReplayResult) -> dict[str, float | None]:
        limits = request_limits(self.constraints)
        return dict(client_metrics(result.records, result.window_s, limits).metrics)

    def value(self, result: ReplayResult) -> float | None:
        """The objective's value, None if a limit is broken or it has none."""
        metrics = self.metrics(result)
        for constraint in self.constraints:
            limit, found = resolve_limit(constraint, self.baseline), metrics[constraint.metric.key]
            if limit is None or found is None or violation(found, constraint.op, limit) > 0:
                return None
        return metrics[self.objective.metric.key]

    def beats(self, value: float | None) -> bool:
        """As good as the best counts: who has fewer changes would decide."""
        if value is None or self.best is None:
            return value is not None
        return value <= self.best if self.objective.direction == "minimize" else value >= self.best

    def stopped(self, whole: WholeReplay, mode: Mode) -> tuple[float, EarlyStop | None]:
        """The seconds of the replay under a rule, and what ended it."""
        reach = bars([self.objective], self.constraints, baseline=self.baseline, to_beat=self.best)
        watches: list[EarlyStop] = []

        def ask() -> Callable[[Glimpse], bool]:
            watch = EarlyStop(self.planned, reach, self.constraints, mode=mode, drain_s=DRAIN_S)
            watches.append(watch)
            return lambda glimpse: watch.look(glimpse, {})

        result = ended_replay(
            self.planned, whole, options=OPTIONS,
            hopeless_at=lambda records, end_s: ended_at(
                records, end_s, ask, exact=mode == "exact"
            ),
        )  # fmt: skip
        return result.wall_s, watches[-1] if result.aborted == HOPELESS else None


def study(shape: Shape, goal: tuple[str, str], rng: Random) -> Study:
    planned, arrivals, at_s = [], [], 0.0
    rate = shape.rate * rng.uniform(0.7, 1.3)
    for index in range(shape.requests):
        if index % shape.burst == 0:
            at_s += rng.expovariate(rate / shape.burst)
        prompt, answer = rng.randint(*shape.prompt), rng.randint(*shape.answer)
        request = SimRequest(id=str(index), prompt=range(prompt), output_tokens=answer)
        arrivals.append(VirtualArrival(at_s=at_s, request=request))
        planned.append(
            PlannedRequest(index=index, due_s=at_s, prompt=range(prompt), output_tokens=answer)
        )
    limits = [goal[1], *(GOOD if "goodput" in goal[0] else ())]
    return Study(
        objective=parse_objective(goal[0]),
        constraints=[parse_constraint(text) for text in limits],
        planned=planned,
        traffic=Traffic(arrivals),
    )


def settings(rng: Random) -> dict[str, object]:
    seqs = rng.choice((4, 8, 16, 32, 64, 128))
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": rng.choice((256, 512, 1024, 2048, 4096, 8192)),
        "gpu_memory_utilization": rng.choice((0.9, 0.92, 0.94)),
        "enforce_eager": rng.random() < 0.2,
        "long_prefill_token_threshold": rng.choice((0, 0, 256)),
    }


def searched(shape: Shape, goal: tuple[str, str], seed: int) -> Iterator[tuple[Mode, Row]]:
    """One study: the figures of each of its replays under each rule."""
    rng = Random(seed)
    one = study(shape, goal, rng)
    begun = one.replay({"max_num_batched_tokens": 2048, "max_num_seqs": 64}, rng.randrange(1 << 30))
    assert begun is not None
    one.baseline = one.metrics(one.result(begun))
    one.best = one.value(one.result(begun))
    for _ in range(PER_STUDY):
        whole = one.replay(settings(rng), rng.randrange(1 << 30))
        if whole is None:
            continue
        result = one.result(whole)
        value = one.value(result)
        hopeless = not one.beats(value)
        for mode in RULES:
            seconds, stop = one.stopped(whole, mode)
            stopped = stop is not None
            stated = stop.end.saved_s if stop is not None and stop.end is not None else 0.0
            yield mode, Row(
                1, hopeless, stopped, stopped and not hopeless, result.wall_s,
                result.wall_s * hopeless, result.wall_s - seconds, stated,
            )  # fmt: skip
        if not hopeless:
            one.best = value


def shown(name: str, mode: str, row: Row) -> str:
    share = row.saved_s / row.hopeless_s if row.hopeless_s else math.nan
    off = row.stated_s / row.saved_s - 1 if row.saved_s else math.nan
    return (
        f"{name:<14}{mode:<15}{row.replays:>8}{row.hopeless:>10}{row.stopped:>9}{row.wrong:>7}"
        f"{share:>14.0%}{row.saved_s / row.seconds:>10.0%}{off:>+9.0%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    totals = {mode: Row() for mode in RULES}
    rows = {(name, mode): Row() for name in SHAPES for mode in RULES}
    number = options.seed * 1_000_000
    while totals["exact"].replays < options.replays:
        for place, (name, shape) in enumerate(SHAPES.items()):
            number += 1
            goal = GOALS[(number + place) % len(GOALS)]
            for mode, row in searched(shape, goal, number):
                rows[name, mode].add(row)
                totals[mode].add(row)
    print(
        f"{'workload':<14}{'rule':<15}{'replays':>8}{'hopeless':>10}{'stopped':>9}{'wrong':>7}"
        f"{'of hopeless':>14}{'of all':>10}{'off by':>9}"
    )
    for (name, mode), row in rows.items():
        print(shown(name, mode, row))
    for mode, row in totals.items():
        print(shown("all", mode, row))
    print(f"{time.monotonic() - began:.0f} s")
    exact = totals["exact"]
    return 0 if exact.wrong == 0 and exact.saved_s >= 0.4 * exact.hopeless_s else 1


if __name__ == "__main__":
    raise SystemExit(main())
