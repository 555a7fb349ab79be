"""Why a task classifies an image as it does: probabilities, the most similar examples, and where all of them lie."""

from __future__ import annotations

import colorsys
import io
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tapnet.data.preprocessing import Unreadable
from tapnet.evaluation.plotting import COLORS, MARKERS, new_canvas, save, shade_regions
from tapnet.inference.images import ImageInput, read_image, unreadable_error, with_input
from tapnet.inference.predictor import TaskPredictor
from tapnet.inference.task import Task
from tapnet.methods import Head
from tapnet.text import shorten

NEAREST = 4  # examples shown beside the image
SHOWN = 6  # classes in the figure
_PLANAR = 3  # classes, whose centers always lie in a plane
_PALETTE = tuple(color for color in COLORS if color != "#000000")  # black is the image's
_GOLDEN = 0.618034  # turns of the color wheel between classes beyond the palette
Points = NDArray[np.float64]


@dataclass(frozen=True)
class Neighbor:
    """An example of the task: its class, the cosine of its angle to the image, and its position among the examples."""

    label: str
    similarity: float
    index: int


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


@dataclass(frozen=True)
class Explanation:
    """What a task makes of one image. Directions are unit vectors where the head compares features."""

    task: Task
    image: ImageInput = field(repr=False)
    probabilities: Points  # (way,)
    query: Points = field(repr=False)  # (dim,), the direction of the image
    examples: Points = field(repr=False)  # (n, dim)
    centers: Points = field(repr=False)  # (way, dim), what stands for each class
    planes: TaskPlanes | None = field(default=None, repr=False)  # of up to three classes
    place: Points | None = field(default=None, repr=False)  # (2,), the image in that of the projection

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
        cosines, labels = self.examples @ self.query, self.task.examples.labels
        order = np.argsort(-cosines, kind="stable")[:NEAREST]
        return [Neighbor(self.task.classes[labels[i]], float(cosines[i]), int(i)) for i in order]

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
        """Save the explanation as a figure, in which a class has the same color and marker as in others of its task.

        Raise UserError if matplotlib is missing.
        """
        figure: Any = new_canvas(12, 7.6)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # inches, also at the edges
        top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.25])
        shown = [int(k) for k in np.argsort(-self.probabilities, kind="stable")[:SHOWN]]
        _draw_answer(top, self, shown)
        left, right = bottom.subfigures(1, 2, width_ratios=[1, 1.15])
        _draw_nearest(left, self)
        draw = _draw_exact_plane if self.planes and self.planes.exact else _draw_directions
        draw(right.subplots(), self, shown)
        return save(figure, Path(out))


def explain(task: Task, image: ImageInput, network: str | None = None, device: str = "cpu") -> Explanation:
    """Return why a task classifies an image as it does; raise UserError if the image cannot be read."""
    predictor = TaskPredictor.open(task, network, device)
    example = read_image(image, predictor.preprocessing)
    if isinstance(example, Unreadable):
        raise unreadable_error(image, example.reason)
    features = predictor.network.embed([example.pixels])
    explanation = explain_features(predictor, features, image)
    if len(task.classes) > _PLANAR:
        return explanation
    planes = task_planes(predictor)
    return replace(explanation, planes=planes, place=planes.locate(features)[1][0])


def explain_features(predictor: TaskPredictor, features: NDArray[np.float32], image: ImageInput) -> Explanation:
    """Return the explanation of one image from its features (1, *feature_shape)."""
    task, head = predictor.task, predictor.adapted
    examples = projected(head, task.examples.features)
    vectors = projected(head, features), examples, _projected_centers(task, head, examples)
    query, examples, centers = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in vectors)
    return Explanation(task, image, predictor.answer_features(features)[0][0], query[0], examples, centers)


