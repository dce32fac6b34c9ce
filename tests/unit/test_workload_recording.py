from __future__ import annotations

import random
import re
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.workload.reader import read_trace
from autotune.workload.recording.conversations import Conversations
from autotune.workload.recording.options import (
    listen_address,
    output_path,
    size_bytes,
    upstream_url,
)
from autotune.workload.recording.prefixes import BLOCK_SIZE, CHUNK_BYTES, PrefixMemory
from autotune.workload.recording.prompt import Prompt, UnrecordableError, prompt_of
from autotune.workload.recording.record_file import RecordFile
from autotune.workload.recording.recorder import Exchange, Recorder
from autotune.workload.recording.stream import Usage

# ---- addresses and sizes


def test_addresses_are_read_and_remote_ones_need_a_word() -> None:
    assert listen_address("127.0.0.1:9000", allow_remote=False) == ("127.0.0.1", 9000)
    assert listen_address("[::1]:9000", allow_remote=False) == ("::1", 9000)
    assert listen_address(":9000", allow_remote=False) == ("127.0.0.1", 9000)
    assert listen_address("localhost:0", allow_remote=False) == ("localhost", 0)
    assert listen_address("0.0.0.0:9000", allow_remote=True) == ("0.0.0.0", 9000)
    for text in ("0.0.0.0:9000", "[::]:9000", "10.0.0.3:9000", "example.org:80"):
        with pytest.raises(InputError, match="can be reached from other machines") as caught:
            listen_address(text, allow_remote=False)
        assert "--allow-remote" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["9000", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", ""])
def test_what_is_no_address_to_listen_on_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no address to listen on"):
        listen_address(text, allow_remote=True)


def test_an_upstream_keeps_its_path_and_loses_its_slash() -> None:
    assert upstream_url("http://127.0.0.1:8000/") == "http://127.0.0.1:8000"
    assert upstream_url("https://gateway/llm") == "https://gateway/llm"


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1:8000", "ftp://a", "http://", "http://a:b", "http://a b", "http://u:p@a",
     "http://a?x=1", "http://[::1", ""],
)  # fmt: skip
def test_what_is_no_upstream_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no address of an engine"):
        upstream_url(text)


def test_sizes_have_units_and_a_least() -> None:
    assert size_bytes("64MB") == 64_000_000
    assert size_bytes("1.5 GiB") == 3 * 2**29
    assert size_bytes("100000") == 100_000
    for text in ("big", "12", "-5MB", "64XB"):
        with pytest.raises(InputError, match="no size of a file"):
            size_bytes(text)


def test_an_output_is_a_new_jsonl_file_in_a_folder_that_exists(tmp_path: Path) -> None:
    assert output_path(tmp_path / "a.jsonl") == tmp_path / "a.jsonl"
    (tmp_path / "b.jsonl").touch()
    for name, why in (("a.zst", "line by line"), ("b.jsonl", "exists"), ("c/a.jsonl", "folder")):
        with pytest.raises(InputError, match=why):
            output_path(tmp_path / name)


# ---- prompts, prefixes, sessions


def ids(*tokens: int) -> Prompt:
    return prompt_of({"prompt": list(tokens), "model": "m"}, chat=False)


def chat(*texts: str) -> Prompt:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return prompt_of({"messages": messages, "model": "m"}, chat=True)


def test_what_a_workload_cannot_express_is_named() -> None:
    for body, is_chat, reason in (
        ({"prompt": ["a", "b"]}, False, "several_prompts"),
        ({"prompt": [[1], [2]]}, False, "several_prompts"),
        ({"prompt": None}, False, "bad_prompt"),
        ({"prompt": [-1]}, False, "bad_prompt"),
        ({"messages": []}, True, "bad_prompt"),
        ({"messages": "hi"}, True, "bad_prompt"),
    ):
        with pytest.raises(UnrecordableError, match=reason):
            prompt_of(body, chat=is_chat)
    assert prompt_of({"prompt": ["only"]}, chat=False).content == b"only"
    assert prompt_of({"prompt": [[5, 6]]}, chat=False).tokens == 2


