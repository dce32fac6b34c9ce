from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.workload.prompts import DEFAULT_VOCAB, PromptBuilder, vocab_of
from autotune.workload.scenarios import make
from autotune.workload.statistics import hit_tokens
from autotune.workload.trace import Request


def request(tokens: int, blocks: tuple[int, ...] = (), session: str | None = None) -> Request:
    return Request(at_s=0.0, input_tokens=tokens, output_tokens=1, blocks=blocks, session=session)


@given(
    shared=st.lists(st.integers(0, 10**6), max_size=4),
    tails=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    block_size=st.integers(2, 80),
    cut=st.integers(0, 79),
    vocab=st.integers(16, 200_000),
)
@settings(deadline=None)
def test_equal_leading_ids_give_equal_leading_tokens_and_others_differ(
    shared: list[int], tails: tuple[int, int], block_size: int, cut: int, vocab: int
) -> None:
    builder = PromptBuilder(vocab, "salt", block_size)
    tokens = (len(shared) + 1) * block_size - cut % (block_size - 1)
    one, two = (builder.tokens(request(tokens, (*shared, tail))) for tail in tails)
    assert len(one) == len(two) == tokens
    known = len(shared) * block_size
    assert one[:known] == two[:known]
    low, high = min(1000, vocab // 8), vocab - vocab // 20
    assert all(low <= token < high for token in one + two)
    span = high - low
    if (tails[0] - tails[1]) % span:
        assert one[known] != two[known]
    if tails[0] == tails[1]:
        assert one == two


@given(salts=st.lists(st.text(max_size=6), min_size=2, max_size=2, unique=True))
def test_another_salt_gives_other_prompts(salts: list[str]) -> None:
    one, two = (PromptBuilder(32_000, s, 64).tokens(request(64, (3,))) for s in salts)
    assert one[:16] != two[:16]


def test_requests_without_ids_share_nothing_and_repeat_in_order() -> None:
    asked = [request(40)] * 5
    first = PromptBuilder(32_000, "a", 16)
    again = PromptBuilder(32_000, "a", 16)
    prompts = [first.tokens(r) for r in asked]
    assert prompts == [again.tokens(r) for r in asked]
    assert len({prompt[0] for prompt in prompts}) == len(asked)


def test_turns_of_a_session_extend_each_other() -> None:
    builder = PromptBuilder(32_000, "a", 16)
    short = builder.tokens(request(30, session="s0"))
    assert builder.tokens(request(90, session="s0"))[:30] == short
    assert builder.tokens(request(30, session="s1")) != short


def test_prompts_are_the_same_in_another_process() -> None:
    code = (
        "from autotune.workload.prompts import PromptBuilder\n"
        "from autotune.workload.trace import Request\n"
        "b = PromptBuilder(50000, 'x', 8)\n"
        "print(b.tokens(Request(at_s=0, input_tokens=20, output_tokens=1, blocks=(1, 2, 3))))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = PromptBuilder(50_000, "x", 8).tokens(request(20, (1, 2, 3)))
    assert json.loads(other.stdout) == here


def test_an_engine_with_small_blocks_finds_the_reuse_of_the_trace_and_no_more() -> None:
    trace = make("quickstart")
    builder = PromptBuilder(49_152, "m", trace.block_size)
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for each in trace.requests:
        prompt = builder.tokens(each)
        prefixes = [tuple(prompt[:end]) for end in range(16, len(prompt) + 1, 16)]
        hits += 16 * sum(prefix in seen for prefix in prefixes)
        seen.update(prefixes)
    assert hits == sum(hit_tokens(trace.requests, trace.block_size))


def test_ids_that_do_not_cover_the_prompt_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer blocks"):
        PromptBuilder(32_000, "a", 16).tokens(request(40, (1, 2)))


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ('{"vocab_size": 49152}', 49152),
        ('{"text_config": {"vocab_size": 262144}}', 262144),
        ('{"vocab_size": "many"}', DEFAULT_VOCAB),
        ("[]", DEFAULT_VOCAB),
        ("not json", DEFAULT_VOCAB),
    ],
)
def test_the_vocabulary_comes_from_the_models_folder(
    tmp_path: Path, config: str, size: int
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert vocab_of(str(tmp_path)) == size


def test_a_model_that_is_no_folder_has_the_default_vocabulary() -> None:
    assert vocab_of("acme/tiny-14b") == DEFAULT_VOCAB