def task_planes(predictor: TaskPredictor) -> TaskPlanes:
    """Return the planes in which to look at a task.

    Inside the projection it is a plane among the directions in which the class centers differ. For up to three classes
    there is one such plane, and nothing is lost: whatever lies outside of it adds the same to the distances from all
    centers. For more it is the one in which the class means come closest to the corners of a regular polygon, so that
    no class hides another. In the embedding space it is the plane of the largest variance of the examples, its axes
    rotated towards those of the other.
    """
    task, head = predictor.task, predictor.adapted
    features, inside = _flat(task.examples.features), projected(head, task.examples.features)
    centers = _class_means(task, features) if head.centers is None else _flat(head.centers.cpu().float().numpy())
    marks = _projected_centers(task, head, inside)
    projection = _polygon_plane(marks, _class_means(task, inside), inside)
    origin = features.mean(axis=0)
    embedding = Plane(origin, _complete_basis(np.zeros((0, len(origin))), features - origin))
    embedding = _aligned(embedding, features, projection(inside))
    examples, seen = (embedding(features), projection(inside)), (embedding(centers), projection(marks))
    logits = predictor.network.logits(head, task.examples.features)
    return TaskPlanes(head, embedding, projection, examples, seen, _nearest_wins(examples[1], seen[1], logits))


def projected(head: Head, features: NDArray[np.float32]) -> Points:
    """Return features as the head compares them, (n, dim)."""
    device = torch.device("cpu") if head.centers is None else head.centers.device
    inside = head.project(torch.from_numpy(features).to(device).float())
    return inside.flatten(1).double().detach().cpu().numpy()


def _projected_centers(task: Task, head: Head, inside: Points) -> Points:
    """Return what stands for each class where the head compares features, (way, dim); `inside` are the examples there.

    The mean of the examples is taken after the projection, which for some heads is a network.
    """
    if head.centers is None:
        return _class_means(task, inside)
    return projected(head, head.centers.detach().cpu().float().numpy())


def _class_means(task: Task, vectors: Points) -> Points:
    return np.stack([vectors[task.examples.labels == k].mean(axis=0) for k in range(len(task.classes))])


def _flat(features: NDArray[np.float32]) -> Points:
    return features.reshape(len(features), -1).astype(np.float64)


def _nearest_wins(points: Points, centers: Points, logits: Points) -> bool:
    """Return whether differences of logits are those of squared distances, up to one positive factor."""
    distances = -np.square(points[:, None] - centers).sum(axis=-1)
    ours, theirs = (scores - scores.mean(axis=1, keepdims=True) for scores in (distances, logits))
    factor = float((ours * theirs).sum() / max(float(np.square(ours).sum()), 1e-12))
    return factor > 0 and bool(np.abs(theirs - factor * ours).max() <= 1e-3 * np.abs(theirs).max())


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
    return Plane(origin, _complete_basis(basis, examples - origin))


def _complete_basis(directions: Points, vectors: Points) -> Points:
    """Return two orthonormal directions: those given, then those of the largest variance of the vectors.

    The largest entry of each is positive: an SVD leaves the sign open.
    """
    rest = vectors - vectors.mean(axis=0)
    rest = rest - (rest @ directions.T) @ directions
    more = np.linalg.svd(rest, full_matrices=False)[2]
    spare = np.eye(2, vectors.shape[1])  # where all examples are alike
    basis = np.concatenate([directions, more, spare])[:2]
    signed: Points = basis * np.sign(basis[np.arange(2), np.abs(basis).argmax(axis=1)])[:, None]
    return signed


def _aligned(plane: Plane, points: Points, goal: Points) -> Plane:
    """Return the same plane with its axes rotated or reflected so that the points lie closest to the goal."""
    seen = plane(points)
    left, _, right = np.linalg.svd((seen - seen.mean(axis=0)).T @ (goal - goal.mean(axis=0)))
    return Plane(plane.origin, (left @ right).T @ plane.directions)


def class_color(index: int) -> str:
    """Return the color of the class at this position of a task."""
    if index < len(_PALETTE):
        return _PALETTE[index]
    red, green, blue = colorsys.hsv_to_rgb(index * _GOLDEN % 1, 0.75, 0.75)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _draw_answer(figure: Any, explanation: Explanation, shown: list[int]) -> None:
    image, bars = figure.subplots(1, 2, width_ratios=[1, 1.6])
    image.imshow(with_input(explanation.image, lambda loaded: loaded.thumbnail(600)))
    image.set(xticks=[], yticks=[])
    image.set_title("your image", fontsize=11)
    classes, percent, rows = explanation.task.classes, 100 * explanation.probabilities, shown[::-1]
    bars.barh(range(len(rows)), percent[rows], color=[class_color(k) for k in rows])
    bars.set_yticks(range(len(rows)), [shorten(classes[k], 24) for k in rows])
    for row, k in enumerate(rows):
        bars.text(percent[k] + 1, row, f"{percent[k]:.1f}%", va="center")
    bars.set(xlim=(0, 112), xticks=range(0, 101, 20), xlabel="probability (%)")
    bars.spines[["top", "right"]].set_visible(False)
    bars.set_title(f"{shorten(classes[shown[0]], 36)}, {percent[shown[0]]:.0f}%", fontsize=14, weight="bold")


