from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.workload.formats.rows import MAX_LINE_BYTES
from autotune.workload.reader import read_trace
from autotune.workload.trace import Request, Trace
from autotune.workload.writer import digest, write_trace

ROWS = b'{"t": 0, "in": 5, "out": 2}\n{"t": 1.5, "in": 7, "out": 3}\n'


def trace_file(folder: Path, data: bytes, name: str = "w.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_missing_file_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    trace_file(tmp_path, ROWS, "prod-night.jsonl")
    with pytest.raises(InputError) as caught:
        read_trace(tmp_path / "prod-nigth.jsonl")
    assert "not found" in caught.value.message
    assert "prod-night.jsonl" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "workload is empty"),
        (b"\n \r\n\n", "workload is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a workload"),
        (b"a,b,c\n1,2,3\n", "not a workload"),
        (b"\xfe\x90\xcc\n\xa0\xb1", "not a workload"),
        ('{"t": 0, "in": 5, "out": 2}'.encode("utf-16"), "not UTF-8"),
        ('{"t": 0, "in": 5, "out": 2}'.encode("utf-16-le"), "not a workload"),
        (pickle.dumps({"requests": []}), "Python pickle"),
        (b"[" + b" " * (MAX_LINE_BYTES + 1), "not a workload"),
        (b'{"t": 0, "in": 5, "out": 0}\n', "no usable request"),
        (gzip.compress(ROWS * 50, mtime=0)[:-20], "compressed workload is broken"),
        (zstandard.ZstdCompressor().compress(ROWS)[:-4], "compressed workload is broken"),
        (zstandard.ZstdCompressor().compress(ROWS)[:5] + b"garbage!" * 9, "compressed workload is"),
    ],
)
def test_a_file_that_is_no_workload_gets_one_message(
    tmp_path: Path, data: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(trace_file(tmp_path, data))


def test_a_folder_is_no_workload(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_trace(tmp_path)


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(trace_file(tmp_path, ROWS), format="moncake")
    assert "canonical" in (caught.value.seen or "")
    assert caught.value.hint == "did you mean `mooncake`?"


def test_an_empty_result_tells_the_reasons_and_lines(tmp_path: Path) -> None:
    data = b'{"t": 0, "in": 5, "out": 0}\n[]\n{"t": 0, "in": 0, "out": 4}\n'
    with pytest.raises(InputError) as caught:
        read_trace(trace_file(tmp_path, data))
    seen = caught.value.seen or ""
    assert "no_output (first: line 1)" in seen
    assert "not_an_object (first: line 2)" in seen


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_files_are_read_by_content(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    trace = read_trace(trace_file(tmp_path, pack(ROWS), "any.name"))
    assert [r.at_s for r in trace.requests] == [0.0, 1.5]
    assert trace.source_format == "canonical"


def test_a_row_of_another_version_is_left_out(tmp_path: Path) -> None:
    trace = read_trace(trace_file(tmp_path, b'{"autotune_trace": 9}\n' + ROWS))
    assert [(s.line, s.reason) for s in trace.skipped] == [(1, "unknown_trace_version")]
    assert len(trace.requests) == 2


def test_wrong_fields_are_named_in_the_reason(tmp_path: Path) -> None:
    rows = [
        '{"t": "now", "in": 5, "out": 2}', '{"in": 5, "out": 2}', '{"t": 0, "in": 5.5, "out": 2}',
        '{"t": 0, "in": true, "out": 2}', '{"t": NaN, "in": 1, "out": 2}',
        '{"t": 0, "in": 5, "out": 2, "blocks": "x"}', '{"t": 0, "in": 5, "out": 2, "gap": -1}',
        '{"t": 0, "in": 5, "out": 2, "session": 7}', '{"t": 0, "in": 5, "out": 2}',
    ]  # fmt: skip
    trace = read_trace(trace_file(tmp_path, "\n".join(rows).encode()))
    assert [s.reason for s in trace.skipped] == [
        "bad_t", "missing_t", "bad_in", "bad_in", "not_json", "bad_blocks", "bad_gap",
        "bad_session",
    ]  # fmt: skip
    assert len(trace.requests) == 1


def test_very_slow_traffic_is_pointed_out(tmp_path: Path) -> None:
    data = b'{"t": 0, "in": 5, "out": 2}\n{"t": 9000, "in": 5, "out": 2}\n'
    assert "another unit" in " ".join(read_trace(trace_file(tmp_path, data)).notes)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    block_size = draw(st.integers(1, 64))
    requests = []
    for _ in range(draw(st.integers(1, 12))):
        tokens = draw(st.integers(1, 400))
        count = -(-tokens // block_size)
        blocks = draw(
            st.one_of(
                st.just(()),
                st.lists(st.integers(0, 2**63), min_size=count, max_size=count).map(tuple),
            )
        )
        requests.append(
            Request(
                at_s=draw(st.integers(0, 10**10)) / 1e6,
                input_tokens=tokens,
                output_tokens=draw(st.integers(1, 1000)),
                blocks=blocks,
                session=draw(st.none() | st.text(max_size=5)),
                turn=draw(st.integers(0, 9)),
                gap_s=draw(st.none() | st.floats(0, 1e6)),
                priority=draw(st.none() | st.integers(-5, 5)),
            )
        )
    requests.sort(key=lambda r: r.at_s)
    first = round(requests[0].at_s * 1e6)
    moved = [
        Request(**{f: getattr(r, f) for f in Request.__slots__ if f != "at_s"},
                at_s=(round(r.at_s * 1e6) - first) / 1e6)
        for r in requests
    ]  # fmt: skip
    return Trace(requests=tuple(moved), block_size=block_size)


@given(trace=traces(), suffix=st.sampled_from([".jsonl", ".jsonl.zst"]))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("trip") / f"w{suffix}"
    write_trace(path, trace)
    back = read_trace(path)
    assert back.skipped == ()
    assert back.block_size == trace.block_size
    names = [f for f in Request.__slots__ if f != "line"]
    assert [[getattr(r, f) for f in names] for r in back.requests] == [
        [getattr(r, f) for f in names] for r in trace.requests
    ]
    assert digest(back) == digest(trace)
    write_trace(path.with_name(f"again{suffix}"), back)
    assert path.with_name(f"again{suffix}").read_bytes() == path.read_bytes()


def test_the_digest_sees_every_field() -> None:
    base = {"at_s": 0.0, "input_tokens": 4, "output_tokens": 2}
    variants = [
        Request(**base), Request(**base | {"at_s": 1.0}), Request(**base | {"input_tokens": 5}),
        Request(**base | {"output_tokens": 3}), Request(**base, blocks=(1,)),
        Request(**base, session="a"), Request(**base, turn=1), Request(**base, gap_s=1.0),
        Request(**base, priority=1),
    ]  # fmt: skip
    digests = {digest(Trace(requests=(request,))) for request in variants}
    assert len(digests) == len(variants)
    assert digest(Trace(requests=(variants[4],), block_size=16)) not in digests
