"""What the terminal shows while several trials run at the same time."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from autotune.cli.dashboard import LiveView
from autotune.cli.plain import PlainLines
from autotune.cli.progress import StudyProgress

MOST_LIVE_LINES = 8


def begun(story: Any, count: int) -> list[Any]:
    """A study in which so many trials are launching."""
    story.started(slots=count, gpus=2, budget_gpu_s=7200.0)
    for number in range(count):
        story.trial(changed={"max-num-seqs": [8, 16 + number]})
        story.phase("launching")
    return list(story.events)


def ended(story: Any, number: int) -> Any:
    return story.finished(number=number)


def frame(events: list[Any], width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=40, color_system=None)
    view = LiveView(console)
    for event in events:
        view(event)
    with console.capture() as capture:
        console.print(view._frame(), soft_wrap=True)
    return capture.get().splitlines()


def test_each_running_trial_has_its_own_phase_and_its_own_end(story: Any) -> None:
    state = StudyProgress()
    for event in begun(story, 3):
        state.handle(event)
    story.add("phase", trial=1, phase="replaying", expected_s=30.0)
    state.handle(story.events[-1])
    assert [one.phase for one in state.running.values()] == ["launching", "replaying", "launching"]
    state.handle(ended(story, 1))
    assert list(state.running) == [0, 2]
    assert state.rows[-1].changed == "max-num-seqs 17"
    assert state.current is not None
    assert state.current.number == 0


def test_time_line_counts_slots_and_gpu_hours(story: Any) -> None:
    state = StudyProgress()
    for event in begun(story, 4):
        state.handle(event)
    state.handle(story.finished(number=0, after_s=90.0))
    line = state.time_line(90.0)
    assert "about 156 launches" in line  # 39 of 90 s each, four at a time
    assert "0.05 of 2 GPU-hours" in line


def test_plain_lines_name_the_settings_of_the_trial_that_ended(story: Any) -> None:
    lines: list[str] = []
    view = PlainLines(lines.append)
    for event in [*begun(story, 3), ended(story, 2), ended(story, 0)]:
        view(event)
    view.close()
    assert lines[-2].endswith("max-num-seqs 18")
    assert lines[-1].endswith("max-num-seqs 16")
    assert "trial=2" in lines[-2]


@pytest.mark.parametrize("count", [2, 4, 8])
def test_live_view_has_a_line_for_each_and_stays_small(story: Any, count: int) -> None:
    lines = frame(begun(story, count))
    assert len(lines) <= MOST_LIVE_LINES
    shown = [line for line in lines if line.startswith("#")]
    assert len(shown) == min(count, 4 if count <= 4 else 3)
    assert all("launching" in line and "max-num-seqs" in line for line in shown)
    assert any("and 5 more" in line for line in lines) == (count == 8)
