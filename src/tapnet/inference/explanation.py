r"""Why a task classifies an image as it does: probabilities, the most similar examples, and a picture of both.

In the picture of up to three classes the nearest class wins, exactly and by any method. An image with the logits $l_k$
lies at $p = \sum_k l_k u_k$, with unit vectors $u_k$ at equal angles. As these add up to zero, $p \cdot (u_k - u_j)$
is proportional to $l_k - l_j$: whichever of the points $r u_k$ is nearest to $p$ has the largest logit, and
differences of squared distances are differences of logits.
"""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.special import softmax
from torch.nn import functional as F

from tapnet.data.preprocessing import Unreadable
from tapnet.evaluation.plotting import COLORS, MARKERS, new_canvas, save, shade_regions
from tapnet.inference.images import ImageInput, read_image, unreadable_error, with_input
from tapnet.inference.predictor import TaskPredictor
from tapnet.inference.task import Task
from tapnet.text import shorten

MOST = 3  # classes of a picture
NEAREST = 4  # examples shown beside the image
SHOWN = 6  # classes in the figure
_PALETTE = tuple(color for color in COLORS if color != "#000000")  # black is the image's
_GOLDEN = 0.618034  # turns of the color wheel between classes beyond the palette
Points = NDArray[np.float64]


@dataclass(frozen=True)
class Picture:
    """Where classes, their examples and an image lie; the centers have distance 1 from the origin."""

    classes: tuple[int, ...]  # of the task
    centers: Points  # (k, 2)
    examples: NDArray[np.intp]  # rows of the task's examples
    points: Points  # (n, 2), of these examples
    query: Points | None  # (2,), of the image


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
    probabilities: Points  # (way,)
    query: Points = field(repr=False)  # (dim,), the direction of the image
    examples: Points = field(repr=False)  # (n, dim)
    picture: Picture = field(repr=False)  # of the most probable classes

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
        """Save the explanation as a figure, in which a class has the same color and marker as in others of its task."""
        figure: Any = new_canvas(12, 7.6)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # inches, also at the edges
        top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.25])
        shown = [int(k) for k in np.argsort(-self.probabilities, kind="stable")[:SHOWN]]
        _draw_answer(top, self, shown)
        left, right = bottom.subfigures(1, 2, width_ratios=[1, 1.15])
        _draw_nearest(left, self)
        _draw_picture(right.subplots(), self)
        return save(figure, Path(out))


def explain(task: Task, image: ImageInput, network: str | None = None, device: str = "cpu") -> Explanation:
    """Return why a task classifies an image as it does; raise UserError if the image cannot be read."""
    predictor = TaskPredictor.open(task, network, device)
    example = read_image(image, predictor.preprocessing)
    if isinstance(example, Unreadable):
        raise unreadable_error(image, example.reason)
    return explain_features(predictor, predictor.network.embed([example.pixels]), image)


def explain_features(predictor: TaskPredictor, features: NDArray[np.float32], image: ImageInput) -> Explanation:
    """Return the explanation of one image from its features (1, *feature_shape)."""
    task, network = predictor.task, predictor.network

    def directions(features: NDArray[np.float32]) -> Points:
        inside = predictor.adapted.project(torch.from_numpy(features).to(network.device).float())
        return F.normalize(inside.flatten(1).double(), dim=1).detach().cpu().numpy()

    logits = network.logits(predictor.head, features)
    probabilities = task.probabilities(logits)[0]
    best = [int(k) for k in np.argsort(-probabilities, kind="stable")[:MOST]]
    picture = draw_picture(predictor.example_logits, task.examples.labels, best, logits[0])
    return Explanation(task, image, probabilities, directions(features)[0], directions(task.examples.features), picture)


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


def _draw_picture(axis: Any, explanation: Explanation) -> None:
    """Examples, class marks and the image: the nearest class mark wins."""
    picture, task = explanation.picture, explanation.task
    colors = [class_color(k) for k in picture.classes]
    labels = task.examples.labels[picture.examples]
    for k, color, center in zip(picture.classes, colors, picture.centers, strict=True):
        style: dict[str, Any] = {"color": color, "marker": MARKERS[k % len(MARKERS)]}
        axis.scatter(*picture.points[labels == k].T, s=32, edgecolors="white", linewidths=0.6, zorder=3, **style)
        large = {"s": 260, "edgecolors": "black", "linewidths": 1.4, "alpha": 0.45}  # seen through
        axis.scatter(*center, label=shorten(task.classes[k], 18), **large, **style)
    assert picture.query is not None
    axis.scatter(*picture.query, s=330, marker="*", color="black", zorder=4, label="your image")
    axis.margins(0.12)
    shade_regions(axis, picture.centers, colors)
    axis.set(xticks=[], yticks=[])
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, markerscale=0.55)
    left_out = len(task.classes) - len(picture.classes)
    axis.set_title(
        "how the task decides" + (f" (the other {left_out} classes left out)" if left_out else ""), fontsize=11
    )
    axis.set_xlabel(
        "small marks: examples; large marks: classes\n"
        "the nearest large mark wins (shaded); in the middle all are equally likely",
        fontsize=9,
    )
