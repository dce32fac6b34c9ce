"""Several objectives at once: which points nothing else beats, and which of them say most. Pure.

A point is one cost per objective, all of them better when smaller, all finite.
"""

from __future__ import annotations

from collections.abc import Sequence

Point = Sequence[float]

REFERENCE = 1.1
"""Worst corner for the hypervolume, in units of the front's own ranges: a tenth beyond its worst
values, so that the extreme points count too (the usual choice: Ishibuchi et al., 2018)."""


def dominates(one: Point, other: Point) -> bool:
    """Whether `one` is nowhere worse than `other` and somewhere better."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def front(points: Sequence[Point]) -> list[int]:
    """Indices of the points that no other dominates, in order; equal points stand together."""
    return [
        index
        for index, point in enumerate(points)
        if not any(dominates(other, point) for other in points)
    ]


def scaled(points: Sequence[Point]) -> list[tuple[float, ...]]:
    """The points with each cost's range over them as 0 to 1; 0 where all are equal."""
    lows = [min(costs) for costs in zip(*points, strict=True)]
    spans = [max(costs) - low for costs, low in zip(zip(*points, strict=True), lows, strict=True)]
    return [
        tuple(
            (cost - low) / span if span > 0 else 0.0
            for cost, low, span in zip(point, lows, spans, strict=True)
        )
        for point in points
    ]


def hypervolume(points: Sequence[Point], corner: Point) -> float:
    """The volume that the points dominate up to `corner`, exactly (slices along the last cost).

    For fronts of tens of points and up to three costs.
    """
    inside = [p for p in points if all(c < w for c, w in zip(p, corner, strict=True))]
    if not inside:
        return 0.0
    if len(corner) == 1:
        return corner[0] - min(point[0] for point in inside)
    heights = sorted({point[-1] for point in inside})
    volume = 0.0
    for height, above in zip(heights, [*heights[1:], corner[-1]], strict=True):
        slab = [point[:-1] for point in inside if point[-1] <= height]
        volume += (above - height) * hypervolume(slab, corner[:-1])
    return volume


def knee(points: Sequence[Point]) -> int:
    """The index of the point with the least sum of costs in units of the ranges of all: where one
    gives up least in total. With two costs the point farthest below the line through the ends.
    """
    sums = [sum(point) for point in scaled(points)]
    return sums.index(min(sums))


def most_telling(points: Sequence[Point], count: int) -> list[int]:
    """Up to `count` points of the front: the best in the first cost, the knee, then those that add
    most dominated volume to the ones chosen before. Of equal points the first one.
    """
    seen: set[tuple[float, ...]] = set()
    left = []
    for index in front(points):
        if tuple(points[index]) not in seen:
            seen.add(tuple(points[index]))
            left.append(index)
    if not left:
        return []
    units = dict(zip(left, scaled([points[index] for index in left]), strict=True))
    corner = (REFERENCE,) * len(points[0])
    chosen = [min(left, key=lambda index: tuple(points[index]))]
    middle = left[knee([points[index] for index in left])]
    if middle not in chosen:
        chosen.append(middle)
    while len(chosen) < min(count, len(left)):
        rest = [index for index in left if index not in chosen]
        taken = [units[index] for index in chosen]
        chosen.append(max(rest, key=lambda index: hypervolume([*taken, units[index]], corner)))
    return chosen[:count]
