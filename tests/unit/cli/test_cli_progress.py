"""The state behind both views, and what each view makes of it."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from rich.console import Console

from autotune.cli import plain
from autotune.cli.dashboard import LiveView, cut
from autotune.cli.plain import PlainLines
from autotune.cli.progress import StudyProgress, changed_text

ESCAPE = "\x1b"
MOST_LIVE_LINES = 8


def told(events: list[Any]) -> StudyProgress:
    state = StudyProgress()
    for event in events:
        state.handle(event)
    return state


def spoken(events: list[Any]) -> list[str]:
    lines: list[str] = []
    view = PlainLines(lines.append)
    for event in events:
        view(event)
    view.close()
    return lines


# ---- state


def test_rows_tell_how_each_trial_ended(story: Any) -> None:
    state = told(story.night())
    assert [row.word for row in state.rows] == [
        "baseline", "ok", "breaks", "suspect", "failed", "void", "stopped",
    ]  # fmt: skip
    assert state.rows[0].changed == ""
    assert state.rows[1].numbers == ["412 ms", "31.2 ms"]
    assert state.rows[2].note == "breaks tpot_p95 <= 1.1 x baseline"
    assert state.rows[4].numbers == ["-", "-"]


def test_failures_are_counted_by_reason(story: Any) -> None:
    line = told(story.night()).fails_line()
    assert line == "1 breaks a limit, 1 kv cache too small, 1 measurement invalid"


def test_interrupted_trials_count_neither_as_trials_nor_as_estimates(story: Any) -> None:
    story.started()
    story.trial()
    story.finished("interrupted", after_s=1.0)
    state = told(story.events)
    assert state.searched == 0
    assert state.trial_seconds == []


def test_confirmation_launches_use_up_what_was_kept_for_them(story: Any) -> None:
    story.started()
    story.trial("confirm")
    story.finished(role="confirm")
    state = told(story.events)
    assert (state.searched, state.reserved) == (0, 5)


def test_resumed_study_goes_on_where_it_stood(story: Any) -> None:
    story.started(
        used_s=600.0, searched=12, durations=[50.0, 70.0], resumed=True, confirmations=2,
        reference={"ttft_p95_s": 1.5},
    )  # fmt: skip
    story.best(trial=9, values=[0.75])
    state = told(story.events)
    assert state.time_line(0.0) == (
        "10 min used, 50 min left: about 50 launches, 12 of 40 trials, "
        "2 launches kept for confirmation"
    )
    assert state.best == "#9  ttft p95 0.750 s (not yet confirmed)"


def test_repeated_baseline_is_still_called_the_baseline(story: Any) -> None:
    story.started()
    story.best(trial=1, role="baseline")
    assert told(story.events).best == "#1  ttft p95 412 ms (baseline)"


def test_start_up_details_do_not_restart_the_phase(story: Any) -> None:
    story.started()
    story.trial()
    story.phase("launching", expected_s=30.0)
    story.add("phase", 5.0, trial=0, phase="launching", detail="loading weights")
    current = told(story.events).current
    assert current is not None
    assert (current.phase_began_s, current.expected_s) == (0.0, 30.0)
    assert current.detail == "loading weights"


def test_switches_read_on_and_off() -> None:
    changed = {"a": [None, True], "b": [True, False], "c": [4, None], "d": [1, 0]}
    assert changed_text(changed) == "a on  b off  c default  d 0"
    assert changed_text({}) == "baseline"


# ---- plain lines


def test_plain_lines_are_ascii_without_escape_codes(story: Any) -> None:
    lines = spoken(story.night())
    assert len(lines) > 20
    for line in lines:
        assert line.isascii(), line
        assert ESCAPE not in line
        assert "\n" not in line


def test_plain_lines_round_durations(story: Any) -> None:
    text = "\n".join(spoken(story.night()))
    assert "14.003" not in text
    assert "baseline  trial=0 14 s ttft_p95=412ms tpot_p95=31.2ms" in text
    assert "replaying trial=1 about 2 min 2 s" in text


def test_message_of_several_lines_stays_one_line(story: Any) -> None:
    story.started()
    story.add("note", message="first\nsecond \x1b[31mred")
    assert spoken(story.events)[-1].endswith("note      first second [31mred")


def test_silence_is_broken_by_a_heartbeat(story: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "HEARTBEATS_S", (0.02, 0.02, 0.02))
    heard = threading.Event()
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        if " alive " in line:
            heard.set()

    view = PlainLines(write)
    story.started()
    story.trial()
    story.phase("replaying")
    for event in story.events:
        view(event)
    assert heard.wait(5.0)
    view.close()
    count = len(lines)
    assert lines[-1].split(" ", 1)[1].startswith("alive     trial=0 replaying")
    assert not heard.clear()
    assert len(lines) == count


# ---- live view


def frames(events: list[Any], width: int, height: int = 40) -> tuple[list[list[str]], str]:
    """The live lines after each event, and everything that went to the scrollback."""
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, height=height, force_terminal=True, color_system=None,
        legacy_windows=False, highlight=False,
    )  # fmt: skip
    view = LiveView(console)
    seen = []
    for event in events:
        view(event)
        with console.capture() as capture:
            console.print(view._frame(), soft_wrap=True)
        seen.append(capture.get().splitlines())
    return seen, stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_live_view_is_never_wider_than_the_terminal(story: Any, width: int) -> None:
    live, scrollback = frames(story.night(), width)
    assert max(len(line) for frame in live for line in frame) < width
    assert max(len(line) for line in scrollback.splitlines()) <= width


@pytest.mark.parametrize("width", [60, 120])
def test_live_view_has_at_most_eight_lines(story: Any, width: int) -> None:
    live, _ = frames(story.night(), width)
    assert 3 <= max(len(frame) for frame in live) <= MOST_LIVE_LINES


def test_live_view_is_ascii(story: Any) -> None:
    live, scrollback = frames(story.night(), 80)
    assert scrollback.isascii()
    assert all(line.isascii() for frame in live for line in frame)


def test_live_view_shows_phase_estimate_and_running_numbers(story: Any) -> None:
    story.started()
    story.trial(changed={"max-num-seqs": [8, 64]})
    story.phase("replaying", expected_s=121.5)
    story.progress(0.5)
    live, _ = frames(story.events, 100)
    text = "\n".join(live[-1])
    assert "#0 replaying" in text
    assert "of about 2 min 2 s" in text
    assert "[##############..............] 50 %" in text
    assert "max-num-seqs 64" in text
    assert "ttft p95 412 ms" in text
    assert "in flight 50  failed 3  of 1000" in text
    assert "fails  none" in text


def test_notes_are_wrapped_not_cut(story: Any) -> None:
    story.started()
    story.add("note", message="word " * 40 + "end")
    _, scrollback = frames(story.events, 60)
    assert len(scrollback.splitlines()) == 4
    assert scrollback.rstrip().endswith("end")


def test_finished_trials_scroll_by_one_line_each_under_a_head(story: Any) -> None:
    _, scrollback = frames(story.night(), 120)
    lines = [line for line in scrollback.splitlines() if not line.startswith(("note", "     "))]
    assert lines[0].split()[:3] == ["#", "end", "time"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["0", "baseline"], ["1", "ok"], ["2", "breaks"], ["3", "suspect"], ["4", "failed"],
        ["5", "void"], ["6", "stopped"],
    ]  # fmt: skip


def test_real_terminal_is_left_clean(story: Any) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, height=24, force_terminal=True)
    with LiveView(console) as view:
        for event in story.night():
            view(event)
    assert stream.getvalue().endswith(f"{ESCAPE}[?25h") or "[?25h" in stream.getvalue()


def test_cut_marks_what_is_missing() -> None:
    from rich.text import Text

    assert cut(Text("abcdef"), 6).plain == "abcdef"
    assert cut(Text("abcdefg"), 6).plain == "abcd.."
    assert cut(Text("\u8a9e" * 5), 6).cell_len <= 6


def test_texts_from_outside_cannot_steer_the_terminal(story: Any) -> None:
    story.started()
    story.trial(changed={"chat-template": [None, "a\x1b[2Jb\r\nc"]})
    story.finished("infeasible", reason=None, message="died:\x1b]0;title\x07 x\ny")
    story.add("note", message="held by \x1b[5mpid 1")
    _, scrollback = frames(story.events, 200)
    assert ESCAPE not in scrollback
    assert len(scrollback.splitlines()) == 3
    assert ESCAPE not in "".join(spoken(story.events))
