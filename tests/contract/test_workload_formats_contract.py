"""What every workload format must do, whatever it reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.workload.formats.format import About, Format, Item, Line, ReadOptions
from autotune.workload.formats.registry import formats, recognise
from autotune.workload.trace import Request, Skipped

SAMPLES = {
    "canonical": [
        b'{"autotune_trace":1,"block_size":4}',
        b'{"t":0,"in":6,"out":2,"blocks":[0,1]}',
        b'{"t":0.5,"in":3,"out":9,"blocks":[0]}',
    ],
    "mooncake": [
        b'{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [7, 9]}',
        b'{"timestamp": 500, "input_length": 80, "output_length": 9, "hash_ids": [7]}',
    ],
}
ALL = pytest.mark.parametrize("fmt", formats().values(), ids=lambda fmt: fmt.name)


def read(fmt: Format, lines: list[bytes], **options: object) -> list[Item]:
    numbered = [Line(i, data) for i, data in enumerate(lines, 1)]
    return list(fmt.read(numbered, ReadOptions(**options)))  # type: ignore[arg-type]


def test_every_format_has_a_sample_here() -> None:
    assert set(SAMPLES) == set(formats())


@ALL
def test_a_format_knows_its_own_files_best(fmt: Format) -> None:
    assert recognise(SAMPLES[fmt.name]) is fmt
    assert fmt.title


@ALL
def test_requests_carry_their_lengths_times_and_lines(fmt: Format) -> None:
    items = read(fmt, SAMPLES[fmt.name])
    requests = [item for item in items if isinstance(item, Request)]
    first_line = len(SAMPLES[fmt.name]) - 1
    assert [r.line for r in requests] == [first_line, first_line + 1]
    assert requests[1].at_s - requests[0].at_s == pytest.approx(0.5)
    assert [r.output_tokens for r in requests] == [2 if fmt.name == "canonical" else 4, 9]
    assert requests[0].blocks[0] == requests[1].blocks[0]
    assert any(isinstance(item, About) and item.block_size for item in items)


@ALL
def test_blank_lines_vanish_and_bad_ones_are_reported(fmt: Format) -> None:
    bad = [b"", b"  ", b"[]", b"42", b'{"cut": "of', b'{"x": "\xe9"}', b"{}"]
    skipped = [s for s in read(fmt, SAMPLES[fmt.name] + bad) if isinstance(s, Skipped)]
    start = len(SAMPLES[fmt.name])
    assert [s.line - start for s in skipped] == [3, 4, 5, 6, 7]
    reasons = [s.reason for s in skipped]
    assert reasons[:4] == ["not_an_object", "not_an_object", "not_json", "not_utf8"]
    assert reasons[4].startswith("missing_")


@ALL
@given(lines=st.lists(st.binary(max_size=60) | st.sampled_from([b"[", b"{}", b"null"]), max_size=8))
@settings(max_examples=40, deadline=None)
def test_no_bytes_make_a_format_fall_over(fmt: Format, lines: list[bytes]) -> None:
    items = read(fmt, [*SAMPLES[fmt.name], *lines])
    assert sum(isinstance(item, Request) for item in items) >= 2
    assert fmt.sniff(lines) <= 1.0


@ALL
@given(
    values=st.lists(
        st.dictionaries(
            st.sampled_from(
                ["t", "in", "out", "blocks", "timestamp", "input_length", "output_length",
                 "hash_ids", "session", "session_id", "turn", "gap", "delay", "priority", "prompt"]
            ),
            st.none() | st.booleans() | st.integers(-3, 700) | st.floats() | st.text(max_size=3)
            | st.lists(st.integers(0, 9), max_size=3),
        ),
        max_size=6,
    )
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_rows_of_odd_values_are_used_or_reported(fmt: Format, values: list[object]) -> None:
    import json

    lines = [json.dumps(value).encode() for value in values]
    items = read(fmt, lines)
    told = [item.line for item in items if isinstance(item, Request | Skipped)]
    assert sorted(told) == list(range(1, len(values) + 1))
    for item in items:
        if isinstance(item, Request):
            assert item.input_tokens >= 1
            assert item.output_tokens >= 1
            assert item.at_s == item.at_s
