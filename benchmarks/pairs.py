"""Two pieces of work taking turns, so that whatever else the machine does meets both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One line of the table: a ratio, what was asked of it, and the two times behind it."""

    name: str
    ratio: float | None
    target: str
    first: float = 0.0  # seconds a unit of work
    second: float = 0.0
    note: str = ""


def compared(first: Work, second: Work, pairs: int, units: tuple[float, float] = (1, 1)) -> tuple[float, float, float]:
    """Median seconds a unit of each, and the median over the pairs of first / second; a warm-up goes before."""
    first(), second()
    times = [(_seconds(first) / units[0], _seconds(second) / units[1]) for _ in range(pairs)]
    a, b = (statistics.median(column) for column in zip(*times, strict=True))
    return a, b, statistics.median(one / other for one, other in times)


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
