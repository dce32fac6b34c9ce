"""Cold and warm starts told apart, and nothing begun that cannot finish: over many seeds."""

from __future__ import annotations

from random import Random

import pytest

from autotune.search.budget import Budget, may_start
from autotune.search.start_cost import PastLaunch, compile_key, expected

FLAGS = ("max-num-batched-tokens", "max-num-seqs")


def launch(key: str, start_s: float, rest_s: float = 60.0) -> PastLaunch:
    return PastLaunch(key=key, start_s=start_s, total_s=start_s + rest_s)


def test_only_flags_of_the_compile_key_make_a_start_cold() -> None:
    one = compile_key({"max-num-seqs": 8, "gpu-memory-utilization": 0.9}, FLAGS)
    assert one == compile_key({"max-num-seqs": 8, "gpu-memory-utilization": 0.95}, FLAGS)
    assert one != compile_key({"max-num-seqs": 16}, FLAGS)
    assert one != compile_key({"max-num-seqs": 8, "max-num-batched-tokens": 512}, FLAGS)


def test_without_compilation_every_setting_starts_alike() -> None:
    eager = compile_key({"enforce-eager": True, "max-num-seqs": 8}, FLAGS)
    assert eager == compile_key({"enforce-eager": True, "max-num-seqs": 16}, FLAGS)
    assert eager != compile_key({"max-num-seqs": 8}, FLAGS)


def test_nothing_is_expected_before_the_first_launch() -> None:
    assert expected([], "a") is None


def test_a_value_seen_before_is_expected_to_start_warm() -> None:
    past = [launch("a", 200), launch("a", 40), launch("b", 180), launch("a", 42)]
    warm, cold = expected(past, "b"), expected(past, "c")
    assert warm is not None
    assert cold is not None
    assert (warm.start_s, warm.total_s, warm.cold) == (42, 102, False)
    assert (cold.start_s, cold.total_s, cold.cold) == (200, 260, True)


def test_no_warm_start_is_hoped_for_before_one_was_seen() -> None:
    found = expected([launch("a", 200)], "a")
    assert found is not None
    assert (found.start_s, found.cold) == (200, False)


@pytest.mark.parametrize("seed", range(40))
def test_no_launch_that_starts_overruns_the_time_and_more_fit_than_by_one_figure(
    seed: int,
) -> None:
    """A simulated search: cold starts take 200 s, warm ones 30 s, the rest 60 s. By one figure for
    all launches the end is either left unused or overrun by a cold start.
    """
    rng = Random(seed)
    time_s = rng.uniform(900, 4000)
    keys = [str(rng.randrange(6)) for _ in range(200)]

    def run(*, apart: bool) -> tuple[int, float]:
        past, elapsed = [launch("0", 200)], 260.0
        for key in keys:
            totals = [p.total_s for p in past]
            this, warm = expected(past, key), expected(past, "0")
            assert this is not None
            assert warm is not None
            decision = may_start(
                Budget(time_s=time_s),
                elapsed_s=elapsed,
                finished=len(past),
                durations=[warm.total_s] if apart else totals,
                launch_s=this.total_s if apart else None,
            )
            if not decision.allowed:
                if apart:
                    continue  # another candidate may still fit
                break
            cold = key not in {p.key for p in past}
            past.append(launch(key, 200 if cold else 30))
            elapsed += past[-1].total_s
        return len(past), elapsed

    count, elapsed = run(apart=True)
    plain_count, plain_elapsed = run(apart=False)
    assert elapsed <= time_s
    assert count >= plain_count or plain_elapsed > time_s


def test_the_launch_at_hand_outranks_what_others_took() -> None:
    budget = Budget(time_s=100)
    fits = may_start(budget, elapsed_s=0, finished=1, durations=[90], launch_s=95)
    late = may_start(budget, elapsed_s=0, finished=1, durations=[30], launch_s=120)
    assert fits.allowed
    assert not late.allowed
    assert "a launch takes 120 s" in late.reason
