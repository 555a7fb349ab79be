"""Labeled images as a task keeps them: features, labels, digests and thumbnails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Examples:
    """Labeled images as a task keeps them; `labels` count the task's classes."""

    features: NDArray[np.float32]  # (n, *feature_shape)
    labels: NDArray[np.int64]  # (n,)
    hashes: tuple[str, ...]  # sha-256 of each image
    thumbnails: tuple[bytes, ...]  # small JPEGs

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.intp]) -> Examples:
        """Return the examples in these rows."""
        hashes, thumbnails = tuple(self.hashes[i] for i in rows), tuple(self.thumbnails[i] for i in rows)
        return Examples(self.features[rows], self.labels[rows], hashes, thumbnails)

    def kept(self, chosen: NDArray[np.bool_]) -> Examples:
        return self.take(np.flatnonzero(chosen))

    def by_class(self) -> Examples:
        """Return the examples class after class, so that adding in steps and fitting at once give one order."""
        return self.take(np.argsort(self.labels, kind="stable"))

    def sorted(self) -> Examples:
        """Return the examples by class and the sum of their features: in one order, however they came."""
        sums = self.features.reshape(len(self), -1).sum(axis=1, dtype=np.float64)
        return self.take(np.lexsort((sums, self.labels)))


def joined(first: Examples, second: Examples) -> Examples:
    """Return both, class after class."""
    features = np.concatenate([first.features, second.features])
    labels = np.concatenate([first.labels, second.labels])
    return Examples(features, labels, first.hashes + second.hashes, first.thumbnails + second.thumbnails).by_class()


def distinct(examples: Examples) -> tuple[Examples, NDArray[np.int64]]:
    """Return the examples without copies of an image, and for each how many of its class come before it."""
    _, first = np.unique(np.array(examples.hashes), return_index=True)
    once = examples.take(np.sort(first))
    ranks = np.zeros(len(once), np.int64)
    for label in np.unique(once.labels):
        ranks[once.labels == label] = np.arange((once.labels == label).sum())
    return once, ranks
