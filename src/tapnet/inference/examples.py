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

    def kept(self, chosen: NDArray[np.bool_]) -> Examples:
        return self._rows(np.flatnonzero(chosen))

    def sorted(self) -> Examples:
        """Return the examples by class and the sum of their features: in one order, however they came."""
        sums = self.features.reshape(len(self), -1).sum(axis=1, dtype=np.float64)
        return self._rows(np.lexsort((sums, self.labels)))

    def _rows(self, rows: NDArray[np.intp]) -> Examples:
        hashes, thumbnails = tuple(self.hashes[i] for i in rows), tuple(self.thumbnails[i] for i in rows)
        return Examples(self.features[rows], self.labels[rows], hashes, thumbnails)


def joined(first: Examples, second: Examples) -> Examples:
    """Return both, class after class, so that adding in steps and fitting at once give one order."""
    labels = np.concatenate([first.labels, second.labels])
    order = np.argsort(labels, kind="stable")
    hashes, thumbnails = first.hashes + second.hashes, first.thumbnails + second.thumbnails
    return Examples(
        np.concatenate([first.features, second.features])[order],
        labels[order],
        tuple(hashes[i] for i in order),
        tuple(thumbnails[i] for i in order),
    )


def distinct(examples: Examples) -> tuple[Examples, NDArray[np.int64]]:
    """Return the examples without copies of an image, and for each how many of its class come before it."""
    _, first = np.unique(np.array(examples.hashes), return_index=True)
    once = examples.kept(np.isin(np.arange(len(examples)), first))
    return once, _ranks(once.labels)


def _ranks(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each example how many of its class come before it."""
    ranks = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        ranks[labels == label] = np.arange((labels == label).sum())
    return ranks
