"""What every workload format must do, whatever it reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.workload.columns import read_columns
from autotune.workload.formats.format import About, Format, Item, Line, ReadOptions
from autotune.workload.formats.registry import formats, named, recognise
from autotune.workload.reader import read_trace
from autotune.workload.statistics import describe, describe_columns
from autotune.workload.synthesis import Process
from autotune.workload.timing import Arrivals
from autotune.workload.trace import Request, Skipped, Trace
from autotune.workload.writer import write_trace

Rows = Sequence[tuple[int, int, int]]
Writers = dict[str, Callable[[Rows], list[bytes]]]
UNTIMED = {"openai_batch", "openai_batch_output", "prompts", "sharegpt", "vllm_custom"}
TEXTS = {"aiperf", "openai_batch", "prompts", "sglang_log", "sharegpt", "vllm_custom", "vllm_log"}
LENGTHS_ONLY = {"access_log", "azure", "burstgpt", "openai_batch_output"}
LOGS = {"access_log", "sglang_log", "vllm_log"}
EVERY_SECOND = Arrivals(process=Process(kind="constant", rate=1.0))
ROWS = [(0, 40, 3), (1, 90, 8), (2, 33, 5)]
ALL = pytest.mark.parametrize("fmt", formats().values(), ids=lambda fmt: fmt.name)


def items(fmt: Format, lines: Sequence[bytes], **options: object) -> list[Item]:
    numbered = [Line(i, data) for i, data in enumerate(lines, 1)]
    return list(fmt.read(numbered, ReadOptions(**options)))  # type: ignore[arg-type]


def requests(found: Sequence[Item]) -> list[Request]:
    return [item for item in found if isinstance(item, Request)]


def trace_of(fmt: Format, data: bytes, folder: Path, **options: object) -> Trace:
    path = folder / "workload"
    path.write_bytes(data)
    if fmt.name in UNTIMED:
        options["arrivals"] = EVERY_SECOND
    return read_trace(path, **options)  # type: ignore[arg-type]


def shape(trace: Trace) -> list[tuple[float, int, int]]:
    return [(r.at_s, r.input_tokens, r.output_tokens) for r in trace.requests]


def test_every_format_has_a_writer_here(writers: Writers) -> None:
    assert set(writers) == set(formats())


@ALL
def test_a_file_is_recognised_as_its_own_format_and_no_other(fmt: Format, writers: Writers) -> None:
    head = writers[fmt.name](ROWS)
    assert recognise(head) is fmt
    surest = fmt.sniff(head)
    assert [f.name for f in formats().values() if f is not fmt and f.sniff(head) >= surest] == []
    assert fmt.title
    assert named(fmt.name) is fmt


@ALL
def test_lengths_times_and_shared_beginnings_are_read(
    fmt: Format, writers: Writers, tmp_path: Path
) -> None:
    trace = trace_of(fmt, b"\n".join(writers[fmt.name](ROWS)), tmp_path)
    assert shape(trace) == [(float(t), n, out) for t, n, out in ROWS]
    assert trace.source_format == fmt.name
    assert trace.skipped == ()
    assert trace.meta.get("source", "canonical") == fmt.name
    known = [r.blocks for r in trace.requests]
    if fmt.name in LENGTHS_ONLY:
        assert known == [(), (), ()]
    else:
        assert all(
            len(b) == -(-n // trace.block_size) for b, (_, n, _) in zip(known, ROWS, strict=True)
        )
        assert known[0][0] == known[1][0]


@ALL
@pytest.mark.parametrize(
    "mangled",
    [
        lambda lines: b"\xef\xbb\xbf" + b"\n".join(lines) + b"\n",
        lambda lines: b"\r\n".join(lines) + b"\r\n",
        lambda lines: b"\n \n".join(lines) + b"\n\n\n",
    ],
    ids=["byte order mark", "crlf", "blank lines"],
)
def test_marks_line_ends_and_blank_lines_change_nothing(
    fmt: Format, mangled: Callable[[list[bytes]], bytes], writers: Writers, tmp_path: Path
) -> None:
    trace = trace_of(fmt, mangled(writers[fmt.name](ROWS)), tmp_path, strict=True)
    assert shape(trace) == [(float(t), n, out) for t, n, out in ROWS]


@ALL
def test_bad_lines_are_told_and_cost_only_themselves(fmt: Format, writers: Writers) -> None:
    good = writers[fmt.name](ROWS)
    bad = [b"", b"  ", b"[]", b"42", b'{"cut": "of', b'{"x": "\xe9"}', b"{}"]
    found = items(fmt, [*good, *bad])
    assert len(requests(found)) == len(ROWS)
    skipped = [s for s in found if isinstance(s, Skipped)]
    passed = sum(a.meta.get("other_lines", 0) for a in found if isinstance(a, About))
    assert len(skipped) + passed == 5
    assert all(len(good) + 3 <= s.line <= len(good) + 7 for s in skipped)
    assert all(s.reason.replace("_", "").isalnum() for s in skipped)
    if fmt.name not in LOGS:
        assert "not_utf8" in {s.reason for s in skipped}


@ALL
def test_a_cut_last_line_costs_one_request(fmt: Format, writers: Writers) -> None:
    lines = writers[fmt.name](ROWS)
    if fmt.name == "sharegpt":
        lines = lines[:-6]
    lines[-1] = lines[-1][: len(lines[-1]) // 2]
    found = items(fmt, lines)
    left = requests(found)
    assert len(left) in {2, 3}
    if len(left) == 2:
        told = [item for item in found if isinstance(item, Skipped)]
        notes = [note for item in found if isinstance(item, About) for note in item.notes]
        assert told or any("passed over" in n or "no end" in n for n in notes)


@ALL
def test_rows_out_of_order_are_ordered_and_ties_keep_theirs(
    fmt: Format, writers: Writers, tmp_path: Path
) -> None:
    rows = [(9, 40, 2), (0, 41, 3), (4, 42, 4), (4, 43, 5)]
    trace = trace_of(fmt, b"\n".join(writers[fmt.name](rows)), tmp_path)
    if fmt.name in UNTIMED:
        assert [r.input_tokens for r in trace.requests] == [40, 41, 42, 43]
    else:
        assert [r.input_tokens for r in trace.requests] == [41, 42, 43, 40]
        assert [r.at_s for r in trace.requests] == [0.0, 4.0, 4.0, 9.0]


@ALL
@pytest.mark.parametrize("bad", [(1, 0, 8), (1, 90, 0), (1, -4, 8), (1, 90, -1), (10**14, 90, 8)])
def test_impossible_values_are_told_not_replayed(
    fmt: Format, bad: tuple[int, int, int], writers: Writers, tmp_path: Path
) -> None:
    if bad[0] > 10**9 and fmt.name in UNTIMED | LOGS | {"azure", "litellm"}:
        bad = (1, 90, 0)  # no time to write, or a calendar that ends before
    trace = trace_of(fmt, b"\n".join(writers[fmt.name]([ROWS[0], bad, ROWS[2]])), tmp_path)
    assert [r.input_tokens for r in trace.requests] == [40, 33]
    assert len(trace.skipped) == 1 or any("passed over" in note for note in trace.notes)


@pytest.mark.parametrize("name", sorted(set(formats()) - TEXTS - {"litellm"}))
def test_absurd_lengths_are_told(name: str, writers: Writers, tmp_path: Path) -> None:
    absurd = b"\n".join(writers[name]([ROWS[0], (1, 90, 10**30), ROWS[2]]))
    trace = trace_of(named(name), absurd, tmp_path)
    assert [r.output_tokens for r in trace.requests] == [3, 5]
    assert trace.skipped[0].reason == "too_long"


@ALL
def test_no_text_is_kept_unless_asked_for(
    fmt: Format, writers: Writers, secret: str, tmp_path: Path
) -> None:
    data = b"\n".join(writers[fmt.name](ROWS))
    trace = trace_of(fmt, data, tmp_path)
    write_trace(tmp_path / "out.jsonl", trace)
    assert secret not in repr(trace) + (tmp_path / "out.jsonl").read_text()
    kept = trace_of(fmt, data, tmp_path, keep_text=True)
    assert kept.has_text == (fmt.name in TEXTS | {"litellm"})
    assert shape(kept) == shape(trace)
    write_trace(tmp_path / "kept.jsonl", kept)
    assert (tmp_path / "kept.jsonl").stat().st_mode & 0o077 == 0 or not kept.has_text
    back = read_trace(tmp_path / "kept.jsonl", keep_text=True)
    assert [r.messages for r in back.requests] == [r.messages for r in kept.requests]
    assert read_trace(tmp_path / "kept.jsonl").has_text is False


@ALL
def test_files_without_times_need_arrivals(fmt: Format, writers: Writers, tmp_path: Path) -> None:
    path = tmp_path / "workload"
    path.write_bytes(b"\n".join(writers[fmt.name](ROWS)))
    columns = read_columns(path)
    assert columns.timed == (fmt.name not in UNTIMED)
    if columns.timed:
        assert describe_columns(columns) == describe(read_trace(path))
        return
    assert "no arrival times" in " ".join(columns.notes)
    with pytest.raises(InputError, match="no arrival times") as caught:
        read_trace(path)
    assert "arrivals" in (caught.value.hint or "")


@ALL
@given(rows=st.lists(st.tuples(st.integers(0, 5000), st.integers(4, 300), st.integers(1, 400)),
                     min_size=1, max_size=6))  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_random_requests_come_back_as_they_were_written(
    fmt: Format, rows: Rows, writers: Writers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    data = b"\n".join(writers[fmt.name](rows))
    options = {"time_unit": "ms"} if fmt.name in {"mooncake", "vllm_timed"} else {}
    trace = trace_of(fmt, data, tmp_path_factory.mktemp("trip"), format=fmt.name, **options)
    assert trace.skipped == ()
    assert [r[1:] for r in shape(trace)] == [row[1:] for row in rows]
    if fmt.name not in UNTIMED:
        assert [r.at_s for r in trace.requests] == [float(t - rows[0][0]) for t, _, _ in rows]
    path = tmp_path_factory.mktemp("again") / "canonical.jsonl.zst"
    write_trace(path, trace)
    again = read_trace(path, strict=True).requests
    assert [replace(r, line=0) for r in again] == [replace(r, line=0) for r in trace.requests]


@ALL
@given(lines=st.lists(st.binary(max_size=60) | st.sampled_from([b"[", b"{}", b"null", b'"', b"]"]),
                      max_size=8))  # fmt: skip
@example(lines=[b"\r\x00"])
@settings(max_examples=40, deadline=None)
def test_no_bytes_make_a_format_fall_over(
    fmt: Format, lines: list[bytes], writers: Writers
) -> None:
    found = items(fmt, [*writers[fmt.name](ROWS), *lines])
    assert len(requests(found)) >= 2
    assert fmt.sniff(lines) <= 1.0
    items(fmt, lines)


FIELDS = [
    "t", "in", "out", "blocks", "timestamp", "input_length", "output_length", "hash_ids", "session",
    "session_id", "turn", "gap", "delay", "priority", "prompt", "text", "texts", "turns",
    "messages", "payload", "chat_id", "parent_chat_id", "conversations", "custom_id", "body",
    "response",
    "startTime", "prompt_tokens", "completion_tokens", "event", "out", "status", "requests",
    "hash_id_scope", "block_size", "output_tokens", "time", "request",
]  # fmt: skip
odd = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 700) | st.floats() | st.text(max_size=3)
    | st.integers(10**15, 10**40),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@ALL
@given(values=st.lists(st.dictionaries(st.sampled_from(FIELDS), odd, max_size=6), max_size=6))
@settings(max_examples=60, deadline=None)
def test_rows_of_odd_values_are_used_or_told(fmt: Format, values: list[object]) -> None:
    found = items(fmt, [json.dumps(value).encode() for value in values], output_tokens=9)
    for item in requests(found):
        assert item.input_tokens >= 1
        assert item.output_tokens >= 1
        assert item.at_s == item.at_s
    passed = sum(a.meta.get("other_lines", 0) for a in found if isinstance(a, About))
    told = {item.line for item in found if isinstance(item, Request | Skipped)}
    if fmt.name not in {"azure", "burstgpt"} and not passed:  # a table's first line is its header
        assert told == set(range(1, len(values) + 1))
