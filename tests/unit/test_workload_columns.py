from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.workload import reuse
from autotune.workload.columns import columns_of, read_columns
from autotune.workload.hashing import BlockTree
from autotune.workload.reader import read_trace
from autotune.workload.reuse import ReuseCounter, chained
from autotune.workload.scenarios import make
from autotune.workload.statistics import describe, describe_columns, hit_tokens
from autotune.workload.trace import Request

prompt_ids = st.lists(st.lists(st.integers(0, 6), max_size=6), max_size=30)


@given(rows=prompt_ids, chunk=st.integers(1, 12), run=st.integers(1, 20))
@settings(deadline=None)
def test_a_stream_finds_the_reuse_of_the_whole(rows: list[list[int]], chunk: int, run: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reuse, "CHUNK_IDS", chunk)
        patch.setattr(reuse, "RUN_KEYS", run)
        counter = ReuseCounter()
        for row in rows:
            counter.add(row)
        found = counter.leading()
    tree = BlockTree()
    asked = [
        Request(at_s=0, input_tokens=len(row) or 1, output_tokens=1, blocks=tree.dense(row))
        for row in rows
    ]
    if found is None:
        assert not any(rows)
    else:
        assert found.tolist() == hit_tokens(asked, 1)


def test_ids_of_any_size_are_keys() -> None:
    counter = ReuseCounter()
    for row in ([2**64 - 1, -5], [2**70, 3], [2**64 - 1, -5, 8]):
        counter.add(row)
    found = counter.leading()
    assert found is not None
    assert found.tolist() == [0, 0, 2]


def test_a_key_depends_on_everything_before_it() -> None:
    ids = np.array([1, 2, 3, 2, 3, 9, 2], dtype=np.uint64)
    keys = chained(ids, np.array([3, 2, 0, 2]))
    assert len(set(keys.tolist())) == 7


def test_columns_tell_the_same_as_the_trace() -> None:
    trace = make("chat-short")
    assert describe_columns(columns_of(trace)) == describe(trace)


def test_a_file_read_as_columns_tells_the_same_as_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 400 * i, "input_length": 700 + i, "output_length": 1 + i % 7,
         "hash_ids": [0, i % 5], "session_id": f"user{i % 9}"}
        for i in range(60)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{}\n")
    assert describe_columns(read_columns(path)) == describe(read_trace(path))
    assert describe_columns(read_columns(path))["sessions"] == 9