def _draw_nearest(figure: Any, explanation: Explanation) -> None:
    figure.suptitle("the most similar of your examples", fontsize=11)
    task, nearest, axes = explanation.task, explanation.nearest, figure.subplots(2, 2).reshape(-1)
    for axis in axes[len(nearest) :]:
        axis.axis("off")
    for axis, neighbor in zip(axes, nearest, strict=False):
        axis.set(xticks=[], yticks=[])
        if thumbnail := task.examples.thumbnails[neighbor.index]:
            axis.imshow(Image.open(io.BytesIO(thumbnail), formats=["JPEG"]).convert("RGB"))
        axis.spines[:].set(color=class_color(task.classes.index(neighbor.label)), linewidth=3)
        axis.set_title(f"{shorten(neighbor.label, 18)}\nsimilarity {neighbor.similarity:.2f}", fontsize=9)
    if explanation.reason:
        figure.supxlabel(
            f"{shorten(nearest[0].label, 18)} has the most similar example,\n"
            f"{shorten(explanation.label, 18)} the most similar class as a whole",
            fontsize=9,
        )


def _draw_exact_plane(axis: Any, explanation: Explanation, shown: list[int]) -> None:
    """Examples, centers and the image in the plane of two or three classes, which has all that tells them apart."""
    planes = explanation.planes
    assert planes is not None and explanation.place is not None  # noqa: PT018
    _draw_marks(axis, explanation, shown, planes.examples[1], planes.centers[1], explanation.place)
    shade_regions(axis, planes.centers[1], [class_color(k) for k in range(len(planes.centers[1]))])
    axis.set_title("where the task decides, to scale", fontsize=11)
    axis.set_xlabel(
        "small marks: examples; large marks: what stands for each class\nan image is of the class whose large mark is "
        "closest (shaded)",
        fontsize=9,
    )


def _draw_directions(axis: Any, explanation: Explanation, shown: list[int]) -> None:
    """Directions of examples, centers and the image; left to right is from the second class to the first."""
    task, examples = explanation.task, explanation.examples
    means = _class_means(task, examples)[shown]
    across = means[0] - means[1]
    across = across / max(np.linalg.norm(across), 1e-12)
    rest = means - means.mean(axis=0)
    along = np.linalg.svd(rest - np.outer(rest @ across, across), full_matrices=False)[2][0]  # where all differ most
    view = np.stack([across, along], axis=1)
    _draw_marks(axis, explanation, shown, examples @ view, explanation.centers @ view, explanation.query @ view)
    axis.set_title("the classes as the task sees them (distances are approximate)", fontsize=11)
    first, second = (shorten(task.classes[k], 14) for k in shown[:2])
    axis.set_xlabel(
        f"← more like {second}    more like {first} →\nsmall marks: examples; large marks: the center of each class",
        fontsize=9,
    )


def _draw_marks(
    axis: Any, explanation: Explanation, shown: list[int], examples: Points, centers: Points, place: Points
) -> None:
    """Draw examples (n, 2) and centers (way, 2) of the shown classes, the image (2,), and a legend."""
    task = explanation.task
    for k in shown:
        style = {"color": class_color(k), "marker": MARKERS[k % len(MARKERS)]}
        small = {"s": 32, "edgecolors": "white", "linewidths": 0.6, "zorder": 3}
        axis.scatter(*examples[task.examples.labels == k].T, **small, **style)
        large = {"s": 260, "edgecolors": "black", "linewidths": 1.4, "alpha": 0.45}  # seen through
        axis.scatter(*centers[k], label=shorten(task.classes[k], 18), **large, **style)
    axis.scatter(*place, s=330, marker="*", color="black", zorder=4, label="your image")
    axis.margins(0.12)
    axis.set(xticks=[], yticks=[])
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, markerscale=0.55)
