"""A task in two dimensions: its examples and class centers in the embedding space, and where its head compares them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tapnet.inference.explanation import class_centers, projected
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.task import Task, adapted_head
from tapnet.methods import Head

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Plane:
    """A plane through a point: coordinates are inner products with two orthonormal directions."""

    origin: Points  # (dim,)
    directions: Points  # (2, dim)

    def __call__(self, vectors: Points) -> Points:
        """Return coordinates (n, 2)."""
        coordinates: Points = (vectors - self.origin) @ self.directions.T
        return coordinates


@dataclass(frozen=True)
class TaskPlanes:
    """The planes of a task, and its examples (n, 2) and class centers (way, 2) in both."""

    head: Head
    embedding: Plane
    projection: Plane
    examples: tuple[Points, Points]  # in the embedding space, and inside the projection
    centers: tuple[Points, Points]

    def locate(self, features: NDArray[np.float32]) -> tuple[Points, Points]:
        """Return features as points (n, 2) in the embedding space and inside the projection."""
        return self.embedding(_flat(features)), self.projection(projected(self.head, features))


def task_planes(task: Task, model: EmbeddingModel) -> TaskPlanes:
    """Return the planes in which to look at a task.

    Inside the projection it is the plane in which the class centers differ most. For up to three classes nothing is
    lost: whatever lies outside of that plane adds the same to the distances from all centers. In the embedding space
    it is the plane of the largest variance of examples and centers. Its axes are rotated towards those of the other.
    """
    head = adapted_head(task.examples, model, task.method, task.options)
    features, centers = task.examples.features, class_centers(task, head)
    inside, marks = projected(head, features), projected(head, centers)
    projection = _plane(marks, inside)
    embedding = _plane(np.concatenate([_flat(features), _flat(centers)]), _flat(features))
    goal = np.concatenate([projection(inside), projection(marks)])
    embedding = _aligned(embedding, np.concatenate([_flat(features), _flat(centers)]), goal)
    examples = embedding(_flat(features)), projection(inside)
    return TaskPlanes(head, embedding, projection, examples, (embedding(_flat(centers)), projection(marks)))


def _flat(features: NDArray[np.float32]) -> Points:
    return features.reshape(len(features), -1).astype(np.float64)


def _plane(points: Points, others: Points) -> Plane:
    """Return the plane of the largest variance of `points`, filled up by that of `others` if they lie on a line."""
    origin = points.mean(axis=0)
    _, lengths, directions = np.linalg.svd(points - origin, full_matrices=False)
    kept = directions[: min(2, int((lengths > 1e-6 * max(lengths[0], 1e-12)).sum()))]
    rest = others - origin
    rest = rest - (rest @ kept.T) @ kept
    more = np.linalg.svd(rest, full_matrices=False)[2]
    both = np.concatenate([kept, more, np.eye(2, points.shape[1])])[:2]
    return Plane(origin, _signed(both))


def _signed(directions: Points) -> Points:
    """Return the directions with the sign by which their largest entry is positive: an SVD leaves it open."""
    largest = np.abs(directions).argmax(axis=1)
    signed: Points = directions * np.sign(directions[np.arange(len(directions)), largest])[:, None]
    return signed


def _aligned(plane: Plane, points: Points, goal: Points) -> Plane:
    """Return the same plane with its axes rotated or reflected so that the points lie closest to the goal."""
    found = plane(points)
    left, _, right = np.linalg.svd((found - found.mean(axis=0)).T @ (goal - goal.mean(axis=0)))
    return Plane(plane.origin, (left @ right).T @ plane.directions)
