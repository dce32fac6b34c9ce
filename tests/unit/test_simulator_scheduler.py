"""Continuous batching: what is computed when, and what never happens."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.simulator.blocks import BlockPool, block_hashes
from autotune.simulator.config import EngineConfig
from autotune.simulator.scheduler import Running, Scheduler, SimRequest, Slot, work_of

BLOCK = 4


def config(**changes: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "max_model_len": 256,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.9,
        "block_size": BLOCK,
    }
    return EngineConfig(**{**values, **changes})


def request(name: str, prompt: int, output: int = 1, *, first: int | None = None) -> SimRequest:
    start = zlib.crc32(name.encode()) * 1000 if first is None else first
    return SimRequest(id=name, prompt=range(start, start + prompt), output_tokens=output)


class Bench:
    """Drives a scheduler as the engine does, one step composed ahead."""

    def __init__(self, settings_: EngineConfig, blocks: int, *, ahead: bool = True) -> None:
        self.scheduler = Scheduler(settings_, blocks)
        self.ahead = ahead
        self.steps: list[list[Slot]] = []
        self.finished: list[str] = []
        self._next: list[Slot] = []

    def add(self, *requests: SimRequest) -> list[Running]:
        made = [self.scheduler.make(item, 0.0) for item in requests]
        for item in made:
            self.scheduler.enqueue(item)
        return made

    def step(self) -> list[Slot]:
        slots = self._next or self.scheduler.compose()
        self._next = self.scheduler.compose() if self.ahead and slots else []
        self.check(slots)
        self.steps.append(slots)
        for sequence in self.scheduler.settle(slots):
            if sequence.emitted == sequence.request.output_tokens:
                self.finished.append(sequence.request.id)
        return slots

    def check(self, slots: list[Slot]) -> None:
        limits = self.scheduler.config
        assert sum(slot.tokens for slot in slots) <= limits.max_num_batched_tokens
        assert len(self.scheduler.running) <= limits.max_num_seqs
        held = {block for item in self.scheduler.running for block in item.blocks}
        assert len(held) + self.scheduler.pool.free == self.scheduler.pool.num_blocks
        assert self.scheduler.pool.free >= 0
        for item in self.scheduler.running:
            assert item.computed <= len(item.blocks) * limits.block_size

    def drain(self, limit: int = 5000) -> None:
        while self.scheduler.running or self.scheduler.waiting or self._next:
            self.step()
            assert len(self.steps) < limit, "the scheduler makes no progress"


def shape(slots: list[Slot]) -> list[tuple[str, int]]:
    return [(slot.sequence.request.id, slot.tokens) for slot in slots]


def test_decodes_come_first_then_part_prefilled_then_waiting_in_order() -> None:
    bench = Bench(config(), 100, ahead=False)
    bench.add(request("a", 10, 5), request("b", 40, 5), request("c", 6, 5))
    assert shape(bench.step()) == [("a", 10), ("b", 22)]
    assert shape(bench.step()) == [("a", 1), ("b", 18), ("c", 6)]
    assert shape(bench.step()) == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize(("ahead", "second"), [(False, ["c", "b"]), (True, ["c"])])
def test_a_finished_request_keeps_its_seat_one_step_longer_when_composed_ahead(
    ahead: bool, second: list[str]
) -> None:
    bench = Bench(config(max_num_seqs=2), 100, ahead=ahead)
    bench.add(request("a", 4, 1), request("c", 4, 9), request("b", 4, 1))
    assert [name for name, _ in shape(bench.step())] == ["a", "c"]
    assert [name for name, _ in shape(bench.step())] == second
    assert [name for name, _ in shape(bench.step())] == (["c", "b"] if ahead else ["c"])


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_the_step() -> None:
    bench = Bench(config(enable_chunked_prefill=False), 100, ahead=False)
    bench.add(request("a", 20, 3), request("b", 20, 3))
    assert shape(bench.step()) == [("a", 20)]
    assert shape(bench.step()) == [("a", 1), ("b", 20)]


def test_the_long_prefill_threshold_lets_a_short_prompt_into_the_same_step() -> None:
    bench = Bench(config(long_prefill_token_threshold=8), 100, ahead=False)
    bench.add(request("long", 60, 1), request("short", 6, 1))
    assert shape(bench.step()) == [("long", 8), ("short", 6)]


def test_a_shared_prefix_is_computed_once_and_only_in_whole_blocks() -> None:
    bench = Bench(config(), 100, ahead=False)
    first, second = request("a", 10, 1, first=0), request("b", 10, 1, first=0)
    bench.add(first)
    bench.drain()
    (again,) = bench.add(second)
    assert shape(bench.step()) == [("b", 2)]
    assert again.cached_tokens == 8
    assert bench.scheduler.counters.prefix_hits == 8
    assert bench.scheduler.counters.prefix_queries == 20


def test_a_fully_cached_prompt_still_computes_one_block() -> None:
    bench = Bench(config(), 100, ahead=False)
    for name in "ab":
        bench.add(request(name, 8, 1, first=0))
        bench.drain()
    assert [shape(step) for step in bench.steps] == [[("a", 8)], [("b", 4)]]


def test_another_salt_or_no_caching_shares_nothing() -> None:
    tokens = range(12)
    assert block_hashes(tokens, BLOCK) == block_hashes(list(tokens), BLOCK)
    assert not set(block_hashes(tokens, BLOCK)) & set(block_hashes(tokens, BLOCK, "salt"))
    bench = Bench(config(enable_prefix_caching=False), 100, ahead=False)
    bench.add(request("a", 8, 1, first=0), request("b", 8, 1, first=0))
    assert shape(bench.step()) == [("a", 8), ("b", 8)]


def test_the_least_recently_freed_block_is_forgotten_first_and_tails_before_heads() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    for block, value in zip(blocks, (11, 12, 13, 14), strict=True):
        pool.remember(block, value)
    pool.release(blocks[2:])
    pool.release(blocks[:2])
    assert pool.allocate(1) == [blocks[3]]
    assert pool.match([11, 12], 2) == blocks[:2]
    assert pool.match([13], 1) == [blocks[2]]
    assert pool.match([14], 1) == []


def test_a_request_is_not_admitted_before_its_whole_prompt_fits_the_cache() -> None:
    bench = Bench(config(), 12, ahead=False)
    bench.add(request("a", 24, 4), request("b", 28, 1))
    bench.step()
    assert [item.request.id for item in bench.scheduler.waiting] == ["b"]
    bench.drain()
    assert bench.finished == ["a", "b"]
    assert bench.scheduler.counters.preemptions == 0


def test_without_a_free_block_the_last_admitted_starts_again_and_still_finishes() -> None:
    bench = Bench(config(enable_prefix_caching=False), 8)
    first, second = bench.add(request("a", 12, 16), request("b", 12, 16))
    bench.drain()
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert bench.finished == ["a", "b"]
    assert second.emitted == 16


def test_an_aborted_request_frees_its_blocks_wherever_it_is() -> None:
    bench = Bench(config(max_num_seqs=1), 20, ahead=False)
    running, waiting = bench.add(request("a", 12, 9), request("b", 12, 9))
    bench.step()
    bench.scheduler.abort(waiting)
    bench.scheduler.abort(running)
    assert bench.scheduler.pool.free == 20
    assert not bench.scheduler.compose()
    assert bench.scheduler.pool.forget()


def test_step_work_counts_pairs_of_prefill_and_context_of_decode() -> None:
    bench = Bench(config(), 100, ahead=False)
    bench.add(request("a", 8, 3), request("b", 40, 1))
    first = work_of(bench.step())
    assert (first.tokens, first.prefills, first.context) == (32, 2, 0)
    assert first.pairs == 8 * 4 + 24 * 12
    second = work_of(bench.step())
    assert (second.tokens, second.prefills, second.context) == (17, 1, 9)
    assert second.pairs == 16 * (24 + 8)


requests = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 3), st.integers(0, 3)),
    min_size=1,
    max_size=14,
)


@settings(deadline=None, max_examples=150)
@given(
    requests,
    st.integers(8, 48),
    st.integers(1, 8),
    st.integers(20, 60),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 5, 16]),
)
def test_limits_hold_and_everything_finishes_whatever_comes(
    given_: list[tuple[int, int, int, int]],
    budget: int,
    seqs: int,
    blocks: int,
    caching: bool,
    ahead: bool,
    threshold: int,
) -> None:
    bench = Bench(
        config(
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            enable_prefix_caching=caching,
            long_prefill_token_threshold=threshold,
        ),
        blocks,
        ahead=ahead,
    )
    sequences = []
    for index, (prompt, output, family, pause) in enumerate(given_):
        item = SimRequest(
            id=str(index),
            prompt=[
                *range(family * 1000, family * 1000 + prompt // 2),
                *range(prompt - prompt // 2),
            ],
            output_tokens=output,
        )
        sequences += bench.add(item)
        for _ in range(pause):
            bench.step()
    bench.drain()
    assert sorted(bench.finished, key=int) == [str(index) for index in range(len(given_))]
    assert [s.emitted for s in sequences] == [s.request.output_tokens for s in sequences]
    assert bench.scheduler.pool.free == blocks
    if bench.scheduler.counters.preemptions == 0:
        seen: list[str] = []
        for step in bench.steps:
            seen += [name for name, _ in shape(step) if name not in seen]
        assert seen == sorted(seen, key=int)


@pytest.mark.parametrize("ahead", [True, False])
def test_equal_input_gives_equal_steps(ahead: bool) -> None:
    def run() -> list[list[tuple[str, int]]]:
        bench = Bench(config(), 24, ahead=ahead)
        bench.add(*(request(str(i), 10 + 7 * i % 30, 6, first=100 * (i % 3)) for i in range(9)))
        bench.drain()
        return [shape(step) for step in bench.steps]

    assert run() == run()
