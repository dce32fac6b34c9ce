from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.workload import tokens
from autotune.workload.formats.format import ReadOptions
from autotune.workload.formats.text import Texts
from autotune.workload.hashing import BlockTree, PrefixHasher
from autotune.workload.prompts import PromptBuilder
from autotune.workload.reader import read_trace
from autotune.workload.statistics import hit_tokens
from autotune.workload.synthesis import Process
from autotune.workload.timing import Arrivals
from autotune.workload.trace import Request
from autotune.workload.writer import digest

NOW = Arrivals(process=Process(kind="constant", rate=1.0))
WORDS = {"[UNK]": 0, "the": 1, "cat": 2, "sat": 3, "user": 4, "dog": 5}


def tokenizer_folder(folder: Path) -> Path:
    """A word-level tokenizer of six words, with one special token."""
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
                "added_tokens": [{
                    "id": 6, "content": "<eos>", "single_word": False, "lstrip": False,
                    "rstrip": False, "normalized": False, "special": True}],
                "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
                "model": {"type": "WordLevel", "vocab": {**WORDS, "<eos>": 6},
                          "unk_token": "[UNK]"},
            }
        )
    )  # fmt: skip
    return folder


def prompts_file(folder: Path, *texts: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": t, "output_tokens": 4}) + "\n" for t in texts))
    return path


@given(
    shared=st.binary(max_size=64), tails=st.tuples(st.binary(max_size=40), st.binary(max_size=40))
)
def test_equal_beginnings_have_equal_ids_and_the_salt_leaves_no_trace(
    shared: bytes, tails: tuple[bytes, bytes]
) -> None:
    texts = [shared + tail for tail in tails]
    results = []
    for _ in range(2):
        hasher = PrefixHasher(4)
        results.append([hasher.ids(text) for text in texts])
    assert results[0] == results[1]
    one, two = results[0]
    assert [len(ids) for ids in (one, two)] == [-(-len(t) // 16) for t in texts]
    common = 0
    while texts[0][: 16 * (common + 1)] == texts[1][: 16 * (common + 1)]:
        common += 1
        if 16 * common >= max(map(len, texts)):
            break
    for place, (a, b) in enumerate(zip(one, two, strict=False)):
        assert (a == b) == (place < common)


def test_ids_are_fitted_to_a_known_number_of_blocks() -> None:
    hasher = PrefixHasher(2)
    whole = hasher.ids(b"12345678abcdefgh")
    assert hasher.ids(b"12345678abcdefgh", 1) == whole[:1]
    longer = hasher.ids(b"12345678", 3)
    assert longer[0] == whole[0]
    assert not set(longer[1:]) & set(whole)
    assert not set(longer[1:]) & set(hasher.ids(b"12345678", 3)[1:])


def test_scopes_of_foreign_ids_stay_apart() -> None:
    tree = BlockTree()
    assert tree.dense([7, 9]) == (0, 1)
    assert tree.dense([7, 9], scope=2) == (2, 3)
    assert tree.dense([7, 8]) == (0, 4)


def test_without_a_tokenizer_lengths_are_estimated_and_marked(tmp_path: Path) -> None:
    trace = read_trace(prompts_file(tmp_path, "x" * 41), arrivals=NOW, model="acme/unknown")
    assert trace.requests[0].input_tokens == 11
    assert trace.meta["lengths"] == "estimated"
    assert "4 bytes per token" in " ".join(trace.notes)


def test_a_local_tokenizer_counts_exactly(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    folder = tokenizer_folder(tmp_path)
    path = prompts_file(tmp_path, "the cat sat the cat", "the cat sat")
    for options in ({"tokenizer": folder}, {"model": str(folder)}):
        trace = read_trace(path, arrivals=NOW, block_size=2, **options)  # type: ignore[arg-type]
        assert [r.input_tokens for r in trace.requests] == [5, 3]
        assert [r.blocks for r in trace.requests] == [(0, 1, 2), (0, 3)]
        assert trace.meta["lengths"] == f"tokenizer {tmp_path.name}"
        assert trace.notes == (NOW.note,)


def test_a_missing_package_or_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = prompts_file(tmp_path, "the cat")
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        read_trace(path, arrivals=NOW, tokenizer=tmp_path)
    folder = tokenizer_folder(tmp_path)
    monkeypatch.setattr(tokens, "is_available", lambda: False)
    with pytest.raises(InputError, match="needs the `tokenizers` package") as caught:
        read_trace(path, arrivals=NOW, tokenizer=folder)
    assert "autotune[text]" in (caught.value.hint or "")
    assert read_trace(path, arrivals=NOW, model=str(folder)).meta["lengths"] == "estimated"


@pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="needs tokenizers")
def test_a_file_that_is_no_tokenizer_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        read_trace(prompts_file(tmp_path, "the"), arrivals=NOW, tokenizer=tmp_path)


def test_turns_extend_the_prompt_and_the_answer_before_them(tmp_path: Path) -> None:
    turns = [("human", "a" * 96), ("gpt", "b" * 64), ("human", "c" * 40), ("gpt", "d" * 12)]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"conversations": [{"from": w, "value": v} for w, v in turns]}]))
    trace = read_trace(path, arrivals=NOW)
    one, two = trace.requests
    assert (one.session, one.turn, one.gap_s) == ("s0", 0, None)
    assert (two.session, two.turn, two.gap_s) == ("s0", 1, 0.0)
    assert two.input_tokens >= one.input_tokens + one.output_tokens
    whole = one.input_tokens // 16
    assert two.blocks[:whole] == one.blocks[:whole]
    builder = PromptBuilder(32_000, "salt", trace.block_size)
    first, second = builder.tokens(one), builder.tokens(two)
    assert second[: 16 * whole] == first[: 16 * whole]
    assert hit_tokens(trace.requests, 16)[1] == 16 * whole


