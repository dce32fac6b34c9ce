from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.cli.sketches import Pen, histogram, sketch, sparkline
from autotune.errors import InputError
from autotune.workload.columns import columns_of
from autotune.workload.reader import read_trace
from autotune.workload.scenarios import SCENARIOS, make
from autotune.workload.trace import Request, Trace
from autotune.workload.writer import digest


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=200), st.integers(40, 120))
def test_histograms_account_for_every_value_and_fit(values: list[int], width: int) -> None:
    lines = histogram(np.array(values), Pen(width=width))
    assert len(lines) <= 12
    shares = [float(line.rpartition(" ")[2].rstrip("%")) for line in lines]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(lines) + 0.01)
    assert all(len(line) <= width for line in lines)
    assert all(
        ("█" in line) == (share > 0)
        for line, share in zip(lines, shares, strict=True)
        if share != 0
    )


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=80))
def test_sparklines_show_all_that_is_above_zero(values: list[float]) -> None:
    line = sparkline(values, Pen())
    assert len(line) == len(values)
    assert [mark == " " for mark in line] == [value == 0 for value in values]
    assert max(values) == 0 or line[values.index(max(values))] == "█"


def test_a_picture_can_be_all_ascii() -> None:
    pen = Pen(width=60, ascii_only=True)
    assert "\n".join(sketch(columns_of(make("rag-documents")), pen)).isascii()


def test_a_picture_leaves_out_what_is_not_known() -> None:
    one = Trace(requests=(Request(at_s=0.0, input_tokens=5, output_tokens=2),))
    text = "\n".join(sketch(columns_of(one), Pen()))
    assert "prompt tokens" in text
    assert "arrivals" not in text
    assert "cache" not in text


def run(*words: str) -> str:
    ended = CliRunner().invoke(app, ["workload", *words], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_inspect_draws_lengths_arrivals_and_reuse() -> None:
    text = run("inspect", "quickstart")
    for part in ("prompt tokens", "answer tokens", "arrivals over 30s", "infinite prefix cache"):
        assert part in text


def test_inspect_as_json_is_one_document_and_nothing_else() -> None:
    told = json.loads(run("inspect", "quickstart", "--json"))
    assert told["requests"] == 444
    assert {"format", "skipped", "prefix_reuse", "first_offsets_s"} <= told.keys()


def test_every_scenario_is_named_in_one_line() -> None:
    lines = run("synth", "--list").splitlines()
    assert [line.split()[0] for line in lines] == sorted(SCENARIOS)
    assert all(len(line.split()) > 3 for line in lines)


def test_synth_and_convert_write_canonical_files(tmp_path: Path) -> None:
    made, again = tmp_path / "made.jsonl", tmp_path / "again.jsonl.zst"
    run("synth", "bursts", "-o", str(made), "--seed", "3", "--duration", "30s", "--rate", "4")
    trace = read_trace(made, strict=True)
    assert digest(trace) == digest(make("bursts", seed=3, duration_s=30.0, rate=4.0))
    run("convert", str(made), "-o", str(again))
    assert [r.blocks for r in read_trace(again, strict=True).requests] == [
        r.blocks for r in trace.requests
    ]


def test_synth_takes_arrivals_from_a_workload(tmp_path: Path) -> None:
    made = tmp_path / "made.jsonl"
    run("synth", "chat-short", "-o", str(made), "--arrivals-from", "cpu-tiny")
    times = [r.at_s for r in read_trace(made).requests]
    assert times == [r.at_s for r in make("cpu-tiny").requests]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "synth needs a scenario and a file to write"),
        (("bursts",), "synth needs a scenario and a file to write"),
        (("bursts", "-o", "x.jsonl", "--duration", "soon"), "--duration: expected a duration"),
        (("bursts", "-o", "x.jsonl", "--arrivals", "recorded"), "recorded arrivals need"),
        (("bursts", "-o", "x.jsonl", "--arrivals", "gamma", "--arrivals-from", "bursts"),
         "arrivals are either gamma or those of a file"),
    ],
)  # fmt: skip
def test_synth_refuses_what_makes_no_sense(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(app, ["workload", "synth", *words], catch_exceptions=False)


def test_inspect_of_a_file_without_times_draws_none_until_they_are_chosen(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"{i} " + "words " * 20, "output_tokens": 5} for i in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = run("inspect", str(file))
    assert "rate      unknown" in text
    assert "arrivals over" not in text
    text = run("inspect", str(file), "--arrivals", "constant", "--rate", "2")
    assert "arrivals over 14.5s" in text
    with pytest.raises(InputError, match="need a rate"):
        run("inspect", str(file), "--arrivals", "gamma")


def test_text_stays_out_of_a_converted_file_unless_asked_for(tmp_path: Path) -> None:
    file, plain, kept = (tmp_path / name for name in ("in.jsonl", "plain.jsonl", "kept.jsonl"))
    file.write_text(json.dumps({"prompt": "wombat " * 20, "output_tokens": 5}) + "\n")
    chosen = ("--arrivals", "poisson", "--rate", "2")
    run("convert", str(file), "-o", str(plain), *chosen)
    run("convert", str(file), "-o", str(kept), "--keep-text", *chosen)
    assert "wombat" not in plain.read_text()
    assert "wombat" in kept.read_text()