@given(st.integers(0, 2**32), st.integers(2, 12))
@settings(max_examples=60)
def test_token_prompts_share_exactly_their_common_whole_blocks(seed: int, count: int) -> None:
    rng = random.Random(seed)
    base = [rng.randrange(1000) for _ in range(600)]
    prompts: list[list[int]] = []
    for _ in range(count):
        shared = rng.randrange(0, 500)
        own = [rng.randrange(1000, 2000) for _ in range(rng.randrange(1, 200))]
        prompts.append(base[:shared] + own)
    memory = PrefixMemory()
    placed = []
    for tokens in prompts:
        prompt = ids(*tokens)
        placed.append(memory.blocks(prompt, memory.chain(prompt), len(tokens)))
    for i, (tokens, blocks) in enumerate(zip(prompts, placed, strict=True)):
        assert len(blocks) == -(-len(tokens) // BLOCK_SIZE)
        for other, others in zip(prompts[:i], placed[:i], strict=True):
            common = next(
                (k for k, (a, b) in enumerate(zip(tokens, other, strict=False)) if a != b),
                min(len(tokens), len(other)),
            )
            alike = next(
                (k for k, (a, b) in enumerate(zip(blocks, others, strict=False)) if a != b),
                min(len(blocks), len(others)),
            )
            if tokens != other:
                assert alike == common // BLOCK_SIZE
            assert not set(blocks[alike:]) & set(others[alike:])


def test_an_equal_prompt_has_equal_blocks_and_another_model_shares_nothing() -> None:
    memory = PrefixMemory()
    text = {"prompt": "word " * 300, "model": "m"}
    one = prompt_of(text, chat=False)
    first = memory.blocks(one, memory.chain(one), 305)
    assert memory.blocks(one, memory.chain(one), 305) == first
    other = prompt_of({**text, "model": "n"}, chat=False)
    assert not set(memory.blocks(other, memory.chain(other), 305)) & set(first)


def test_text_shares_as_far_as_both_prompts_tokens_reach() -> None:
    memory = PrefixMemory()
    shared = "system prompt. " * 200  # 3000 bytes, 750 tokens at 4 bytes each
    first, second = (
        prompt_of({"prompt": shared + tail, "model": "m"}, chat=False)
        for tail in ("a" * 1000, "b" * 5000)
    )
    one = memory.blocks(first, memory.chain(first), 1000)
    two = memory.blocks(second, memory.chain(second), 2000)
    alike = len(set(one) & set(two))
    assert two[:alike] == one[:alike]
    assert alike == (3000 // CHUNK_BYTES * CHUNK_BYTES // 4) // BLOCK_SIZE


def test_what_is_remembered_is_bounded_and_the_longest_unused_goes() -> None:
    memory = PrefixMemory(most_chunks=20)
    kept = ids(*range(64 * 5))
    first = memory.blocks(kept, memory.chain(kept), 320)
    for number in range(1, 20):
        stranger = ids(*range(number * 1000, number * 1000 + 64 * 5))
        memory.blocks(stranger, memory.chain(stranger), 320)
        assert memory.blocks(kept, memory.chain(kept), 320) == first
        assert len(memory._chunks) <= 20


def turns(*arrivals: tuple[Prompt, float, float]) -> list[tuple[str, int, float | None]]:
    memory = PrefixMemory()
    conversations = Conversations(memory)
    found = []
    for prompt, at_s, end_s in arrivals:
        turn = conversations.grown(prompt, memory.chain(prompt), at_s, end_s)
        found.append((turn.session, turn.turn, turn.gap_s))
    return found


def test_a_prompt_that_continues_an_answered_one_is_its_next_turn() -> None:
    long = "x" * 1000
    assert turns(
        (chat("a"), 0.0, 1.0),
        (chat("b" + long), 0.5, 1.5),
        (chat("a", "answer", "more"), 3.0, 4.0),
        (chat("b" + long, "yes", "why"), 3.5, 5.0),
        (chat("a", "answer", "more", "again", "and"), 6.0, 7.0),
    ) == [("s0", 0, None), ("s1", 0, None), ("s0", 1, 2.0), ("s1", 1, 2.0), ("s0", 2, 2.0)]


def test_a_prompt_is_continued_once_and_never_before_its_answer() -> None:
    assert turns(
        (chat("hello"), 0.0, 5.0),
        (chat("hello", "x", "early"), 4.0, 6.0),
        (chat("hello", "x", "late"), 7.0, 8.0),
        (chat("hello", "x", "later"), 9.0, 9.5),
    ) == [("s0", 0, None), ("s1", 0, None), ("s0", 1, 2.0), ("s2", 0, None)]


def test_text_prompts_grow_too_but_short_ones_only_look_alike() -> None:
    def text(words: str) -> Prompt:
        return prompt_of({"prompt": words, "model": "m"}, chat=False)

    base = "User: tell me. " * 30
    assert turns(
        (text(base), 0.0, 1.0), (text(base + "Bot: no. User: please."), 2.0, 3.0),
        (text("Hi"), 4.0, 5.0), (text("Hi there"), 6.0, 7.0),
    ) == [("s0", 0, None), ("s0", 1, 1.0), ("s1", 0, None), ("s2", 0, None)]  # fmt: skip


def test_forgotten_conversations_leave_nothing_behind() -> None:
    memory = PrefixMemory()
    conversations = Conversations(memory, most=3)
    for number in range(10):
        prompt = chat(f"hello {number}")
        conversations.grown(prompt, memory.chain(prompt), number, number + 0.5)
    assert len(conversations._ends) == 3
    assert sum(map(len, conversations._rests.values())) == 1
    assert conversations.count == 10


def test_named_sessions_are_numbered_and_an_overlapping_request_waits_for_nothing() -> None:
    conversations = Conversations(PrefixMemory())
    found = [
        conversations.named(name, at_s, end_s)
        for name, at_s, end_s in (
            ("alice", 0.0, 2.0), ("bob", 0.5, 1.0), ("alice", 1.0, 1.5), ("alice", 5.0, 6.0),
        )
    ]  # fmt: skip
    assert [(t.session, t.turn, t.gap_s) for t in found] == [
        ("s0", 0, None), ("s1", 0, None), ("s2", 0, None), ("s0", 1, 3.0),
    ]  # fmt: skip


# ---- rows and files


def exchange(**fields: Any) -> Exchange:
    body = {"model": "m", "prompt": list(range(100)), "priority": 2}
    return Exchange(**{"at_s": 1.0, "end_s": 2.0, "chat": False, "body": body, **fields})


def rows_of(*exchanges: Exchange) -> tuple[list[dict[str, Any]], Recorder]:
    rows: list[dict[str, Any]] = []
    recorder = Recorder(rows.append)
    for each in exchanges:
        recorder.summary.requests += 1
        recorder.finish(each)
    return rows, recorder


def test_an_exchange_becomes_a_row_of_numbers() -> None:
    rows, recorder = rows_of(exchange(usage=Usage(100, 7)))
    assert rows == [
        {"t": 1.0, "in": 100, "out": 7, "blocks": (0, 1), "session": "s0", "priority": 2}
    ]
    assert (recorder.summary.recorded, recorder.summary.unaccounted) == (1, 0)


def test_without_counts_lengths_are_estimated_and_marked() -> None:
    text = {"model": "m", "prompt": "x" * 401}
    rows, recorder = rows_of(exchange(events=5, cut=True), exchange(body=text, events=3))
    assert [(r["in"], r["out"], r["estimated"]) for r in rows] == [(100, 5, True), (101, 3, True)]
    assert (recorder.summary.estimated, recorder.summary.cut) == (2, 1)


def test_what_is_not_recorded_is_counted_by_reason() -> None:
    rows, recorder = rows_of(
        exchange(failed="http_503"),
        exchange(usage=Usage(0, 3)),
        exchange(usage=Usage(5, 0)),
        exchange(cut=True),
        exchange(usage=Usage(5, 8), body={"prompt": "a", "n": 2}),
    )
    assert rows == []
    assert recorder.summary.skipped == {
        "http_503": 1, "no_input": 1, "no_output": 1, "cut_before_answer": 1, "several_answers": 1,
    }  # fmt: skip
    assert recorder.summary.unaccounted == 0


def test_a_full_disk_costs_rows_not_traffic() -> None:
    def full(row: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    recorder = Recorder(full)
    recorder.summary.requests += 1
    recorder.finish(exchange(usage=Usage(100, 7)))
    assert (recorder.summary.lost, recorder.summary.unaccounted) == (1, 0)


def test_files_rotate_whole_lines_and_read_as_one_recording(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    file = RecordFile(path, rotate_bytes=4096)
    for number in range(300):
        file.write({"t": number / 10, "in": 65, "out": 3, "blocks": (0, number + 1)})
    file.close()
    names = [p.name for p in file.paths]
    assert names[0] == "traffic.1.jsonl"
    assert names[-1] == "traffic.jsonl"
    assert len(names) == len(set(names)) >= 3
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(b"".join(p.read_bytes() for p in file.paths))
    trace = read_trace(whole, strict=True)
    assert [r.at_s for r in trace.requests] == [number / 10 for number in range(300)]
    assert trace.block_size == BLOCK_SIZE
    for part in file.paths:
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        assert part.stat().st_size < 4096 + 200
        read_trace(part, strict=True)


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        RecordFile(path, rotate_bytes=4096)
    assert path.read_text() == "mine"


def test_a_torn_line_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    file = RecordFile(tmp_path / "a.jsonl", rotate_bytes=4096)
    real = os.write
    calls = iter([5, None])

    def nearly_full(handle: int, data: bytes) -> int:
        room = next(calls, -1)
        if room is None:
            raise OSError(28, "No space left on device")
        return real(handle, data if room < 0 else data[:room])

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(OSError, match="No space left"):
        file.write({"t": 0.0, "in": 1, "out": 1})
    file.write({"t": 1.0, "in": 2, "out": 2})
    monkeypatch.undo()
    file.close()
    trace = read_trace(tmp_path / "a.jsonl")
    assert [r.input_tokens for r in trace.requests] == [2]
    assert [s.reason for s in trace.skipped] == ["not_json"]


def test_nothing_of_a_text_is_in_a_row() -> None:
    secret = "Correct Horse Battery Staple "
    body = {"model": "secret-model", "user": "alice", "messages": [
        {"role": "user", "content": secret * 40}]}  # fmt: skip
    rows, _ = rows_of(
        exchange(body=body, chat=True, usage=Usage(300, 7), session_name="alice@example.org")
    )
    text = orjson.dumps(rows).decode()
    assert re.findall(r"[A-Za-z]{2,}", text) == ["in", "out", "blocks", "session"]
