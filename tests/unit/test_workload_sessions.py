from __future__ import annotations

import json
from pathlib import Path

from autotune.workload.reader import read_trace
from autotune.workload.windows import select


def burst_file(folder: Path) -> Path:
    """Twelve conversations of five turns, a minute apart, answered after two seconds; newest first,
    as exports often are.
    """
    rows = [
        f"{at},ChatGPT,{100 + turn},{10 + turn},0,API log,c{talk},2.0"
        for talk in range(12)
        for turn, at in enumerate(range(talk * 60, talk * 60 + 50, 10))
    ]
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type,Session ID"
    path = folder / "burst.csv"
    path.write_text("\n".join([head + ",Elapsed time", *reversed(rows)]))
    return path


def test_turns_are_numbered_in_time_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    trace = read_trace(burst_file(tmp_path), strict=True)
    assert len({r.session for r in trace.requests}) == 12
    first = [r for r in trace.requests if r.session == trace.requests[0].session]
    assert [(r.turn, r.gap_s, r.input_tokens) for r in first] == [
        (0, None, 100), (1, 8.0, 101), (2, 8.0, 102), (3, 8.0, 103), (4, 8.0, 104),
    ]  # fmt: skip
    assert "c3" not in {r.session for r in trace.requests}


def test_the_held_out_window_is_other_traffic_and_cut_sessions_are_told(tmp_path: Path) -> None:
    trace = read_trace(burst_file(tmp_path))
    chosen = select(trace, window_s=200.0)
    assert chosen.held_out is not None
    lines = [{r.line for r in part.requests} for part in (chosen.search, chosen.held_out)]
    assert lines[0]
    assert lines[1]
    assert not lines[0] & lines[1]
    sessions = [{r.session for r in part.requests} for part in (chosen.search, chosen.held_out)]
    if sessions[0] & sessions[1]:
        assert "cut at its edges" in " ".join(chosen.notes + chosen.portrait)
    tiny = select(trace, window_s=25.0)
    assert "sessions go on beyond the window" in " ".join(tiny.notes + tiny.portrait)


def test_links_to_parents_make_sessions(tmp_path: Path) -> None:
    rows = [
        {"chat_id": 5, "parent_chat_id": -1, "turn": 1}, {"chat_id": 6, "parent_chat_id": 5},
        {"chat_id": 7, "parent_chat_id": -1}, {"chat_id": 8, "parent_chat_id": 6},
        {"chat_id": 9, "parent_chat_id": 99},
    ]  # fmt: skip
    path = tmp_path / "qwen.jsonl"
    path.write_text(
        "".join(
            json.dumps({**row, "timestamp": 3.0 * i, "input_length": 20, "output_length": 5,
                        "type": "text", "hash_ids": [1, i]}) + "\n"
            for i, row in enumerate(rows)
        )
    )  # fmt: skip
    trace = read_trace(path, strict=True)
    assert [(r.session, r.turn, r.gap_s) for r in trace.requests] == [
        ("s0", 0, None), ("s0", 1, None), (None, 0, None), ("s0", 2, None), (None, 0, None),
    ]  # fmt: skip
