"""C11: the traffic that was replayed: when requests came and how long they were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from autotune.errors import InputError
from autotune.report.figure import Figure
from autotune.report.numbers import count
from autotune.report.svg import Axis, Plot, axis
from autotune.report.view import StudyView
from autotune.workload.reader import read_trace
from autotune.workload.trace import Trace

_SIZE = (430, 230)
_BINS = 24
_SECONDS_BINS = 60


def traffic(view: StudyView) -> Figure:
    """Arrivals over time, prompt and answer lengths, of the window that the search replays."""
    trace = _trace(view.directory / "workload.jsonl.zst")
    if trace is None or len(trace.requests) < 2:
        return Figure(
            anchor="traffic",
            title="What was asked",
            missing="Not drawn: the replayed requests are not in the study's folder.",
        )
    prompts = [request.input_tokens for request in trace.requests]
    answers = [request.output_tokens for request in trace.requests]
    times = [request.at_s for request in trace.requests]
    return Figure(
        anchor="traffic",
        title=f"{count(len(times))} requests in {times[-1] - times[0]:.0f} s, the longest prompt "
        f"{count(max(prompts))} tokens",
        subtitle="The window that every trial of the search replays.",
        pictures=(
            _arrivals(times),
            _lengths(prompts, "prompt tokens"),
            _lengths(answers, "answer tokens"),
        ),
    )


def _trace(path: Path) -> Trace | None:
    try:
        return read_trace(path)
    except (InputError, OSError):
        return None


def _arrivals(times: Sequence[float]) -> Markup:
    first, span = times[0], max(times[-1] - times[0], 1e-9)
    bins = min(_SECONDS_BINS, max(4, math.ceil(span)))
    counts = [0] * bins
    for moment in times:
        counts[min(bins - 1, int((moment - first) / span * bins))] += 1
    width = span / bins
    edges = [index * width for index in range(bins + 1)]
    rates = [number / width for number in counts]
    x = Axis(low=0.0, high=span, start=46, end=_SIZE[0] - 12, title="seconds of the window",
             ticks=axis([0.0, span], (0, 1), "", zero=True).ticks)  # fmt: skip
    return _bars(x, edges, rates, "requests per second", f"Arrivals in steps of {width:.2g} s")


def _lengths(tokens: Sequence[int], title: str) -> Markup:
    low, high = max(1, min(tokens)), max(*tokens, 2)
    x = axis([low, high], (46, _SIZE[0] - 12), title, log=True)
    ratio = (x.high / x.low) ** (1 / _BINS)
    edges = [x.low * ratio**index for index in range(_BINS + 1)]
    counts = [0.0] * _BINS
    for number in tokens:
        place = int(math.log(max(number, x.low) / x.low) / math.log(ratio))
        counts[min(_BINS - 1, max(0, place))] += 1
    return _bars(x, edges, counts, "requests", f"Histogram of {title}")


def _bars(
    x: Axis, edges: Sequence[float], heights: Sequence[float], unit: str, title: str
) -> Markup:
    y = axis([0.0, max([*heights, 1e-9])], (_SIZE[1] - 46, 24), unit, zero=True, log=False, ticks=3)
    plot = Plot(*_SIZE, x, y)
    plot.frame()
    for left, right, height in zip(edges[:-1], edges[1:], heights, strict=True):
        if height > 0:
            start, end, top = x.at(left), x.at(right), y.at(height)
            plot.raw(
                f'<rect class="bar" x="{start:.1f}" y="{top:.1f}" '
                f'width="{max(end - start - 0.6, 0.6):.1f}" height="{y.start - top:.1f}"/>'
            )
    return plot.render(title, f"{title}, highest {max(heights):.3g} {unit}.")
