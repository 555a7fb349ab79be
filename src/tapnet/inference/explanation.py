"""Why a task classifies an image as it does: probabilities, the most similar examples, and where all of them lie."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Unreadable
from tapnet.inference.adaptation import adapted_head
from tapnet.inference.images import ImageInput, read_image, unreadable_error
from tapnet.inference.planes import TaskPlanes, planes_of, projected, projected_centers
from tapnet.inference.task import Task
from tapnet.inference.task_predictor import TaskPredictor
from tapnet.methods import Head

NEAREST = 4  # examples shown beside the image
_PLANAR = 3  # classes, whose centers always lie in a plane
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
    planes: TaskPlanes | None = field(default=None, repr=False)  # of up to three classes
    place: NDArray[np.float64] | None = field(default=None, repr=False)  # (2,), the image in that of the projection

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
    features = model.embed([example.pixels])
    found = explain_features(predictor.task, head, features, image)
    if len(task.classes) > _PLANAR:
        return found
    planes = planes_of(predictor.task, head, model.device)
    return replace(found, planes=planes, place=planes.locate(features)[1][0])


def explain_features(task: Task, head: Head, features: NDArray[np.float32], image: ImageInput) -> Explanation:
    """Return the explanation of one image from its features (1, *feature_shape) and the adapted head of the task."""
    examples = projected(head, task.examples.features)
    centers = projected_centers(task, head, examples)
    query = _directions(projected(head, features))[0]
    return Explanation(task, image, task.probabilities(features)[0], query, _directions(examples), _directions(centers))


def _directions(inside: NDArray[np.float64]) -> Directions:
    """Return unit vectors in the directions of these vectors (n, dim)."""
    unit: Directions = inside / np.maximum(np.linalg.norm(inside, axis=1, keepdims=True), 1e-12)
    return unit
