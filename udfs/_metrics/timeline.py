"""What a task did when: a curve of few points, however long it runs."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ("Point", "Timeline")


POINTS = 120  # at most; then each two become one


class Point(NamedTuple):
    """A stretch of time.

    Attributes:
        end: seconds since the start of the task.
        rows: done in it.
        in_flight: calls, when it was looked at; of stretches that were joined the mean.
        queued: rows in the queue, in the same way.
    """

    end: float
    rows: int
    in_flight: float
    queued: float


class Timeline:
    """Points from the start on, each where the one before ends."""

    def __init__(self) -> None:
        self._points: list[Point] = []

    def add(self, point: Point) -> None:
        """Add what came behind all others."""
        self._points.append(point)
        if len(self._points) > POINTS:
            starts = [0.0, *(point.end for point in self._points)]
            self._points = [
                _joined(starts[i], *self._points[i : i + 2]) if i + 1 < len(self._points) else self._points[i]
                for i in range(0, len(self._points), 2)
            ]

    def to_plain(self) -> list[list[float]]:
        """As plain values, for JSON."""
        return [[round(value, 4) for value in point] for point in self._points]


def _joined(start: float, first: Point, second: Point) -> Point:
    length = second.end - start
    share = (first.end - start) / length if length > 0 else 0.5

    def mean(a: float, b: float) -> float:
        return a * share + b * (1 - share)

    return Point(
        second.end,
        first.rows + second.rows,
        mean(first.in_flight, second.in_flight),
        mean(first.queued, second.queued),
    )
