from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.workload.scenarios import SCENARIOS, make
from autotune.workload.scripted import AGENT_TURNS, CONTEXT_LIMIT, TIERS, PromptTree
from autotune.workload.statistics import hit_tokens, prefix_reuse
from autotune.workload.synthesis import Process
from autotune.workload.trace import Trace

SEGMENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 40)), min_size=1, max_size=5
)


def stream(segments: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(name, i) for name, tokens in segments for i in range(tokens)]


@given(st.lists(SEGMENTS, min_size=2, max_size=6))
def test_prompts_told_as_segments_share_their_common_whole_blocks(
    prompts: list[list[tuple[str, int]]],
) -> None:
    tree = PromptTree(8)
    placed = [(stream(segments), tree.blocks(segments)) for segments in prompts]
    for tokens, blocks in placed:
        assert len(blocks) == -(-len(tokens) // 8)
        for other, others in placed:
            for k in range(min(len(blocks), len(others))):
                end = 8 * (k + 1)
                if blocks[k] == others[k]:
                    assert tokens[:end] == other[:end]
                elif end <= min(len(tokens), len(other)):
                    assert tokens[:end] != other[:end] or cut_apart(prompts)


def cut_apart(prompts: list[list[tuple[str, int]]]) -> bool:
    """Equal tokens told by different segments (a name twice in a row) may count as different."""
    return any(a[0] == b[0] for prompt in prompts for a, b in pairwise(prompt))


def test_prompt_tiers_are_ten_of_each_and_share_nothing() -> None:
    trace = make("prompt-tiers")
    assert Counter(r.input_tokens for r in trace.requests) == dict.fromkeys(TIERS, 10)
    assert prefix_reuse(trace) == 0.0


def test_pairs_share_twenty_thousand_tokens_and_no_more() -> None:
    trace = make("shared-prefix-pairs")
    assert len(trace.requests) == 40
    assert {r.input_tokens for r in trace.requests} == {21 * 1024}
    assert sorted(hit_tokens(trace.requests, trace.block_size)) == [0] * 20 + [20 * 1024] * 20


def test_agents_have_twenty_turns_that_extend_each_other() -> None:
    trace = make("agent-dialogue")
    sessions = Counter(r.session for r in trace.requests)
    assert set(sessions.values()) == {AGENT_TURNS}
    for name in sessions:
        own = [r for r in trace.requests if r.session == name]
        assert [r.turn for r in own] == list(range(AGENT_TURNS))
        assert [r.gap_s is None for r in own] == [True] + [False] * (AGENT_TURNS - 1)
        for before, after in pairwise(own):
            whole = before.input_tokens // trace.block_size
            assert after.blocks[:whole] == before.blocks[:whole]
            assert after.input_tokens > before.input_tokens + before.output_tokens


def test_rag_prompts_hold_instructions_and_two_to_eight_documents() -> None:
    trace = make("rag-documents")
    assert {(r.input_tokens - 512 - 20) // 1024 for r in trace.requests} == set(range(2, 9))
    assert {r.blocks[0] for r in trace.requests} == {0}


def test_near_limit_prompts_fit_and_some_fill_the_context() -> None:
    totals = [r.input_tokens + r.output_tokens for r in make("near-limit").requests]
    assert min(totals) >= 0.98 * CONTEXT_LIMIT
    assert totals.count(CONTEXT_LIMIT) == len(totals) // 5
    assert max(totals) == CONTEXT_LIMIT


def test_concurrency_steps_have_as_many_streams_each_waiting_for_its_answer() -> None:
    trace = make("concurrency-steps")
    streams = Counter(r.session.split()[1] for r in trace.requests if r.session and not r.turn)
    assert streams == {"0": 1, "1": 2, "2": 4, "3": 8}
    assert {r.gap_s for r in trace.requests if r.turn} == {0.0}
    assert prefix_reuse(trace) == 0.0


def test_bursts_are_twenty_within_half_a_second() -> None:
    times = [r.at_s for r in make("bursts").requests]
    for number in range(6):
        start = number * 15.0
        assert sum(start <= t <= start + 0.5 for t in times) >= 20


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_takes_seed_rate_duration_and_arrivals(name: str) -> None:
    one = make(name, seed=1, duration_s=20.0)
    assert one == make(name, seed=1, duration_s=20.0)
    if name not in ("prompt-tiers", "concurrency-steps"):  # nothing in them is left to chance
        assert one.requests != make(name, seed=2, duration_s=20.0).requests
    fast = make(name, seed=1, duration_s=200.0, arrivals="constant", rate=5.0)
    units = fast.requests[-1].at_s if fast.requests else 0
    assert len(fast.requests) == pytest.approx(5.0 * 200, rel=0.12), units
    assert fast.meta["arrivals"] == "constant"
    assert fast.meta["title"] == SCENARIOS[name].title
    times = [r.at_s for r in fast.requests]
    assert times == sorted(times)


def test_recorded_arrivals_are_kept_or_scaled_to_a_rate() -> None:
    recorded = [5.0, 5.5, 7.0, 11.0]
    as_they_were = make("chat-short", recorded=recorded)
    assert [r.at_s for r in as_they_were.requests] == [0.0, 0.5, 2.0, 6.0]
    assert as_they_were.meta["arrivals"] == "recorded"
    faster = make("chat-short", recorded=recorded, rate=4 / 3)
    assert [r.at_s for r in faster.requests] == [0.0, 0.25, 1.0, 3.0]
    pairs = make("shared-prefix-pairs", recorded=recorded)
    assert len(pairs.requests) == 8


def test_what_makes_no_traffic_is_refused() -> None:
    for arguments, message in (
        ({"rate": 0.0}, "the rate must be above 0"),
        ({"duration_s": -1.0}, "the duration must be above 0"),
        ({"arrivals": "recorded"}, "recorded arrivals need a recording"),
    ):
        with pytest.raises(InputError, match=message):
            make("bursts", **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a rate"):
        Process(kind="poisson")


def test_gamma_arrivals_are_burstier_than_poisson() -> None:
    def variation(trace: Trace) -> float:
        gaps = [b.at_s - a.at_s for a, b in pairwise(trace.requests)]
        mean = sum(gaps) / len(gaps)
        return sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2

    poisson = variation(make("chat-short", duration_s=1000.0, arrivals="poisson"))
    gamma = variation(make("chat-short", duration_s=1000.0, arrivals="gamma"))
    assert poisson == pytest.approx(1.0, abs=0.15)
    assert gamma == pytest.approx(2.0, abs=0.4)
