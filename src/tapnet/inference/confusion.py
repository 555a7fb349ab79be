"""Figure and numbers: which class was taken for which."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapnet.plotting import new_figure, save
from tapnet.wording import pluralize


@dataclass(frozen=True)
class Confusion:
    """`counts[i, j]`: pictures of class i that were said to be j."""

    classes: tuple[str, ...]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, classes: tuple[str, ...], pairs: Iterable[tuple[str, str]]) -> Confusion:
        """From pairs of (true class, predicted class)."""
        counts = np.zeros((len(classes), len(classes)), np.int64)
        for truth, said in pairs:
            counts[classes.index(truth), classes.index(said)] += 1
        return cls(classes, counts)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.counts)) / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the accuracy."""
        z, n, p = 1.96, self.total, self.accuracy
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def mistakes(self) -> list[tuple[int, str, str]]:
        """(count, true class, predicted class), the most frequent first."""
        wrong = [(int(self.counts[i, j]), i, j) for i, j in np.argwhere(self.counts) if i != j]
        ranked = sorted(wrong, key=lambda found: (-found[0], found[1], found[2]))
        return [(count, self.classes[i], self.classes[j]) for count, i, j in ranked]

    def as_dict(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "ci95": self.interval,
            "pictures": self.total,
            "classes": self.classes,
            "confusion": self.counts.tolist(),
        }


def confusion_figure(confusion: Confusion, out: Path) -> Path:
    """A square a pair of classes, darker the larger its share of the row; numbers where there is room."""
    way = len(confusion.classes)
    side = min(14.0, 3.2 + 0.42 * way)
    figure, axis = new_figure(side + 0.8, side)
    shares = confusion.counts / np.maximum(confusion.counts.sum(axis=1, keepdims=True), 1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    size = 9 if way <= 25 else 6
    axis.set_xticks(range(way), confusion.classes, rotation=45, ha="right", rotation_mode="anchor", fontsize=size)
    axis.set_yticks(range(way), confusion.classes, fontsize=size)
    axis.set(xlabel="what was said", ylabel="what it is")
    axis.set_title(f"{100 * confusion.accuracy:.1f}% of {pluralize(confusion.total, 'picture')} right")
    for i, j in np.argwhere(confusion.counts):
        colour = "white" if shares[i, j] > 0.5 else "black"
        axis.text(j, i, str(confusion.counts[i, j]), ha="center", va="center", color=colour, fontsize=size)
    return save(figure, out)
