"""Drawing primitives: axes and marks as inline SVG text. Colours are CSS classes of the page.

A mark's shape carries its meaning (square: baseline, diamond: recommended, circle: other, cross:
breaks a limit, triangle: failed, pointing down: ended early); colour only repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from markupsafe import Markup

from autotune.report.reading import clean

Mark = Literal["baseline", "best", "other", "breaks", "failed", "ended"]
_LOG_FROM = 20.0
_MARGIN_SHARE = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction of a plot: data range [low, high], pixels [start, end], tick texts by value.

    Logarithmic if `log`; then both ends are positive.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]
    title: str
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; values outside the range are clipped to it."""
        low, high, number = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, number = math.log(low), math.log(high), math.log(number)
        return self.start + (number - low) / (high - low) * (self.end - self.start)


def axis(
    values: Sequence[float],
    pixels: tuple[float, float],
    title: str,
    *,
    zero: bool = False,
    log: bool | None = None,
    ticks: int = 5,
) -> Axis:
    """An axis around the given values (at least one, all finite), with a little room at both ends.

    Logarithmic where all are positive and the largest is more than 20 times the smallest, unless
    `log` decides. `zero` makes a linear axis start at zero.
    """
    low, high = min(values), max(values)
    logarithmic = log if log is not None else low > 0 and high / low > _LOG_FROM
    if logarithmic and low > 0:
        room = max((high / low) ** _MARGIN_SHARE, 1.05)
        low, high = low / room, high * room
        marks = _log_ticks(low, high)
        note = f"{title} (log scale)"
        return Axis(
            low=low, high=high, start=pixels[0], end=pixels[1], log=True, title=note,
            ticks=tuple((mark, tick_text(mark)) for mark in marks),
        )  # fmt: skip
    room = (high - low) * _MARGIN_SHARE or abs(high) * 0.1 or 1.0
    low, high = (0.0 if zero and low >= 0 else low - room), high + room
    marks = _linear_ticks(low, high, ticks)
    return Axis(
        low=low, high=high, start=pixels[0], end=pixels[1], title=title,
        ticks=tuple((mark, tick_text(mark)) for mark in marks),
    )  # fmt: skip


def categories(names: Sequence[str], pixels: tuple[float, float], title: str) -> Axis:
    """An axis of evenly spaced names at 0, 1, 2, ..."""
    return Axis(
        low=-0.5, high=len(names) - 0.5, start=pixels[0], end=pixels[1], title=title,
        ticks=tuple((float(index), name) for index, name in enumerate(names)),
    )  # fmt: skip


def tick_text(value: float) -> str:
    """A tick's number without needless digits: `0.05`, `1,000`."""
    text = f"{value:,.10f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "\N{MINUS SIGN}") if text != "-0" else "0"


def _linear_ticks(low: float, high: float, wanted: int) -> list[float]:
    raw = (high - low) / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if raw <= power * factor * 1.0001)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades <= 3 else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    marks = [f * 10.0**power for power in range(first, last + 1) for f in factors]
    inside = [float(f"{mark:.12g}") for mark in marks if low <= mark <= high]
    return inside if len(inside) >= 2 else [low, high]


