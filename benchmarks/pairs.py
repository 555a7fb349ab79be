"""Two pieces of work taking turns, so that whatever else the machine does meets both."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]
clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class Row:
    """One line of the table: a ratio, what was asked of it, and the two times behind it."""

    name: str
    ratio: float | None
    target: str
    first: float = 0.0  # seconds a unit of work
    second: float = 0.0
    note: str = ""

    @property
    def shown(self) -> str:
        """The ratio as text."""
        return "—" if self.ratio is None else f"{self.ratio:.3g}"


def compared(first: Work, second: Work, pairs: int, units: tuple[float, float] = (1, 1)) -> tuple[float, float, float]:
    """Median seconds a unit of each, and the median over the pairs of first / second; a warm-up goes before.

    Each goes first in every other pair, so that what one leaves in the caches helps both.
    """
    first(), second()
    times = []
    for pair in range(pairs):
        step = -1 if pair % 2 else 1
        turn = [seconds(work) / unit for work, unit in ((first, units[0]), (second, units[1]))[::step]]
        times.append(turn[::step])
    a, b = (statistics.median(column) for column in zip(*times, strict=True))
    return a, b, statistics.median(one / other for one, other in times)


def seconds(work: Work) -> float:
    start = clock()
    work()
    return clock() - start


def cpu_seconds() -> float:
    """Of this process and its children: with one thread, what a clock on the wall would show on an idle machine."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
