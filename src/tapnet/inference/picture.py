r"""Up to three classes of a task as a picture in which the nearest class wins, exactly and by any method.

An image with the logits $l_k$ lies at $p = \sum_k l_k u_k$, with unit vectors $u_k$ at equal angles. As these add up
to zero, $p \cdot (u_k - u_j)$ is proportional to $l_k - l_j$: whichever of the points $r u_k$ is nearest to $p$ has the
largest logit, and differences of squared distances are differences of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

MOST = 3  # classes of a picture
Points = NDArray[np.float64]


@dataclass(frozen=True)
class Picture:
    """Where classes, their examples and an image lie; the centers have distance 1 from the origin."""

    classes: tuple[int, ...]  # of the task
    centers: Points  # (k, 2)
    examples: NDArray[np.intp]  # rows of the task's examples
    points: Points  # (n, 2), of these examples
    query: Points | None  # (2,), of the image


def draw_picture(logits: Points, labels: NDArray[np.int64], classes: Sequence[int], query: Points | None) -> Picture:
    """Return the picture of these two or three classes.

    `logits` (n, way) and `labels` (n,) are of the task's examples, `query` (way,) is of the image to explain.
    """
    chosen = list(classes)
    angles = np.pi / 2 + 2 * np.pi * np.arange(len(chosen)) / len(chosen)
    if len(chosen) == 2:
        angles = angles - np.pi / 2  # side by side
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rows = np.flatnonzero(np.isin(labels, chosen))
    points = logits[rows][:, chosen] @ directions
    own = directions[[chosen.index(label) for label in labels[rows]]]
    radius = float(np.maximum((points * own).sum(axis=1), 0).mean()) or 1.0  # of the examples, towards their classes
    points = points / radius
    if len(chosen) == 2:  # only left and right decide: up and down keep the examples apart
        for label in chosen:
            members = labels[rows] == label
            points[members, 1] = np.linspace(-0.5, 0.5, members.sum() + 2)[1:-1]
    place = None if query is None else query[chosen] @ directions / radius
    return Picture(tuple(chosen), directions, rows, points, place)


def hardest_classes(logits: Points, labels: NDArray[np.int64]) -> list[int]:
    """Return the classes, at most three, whose examples are told apart least clearly."""
    way = logits.shape[1]
    if way <= MOST:
        return list(range(way))
    shares = softmax(logits, axis=1)
    mixed = np.stack([shares[labels == k].mean(axis=0) for k in range(way)])
    mixed = mixed + mixed.T
    np.fill_diagonal(mixed, -1)
    first, second = divmod(int(mixed.argmax()), way)
    rest = mixed[first] + mixed[second]
    rest[[first, second]] = -np.inf
    return sorted([first, second, int(rest.argmax())])