def test_answers_without_text_hold_their_place(tmp_path: Path) -> None:
    turns = [{"text": "a" * 59, "output_length": 40, "timestamp": 1000},
             {"text": "b" * 59, "output_length": 8, "delay": 500}]  # fmt: skip
    path = tmp_path / "multi.jsonl"
    path.write_text(json.dumps({"session_id": "anna", "turns": turns}) + "\n")
    one, two = read_trace(path).requests
    assert (one.input_tokens, two.input_tokens) == (17, 17 + 40 + 17)
    assert two.blocks[0] == one.blocks[0]
    assert (two.session, two.turn, two.gap_s, two.at_s) == ("s0", 1, 0.5, 0.5)


def test_tools_and_parts_of_messages_count_and_images_do_not() -> None:
    texts = Texts(ReadOptions())
    message = ("user", "look at this")
    plain = texts.prompt([message])
    tools = texts.prompt([message], tools=[{"name": "search"}])
    assert tools.tokens > plain.tokens
    assert tools.blocks[0] != plain.blocks[0]


@given(ids=st.sets(st.integers(0, 2100), max_size=60), vocab=st.integers(64, 2000), seed=st.text())
def test_special_ids_are_never_drawn(ids: set[int], vocab: int, seed: str) -> None:
    low, high = min(1000, vocab // 8), vocab - vocab // 20
    if high - low - len(ids) < 2:
        return
    builder = PromptBuilder(vocab, seed, 16, special_ids=ids)
    found: list[int] = []
    for n in range(6):
        found += builder.tokens(Request(at_s=0, input_tokens=64, output_tokens=1, blocks=(n,) * 4))
        found += builder.tokens(Request(at_s=0, input_tokens=64, output_tokens=1))
    assert not ids & set(found)
    assert all(low <= token < high for token in found)


def test_special_ids_come_from_the_models_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"11": {}, "x": {}}}')
    assert tokens.special_ids_of(str(tokenizer_folder(tmp_path))) == {6, 11}
    assert tokens.special_ids_of("acme/tiny-14b") == frozenset()
    (tmp_path / "tokenizer.json").write_text("[]")
    assert tokens.special_ids_of(str(tmp_path)) == {11}


def test_chosen_arrivals_keep_the_order_and_the_pauses_of_sessions() -> None:
    from autotune.workload.timing import arriving

    def request(session: str | None, turn: int, gap_s: float | None) -> Request:
        return Request(
            at_s=0.0, input_tokens=1, output_tokens=1, session=session, turn=turn, gap_s=gap_s
        )

    asked = [request("a", 0, None), request("a", 1, 2.5), request(None, 0, None),
             request("a", 2, 1.0), request("b", 0, None)]  # fmt: skip
    assert [r.at_s for r in arriving(asked, NOW)] == [0.0, 2.5, 1.0, 3.5, 2.0]
    poisson = Arrivals(process=Process(kind="poisson", rate=5.0), seed=3)
    assert arriving(asked, poisson) == arriving(asked, poisson)


def test_the_digest_sees_kept_text(tmp_path: Path) -> None:
    path = prompts_file(tmp_path, "the cat")
    plain, kept = (read_trace(path, arrivals=NOW, keep_text=k) for k in (False, True))
    assert digest(plain) != digest(kept)
