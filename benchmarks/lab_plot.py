"""Regret against GPU time as one SVG picture: a panel per problem, a line per method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape
from typing import Protocol

COLOURS = {"guided": "#0b6e4f", "tpe": "#c8553d", "random": "#6b6b6b", "grid": "#b8a100"}
WIDTH, HEIGHT, COLUMNS = 270, 190, 4
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 30, 36
POINTS = 120
TOP_REGRET = 0.6
NEAR = 0.03


class Judged(Protocol):
    """A run of a method on a problem."""

    problem: str
    method: str
    gpu_s: tuple[float, ...]

    def regret_at(self, gpu_s: float) -> float:
        """The regret after so many GPU seconds."""
        ...


def draw(runs: Sequence[Judged]) -> str:
    """The picture. Median regret in percent (above 60 % at the upper edge) over GPU hours."""
    names = list(dict.fromkeys(run.problem for run in runs))
    methods = list(dict.fromkeys(run.method for run in runs))
    rows = math.ceil(len(names) / COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
        '<g font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, method in enumerate(methods):
        x = 60 + 110 * place
        parts.append(f'<path d="M{x} 14h22" stroke="{COLOURS[method]}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 28}" y="18">{method}</text>')
    for place, name in enumerate(names):
        x, y = place % COLUMNS * WIDTH, 30 + place // COLUMNS * HEIGHT
        here = [run for run in runs if run.problem == name]
        parts.append(f'<g transform="translate({x} {y})">{_panel(name, here, methods)}</g>')
    return "\n".join([*parts, "</g></svg>"]) + "\n"


def _panel(name: str, runs: Sequence[Judged], methods: Sequence[str]) -> str:
    until = statistics.median(run.gpu_s[-1] for run in runs)
    floor = HEIGHT - BOTTOM

    def at(seconds: float, regret: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * seconds / until
        # Square root: the last few percent are what matters
        share = math.sqrt(min(regret, TOP_REGRET) / TOP_REGRET)
        return across, floor - (floor - TOP) * share

    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(name)}</text>']
    for regret in (0.0, NEAR, 0.1, 0.3, TOP_REGRET):
        _, y = at(0, regret)
        dash = ' stroke-dasharray="4 3"' if regret == NEAR else ""
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"{dash}/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{regret:.0%}</text>')
    hours = until / 3600
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5) if hours / s <= 5)
    for tick in range(int(hours / step) + 1):
        x, _ = at(tick * step * 3600, 0)
        text = f"{tick * step:g}{' h' if tick == 0 else ''}"
        parts.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{text}</text>')
    for method in methods:
        mine = [run for run in runs if run.method == method]
        points = []
        for i in range(POINTS + 1):
            seconds = until * i / POINTS
            regret = statistics.median(run.regret_at(seconds) for run in mine)
            x, y = at(seconds, regret)
            points.append(f"{x:.1f},{y:.1f}")
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" '
            f'stroke="{COLOURS[method]}" stroke-width="1.8"/>'
        )
    return "".join(parts)