class Plot:
    """One SVG picture under construction; coordinates are given in data units of its two axes."""

    def __init__(
        self, width: int, height: int, x: Axis, y: Axis, *, floor: float | None = None
    ) -> None:
        """`floor`: pixel of the horizontal axis line; below the data if a rug stands between."""
        self.floor = y.start if floor is None else floor
        self.width = width
        self.height = height
        self.x = x
        self.y = y
        self._parts: list[str] = []

    def frame(self, *, grid: bool = True, x_labels: bool = True) -> None:
        """Draw grid lines, tick texts and axis titles."""
        left, right, bottom = self.x.start, self.x.end, self.floor
        for value, text in self.y.ticks:
            y = self.y.at(value)
            if grid:
                self.raw(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.text(left - 7, y + 4, text, "tick", anchor="end")
        for value, text in self.x.ticks if x_labels else ():
            x = self.x.at(value)
            self.raw(
                f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
            )
            self.text(x, bottom + 18, text, "tick", anchor="middle")
        self.raw(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        self.text((left + right) / 2, bottom + 36, self.x.title, "axis-title", anchor="middle")
        self.text(4, 13, self.y.title, "axis-title")

    def raw(self, markup: str) -> None:
        """Add markup that holds no text from outside."""
        self._parts.append(markup)

    def text(self, x: float, y: float, text: str, css: str, anchor: str = "start") -> None:
        """Add escaped text at pixels."""
        self.raw(
            f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(clean(text))}</text>"
        )

    def mark(self, kind: Mark, x: float, y: float, tip: str) -> None:
        """A mark at data coordinates; `tip` is what it stands for, shown on hover."""
        self.mark_at(kind, self.x.at(x), self.y.at(y), tip)

    def mark_at(self, kind: Mark, px: float, py: float, tip: str) -> None:
        """A mark at pixels."""
        title = f"<title>{escape(clean(tip))}</title>" if tip else ""
        self.raw(f'<g class="mark {kind}">{title}{_SHAPES[kind](px, py)}</g>')

    def rug(self, x: float, tip: str, kind: Mark = "failed") -> None:
        """A trial without a value: a triangle between the data and the axis line, `failed` unless
        it was `ended`.
        """
        shown: Mark = "ended" if kind == "ended" else "failed"
        self.mark_at(shown, self.x.at(x), self.floor - 9, tip)

    def line(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """A straight-line path through data points."""
        pixels = [(self.x.at(x), self.y.at(y)) for x, y in points]
        self._path(pixels, css)

    def steps(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """A step path: each value holds until the next point's x."""
        pixels: list[tuple[float, float]] = []
        for x, y in points:
            if pixels:
                pixels.append((self.x.at(x), pixels[-1][1]))
            pixels.append((self.x.at(x), self.y.at(y)))
        self._path(pixels, css)

    def _path(self, pixels: Sequence[tuple[float, float]], css: str) -> None:
        if len(pixels) < 2:
            return
        words = " L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)
        self.raw(f'<path class="{css}" d="M{words}"/>')

    def limit_y(self, value: float, label: str, *, upper: bool) -> None:
        """A horizontal limit with its text; the forbidden side is hatched."""
        y, left, right = self.y.at(value), self.x.start, self.x.end
        top, bottom = (self.y.end, y) if upper else (y, self.y.start)
        self._hatch(left, top, right - left, bottom - top)
        self.raw(f'<line class="limit" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        above = y - self.y.end > 18
        self.text(right - 4, y - 5 if above else y + 14, label, "limit-label", anchor="end")

    def limit_x(self, value: float, label: str, *, upper: bool) -> None:
        """A vertical limit with its text; the forbidden side is hatched."""
        x, top, bottom = self.x.at(value), self.y.end, self.floor
        start, end = (x, self.x.end) if upper else (self.x.start, x)
        self._hatch(start, top, end - start, bottom - top)
        self.raw(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        left_side = x > (self.x.start + self.x.end) / 2
        self.text(
            x - 5 if left_side else x + 5, bottom - 8, label, "limit-label",
            anchor="end" if left_side else "start",
        )  # fmt: skip

    def _hatch(self, x: float, y: float, width: float, height: float) -> None:
        if width > 0 and height > 0:
            self.raw(
                f'<rect class="hatch" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                f'height="{height:.1f}" fill="url(#hatch)"/>'
            )

    def note(self, x: float, y: float, text: str, css: str, *, below: bool = False) -> None:
        """A label beside the mark at data coordinates, kept inside the plot."""
        px, py = self.x.at(x), self.y.at(y)
        flip = px > self.x.start + 0.72 * (self.x.end - self.x.start)
        offset = 18 if below or py < self.y.end + 12 else -10
        self.text(px - 9 if flip else px + 9, py + offset, text, css, "end" if flip else "start")

    def render(self, title: str, description: str) -> Markup:
        """The finished picture with its spoken title and description."""
        head = (
            f'<svg class="plot" role="img" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}">'
            f"<title>{escape(clean(title))}</title><desc>{escape(clean(description))}</desc>"
        )
        # Every piece of text went through `escape` above; numbers are formatted floats.
        return Markup(head + "".join(self._parts) + "</svg>")  # noqa: S704


def _square(x: float, y: float) -> str:
    return f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'


def _diamond(x: float, y: float) -> str:
    return f'<path d="M{x:.1f} {y - 8:.1f} l8 8 l-8 8 l-8 -8 z"/>'


def _circle(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def _cross(x: float, y: float) -> str:
    return f'<path d="M{x - 4.5:.1f} {y - 4.5:.1f} l9 9 m0 -9 l-9 9"/>'


def _triangle(x: float, y: float) -> str:
    return f'<path d="M{x:.1f} {y - 5:.1f} l5 9 l-10 0 z"/>'


def _pointing_down(x: float, y: float) -> str:
    return f'<path d="M{x:.1f} {y + 4:.1f} l-5 -9 l10 0 z"/>'


_SHAPES: dict[Mark, Callable[[float, float], str]] = {
    "baseline": _square,
    "best": _diamond,
    "other": _circle,
    "breaks": _cross,
    "failed": _triangle,
    "ended": _pointing_down,
}
