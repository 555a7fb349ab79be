"""Which class was taken for which: the numbers, and a figure of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix

from tapnet.plotting import new_figure, save
from tapnet.text import pluralize, shorten

SHOWN = 25  # classes in the figure; of more, those with the most mistakes


@dataclass(frozen=True)
class Confusion:
    """`counts[i, j]`: images of class i that were classified as j."""

    classes: tuple[str, ...]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, classes: tuple[str, ...], pairs: Iterable[tuple[str, str]]) -> Confusion:
        """Return the counts of pairs (true class, predicted class)."""
        truths, predicted = zip(*pairs, strict=True)
        return cls(classes, confusion_matrix(truths, predicted, labels=classes))

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.counts)) / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the accuracy."""
        found = binomtest(int(np.trace(self.counts)), self.total).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def worst(self, most: int = SHOWN) -> Confusion:
        """Return the counts among the classes with the most mistakes, from or to them; all if there are few."""
        if len(self.classes) <= most:
            return self
        wrong = self.counts - np.diag(np.diag(self.counts))
        chosen = np.sort(np.argsort(-(wrong.sum(axis=0) + wrong.sum(axis=1)), kind="stable")[:most])
        return Confusion(tuple(self.classes[k] for k in chosen), self.counts[np.ix_(chosen, chosen)])

    def as_dict(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "ci95": self.interval,
            "images": self.total,
            "classes": self.classes,
            "confusion": self.counts.tolist(),
        }


def confusion_figure(confusion: Confusion, out: Path) -> Path:
    """Save a square for each pair of classes, darker the larger its share of the row; of many classes the worst."""
    shown = confusion.worst()
    way = len(shown.classes)
    side = min(14.0, 3.2 + 0.42 * way)
    figure, axis = new_figure(side + 0.8, side)
    totals = confusion.counts.sum(axis=1)[[confusion.classes.index(name) for name in shown.classes]]
    shares = shown.counts / np.maximum(totals, 1)[:, None]
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [shorten(name, 24) for name in shown.classes]
    axis.set_xticks(range(way), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=9)
    axis.set_yticks(range(way), names, fontsize=9)
    axis.set(xlabel="predicted class", ylabel="true class")
    part = (
        f"\n{way} of {len(confusion.classes)} classes: those with the most mistakes" if shown is not confusion else ""
    )
    axis.set_title(f"{100 * confusion.accuracy:.1f}% of {pluralize(confusion.total, 'image')} correct{part}")
    for i, j in np.argwhere(shown.counts):
        color = "white" if shares[i, j] > 0.5 else "black"
        axis.text(j, i, str(shown.counts[i, j]), ha="center", va="center", color=color, fontsize=9)
    return save(figure, out)
