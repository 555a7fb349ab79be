"""A task in two dimensions: its examples and class centers in the embedding space, and where its head compares them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tapnet.inference.adaptation import adapted_head
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.task import Task
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
    exact: bool  # whether the scores of the head follow from distances to the centers in the plane of the projection

    def locate(self, features: NDArray[np.float32]) -> tuple[Points, Points]:
        """Return features as points (n, 2) in the embedding space and inside the projection."""
        return self.embedding(_flat(features)), self.projection(projected(self.head, features))


def task_planes(task: Task, model: EmbeddingModel) -> TaskPlanes:
    """Return the planes in which to look at a task.

    Inside the projection it is a plane among the directions in which the class centers differ. For up to three classes
    there is one such plane, and nothing is lost: whatever lies outside of it adds the same to the distances from all
    centers. For more it is the one in which the class means come closest to the corners of a regular polygon, so that
    no class hides another. In the embedding space it is the plane of the largest variance of the examples, its axes
    rotated towards those of the other.
    """
    return planes_of(task, adapted_head(task.examples, model, task.method, task.options), model.device)


def planes_of(task: Task, head: Head, device: torch.device) -> TaskPlanes:
    """Return the planes of a task, as `task_planes` does, by its adapted head, which is on this device."""
    features, centers = task.examples.features, class_centers(task, head)
    inside = projected(head, features)
    means = np.stack([inside[task.examples.labels == k].mean(axis=0) for k in range(len(task.classes))])
    marks = projected_centers(task, head, inside)
    projection = _polygon_plane(marks, means, inside)
    origin = _flat(features).mean(axis=0)
    embedding = Plane(origin, _filled(np.zeros((0, len(origin))), _flat(features) - origin))
    embedding = _aligned(embedding, _flat(features), projection(inside))
    examples = embedding(_flat(features)), projection(inside)
    seen = embedding(_flat(centers)), projection(marks)
    logits = head.logits(torch.from_numpy(features).to(device)).detach().double().cpu().numpy()
    return TaskPlanes(head, embedding, projection, examples, seen, _nearest_wins(examples[1], seen[1], logits))


def class_centers(task: Task, head: Head) -> NDArray[np.float32]:
    """Return what stands for each class, (way, *feature_shape): the head's centers, else the means of the examples."""
    if head.centers is not None:
        return head.centers.detach().cpu().float().numpy()
    features, labels = task.examples.features, task.examples.labels
    return np.stack([features[labels == k].mean(axis=0) for k in range(len(task.classes))])


def projected_centers(task: Task, head: Head, inside: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what stands for each class where the head compares features, (way, dim); `inside` are the examples there.

    The mean of the examples is taken after the projection, which for some heads is a network.
    """
    if head.centers is not None:
        return projected(head, class_centers(task, head))
    return np.stack([inside[task.examples.labels == k].mean(axis=0) for k in range(len(task.classes))])


def projected(head: Head, features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return features as the head compares them, (n, dim)."""
    anchor = head.centers
    device = torch.device("cpu") if anchor is None else anchor.device
    inside = head.project(torch.from_numpy(features).to(device).float())
    return inside.flatten(1).double().detach().cpu().numpy()


def _nearest_wins(points: Points, centers: Points, logits: Points) -> bool:
    """Return whether differences of logits are those of squared distances, up to one positive factor."""
    distances = -np.square(points[:, None] - centers).sum(axis=-1)
    ours, theirs = (each - each.mean(axis=1, keepdims=True) for each in (distances, logits))
    factor = float((ours * theirs).sum() / max(float(np.square(ours).sum()), 1e-12))
    return factor > 0 and bool(np.abs(theirs - factor * ours).max() <= 1e-3 * np.abs(theirs).max())


def _flat(features: NDArray[np.float32]) -> Points:
    return features.reshape(len(features), -1).astype(np.float64)


def _polygon_plane(centers: Points, means: Points, examples: Points) -> Plane:
    """Return the plane among the differences of the centers that shows the means most like a regular polygon."""
    origin = centers.mean(axis=0)
    _, lengths, directions = np.linalg.svd(centers - origin, full_matrices=False)
    basis = directions[: int((lengths > 1e-6 * max(lengths[0], 1e-12)).sum())]
    if len(basis) > 2:
        angles = 2 * np.pi * np.arange(len(centers)) / len(centers)
        corners = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        left, _, right = np.linalg.svd(corners.T @ (means - means.mean(axis=0)) @ basis.T, full_matrices=False)
        basis = left @ right @ basis
    return Plane(origin, _filled(basis, examples - origin))


def _filled(directions: Points, vectors: Points) -> Points:
    """Return two orthonormal directions: those given, then those of the largest variance of the vectors."""
    rest = vectors - vectors.mean(axis=0)
    rest = rest - (rest @ directions.T) @ directions
    more = np.linalg.svd(rest, full_matrices=False)[2]
    spare = np.eye(2, vectors.shape[1])  # where all examples are alike
    return _signed(np.concatenate([directions, more, spare])[:2])


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
