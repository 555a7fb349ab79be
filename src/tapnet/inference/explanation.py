"""Why a task classifies an image as it does: probabilities, the most similar examples, and where all of them lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tapnet.data.source import Unreadable
from tapnet.inference.adaptation import adapted_head
from tapnet.inference.images import ImageInput, read_image, unreadable_error
from tapnet.inference.task import Task
from tapnet.inference.task_predictor import TaskPredictor
from tapnet.methods import Head

NEAREST = 4  # examples shown beside the image
Directions = NDArray[np.float64]


@dataclass(frozen=True)
class Neighbor:
    """An example of the task: its class, the cosine of its angle to the image, and its position among the examples."""

    label: str
    similarity: float
    index: int


@dataclass(frozen=True)
class Explanation:
    """What a task makes of one image. Directions are unit vectors where the head compares features."""

    task: Task
    image: ImageInput = field(repr=False)
    probabilities: NDArray[np.float64]  # (way,)
    query: Directions = field(repr=False)  # (dim,)
    examples: Directions = field(repr=False)  # (n, dim)
    centers: Directions = field(repr=False)  # (way, dim), what stands for each class

    @property
    def ranked(self) -> list[tuple[str, float]]:
        """Every class with its probability, the most probable first."""
        order = np.argsort(-self.probabilities, kind="stable")
        return [(self.task.classes[k], float(self.probabilities[k])) for k in order]

    @property
    def label(self) -> str:
        """The most probable class."""
        return self.ranked[0][0]

    @property
    def nearest(self) -> list[Neighbor]:
        """The examples that are most similar to the image, the closest first."""
        similarities = self.examples @ self.query
        order = np.argsort(-similarities, kind="stable")[:NEAREST]
        names = [self.task.classes[self.task.examples.labels[index]] for index in order]
        return [
            Neighbor(name, float(similarities[index]), int(index)) for name, index in zip(names, order, strict=True)
        ]

    @property
    def reason(self) -> str:
        """Why the answer is not the class of the most similar example; empty if it is."""
        closest = self.nearest[0].label
        if closest == self.label:
            return ""
        return (
            f"The most similar example is of class {closest!r}, but all examples count: together they favor "
            f"{self.label!r}."
        )

    def figure(self, out: str | Path) -> Path:
        """Save the explanation as a figure; raise UserError if matplotlib is missing."""
        from tapnet.inference.explanation_figure import explanation_figure

        return explanation_figure(self, Path(out))


def explain(task: Task, image: ImageInput, network: str | None = None, device: str = "cpu") -> Explanation:
    """Return why a task classifies an image as it does; raise UserError if the image cannot be read."""
    predictor = TaskPredictor.open(task, network, device)
    model = predictor.network
    example = read_image(image, predictor.preprocessing)
    if isinstance(example, Unreadable):
        raise unreadable_error(image, example.reason)
    head = adapted_head(task.examples, model, task.method, task.options)
    return explain_features(predictor.task, head, model.embed([example.pixels]), image)


def explain_features(task: Task, head: Head, features: NDArray[np.float32], image: ImageInput) -> Explanation:
    """Return the explanation of one image from its features (1, *feature_shape) and the adapted head of the task."""
    examples = projected(head, task.examples.features)
    centers = projected_centers(task, head, examples)
    query = _directions(projected(head, features))[0]
    return Explanation(task, image, task.probabilities(features)[0], query, _directions(examples), _directions(centers))


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


def _directions(inside: NDArray[np.float64]) -> Directions:
    """Return unit vectors in the directions of these vectors (n, dim)."""
    unit: Directions = inside / np.maximum(np.linalg.norm(inside, axis=1, keepdims=True), 1e-12)
    return unit
