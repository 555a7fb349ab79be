"""Figure: why a task says what it says of one picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tapnet.inference.task import Task
from tapnet.methods import Head
from tapnet.plotting import COLOURS, MARKERS, new_canvas, save

SHOWN = 6  # classes, each with a colour of its own; black is the picture's
NEAREST = 4  # examples beside the picture
OTHER = "#999999"  # of classes that are not shown


def explanation_figure(task: Task, head: Head, picture: Image.Image, features: NDArray[np.float32], out: Path) -> Path:
    """The picture, the probabilities, the nearest examples, and where all lie in the space in which it was decided."""
    probabilities = task.probabilities(features)[0]
    order = np.argsort(-probabilities, kind="stable")
    figure: Any = new_canvas(11, 7.2)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # inches, also at the edges
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.25])
    _head(top, task, picture, probabilities, order)
    left, right = bottom.subfigures(1, 2, width_ratios=[1, 1.15])
    _nearest(left, task, head, features, order)
    _plane(right.subplots(), task, head, features, order)
    return save(figure, out)


def _head(figure: Any, task: Task, picture: Image.Image, probabilities: NDArray[np.float64], order: Any) -> None:
    image, bars = figure.subplots(1, 2, width_ratios=[1, 1.6])
    image.imshow(picture.convert("RGB"))
    image.set(xticks=[], yticks=[])
    image.set_title("your picture", fontsize=11)
    shown = order[:SHOWN][::-1]
    bars.barh(range(len(shown)), 100 * probabilities[shown], color=COLOURS[: len(shown)][::-1])
    bars.set_yticks(range(len(shown)), [task.classes[k] for k in shown])
    for row, k in enumerate(shown):
        bars.text(100 * probabilities[k] + 1, row, f"{100 * probabilities[k]:.1f}%", va="center")
    bars.set(xlim=(0, 112), xticks=range(0, 101, 20), xlabel="probability (%)")
    bars.spines[["top", "right"]].set_visible(False)
    best = order[0]
    bars.set_title(f"{task.classes[best]}, {100 * probabilities[best]:.0f}% sure", fontsize=14, weight="bold")


def _nearest(figure: Any, task: Task, head: Head, features: NDArray[np.float32], order: Any) -> None:
    """The examples whose direction is closest to the picture's where the head looks at them, closest first."""
    colours = dict(zip(order[:SHOWN].tolist(), COLOURS, strict=False))
    similarities = (_directions(head, task.examples.features) @ _directions(head, features).T)[:, 0]
    figure.suptitle("the most similar of your examples", fontsize=11)
    axes = np.atleast_1d(figure.subplots(2, (NEAREST + 1) // 2)).reshape(-1)
    for axis in axes[min(NEAREST, len(task.examples)) :]:
        axis.axis("off")
    for axis, index in zip(axes, np.argsort(-similarities, kind="stable")[:NEAREST], strict=False):
        thumbnail = task.examples.thumbnails[index]
        if thumbnail:
            axis.imshow(Image.open(io.BytesIO(thumbnail), formats=["JPEG"]).convert("RGB"))
        label = int(task.examples.labels[index])
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set(color=colours.get(label, OTHER), linewidth=3)
        axis.set_title(f"{task.classes[label]}\nsimilarity {similarities[index]:.2f}", fontsize=9)


def _plane(axis: Any, task: Task, head: Head, features: NDArray[np.float32], order: Any) -> None:
    """Directions of examples, references and the picture; left to right is from the second class to the first."""
    shown = list(order[:SHOWN])
    examples, query = _directions(head, task.examples.features), _directions(head, features)
    marks = _directions(head, _marks(task, head))
    plane = _view(np.stack([examples[task.examples.labels == k].mean(axis=0) for k in shown]))
    for rank, k in enumerate(shown):
        style = {"color": COLOURS[rank], "marker": MARKERS[rank]}
        small = {"s": 32, "edgecolors": "white", "linewidths": 0.6, "zorder": 3}
        axis.scatter(*(examples[task.examples.labels == k] @ plane).T, **small, **style)
        large = {"s": 260, "edgecolors": "black", "linewidths": 1.4, "alpha": 0.45}  # seen through
        axis.scatter(*(marks[k] @ plane), label=task.classes[k], **large, **style)
    axis.scatter(*(query @ plane).T, s=330, marker="*", color="black", zorder=4, label="your picture")
    mark = "the center of each class"
    axis.set_title("where it was decided, seen flat: only roughly true", fontsize=11)
    axis.margins(0.12)
    first, second = (_short(task.classes[k]) for k in shown[:2])
    axis.set(xticks=[], yticks=[])
    sides = f"← more like {second}    more like {first} →"
    axis.set_xlabel(f"{sides}\nsmall marks: examples; large marks: {mark}", fontsize=9)
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, markerscale=0.55)


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _directions(head: Head, features: NDArray[np.floating]) -> NDArray[np.float64]:
    """Unit vectors inside the projection: the linear head compares directions, lengths are the same for all classes."""
    inside = head.project(torch.from_numpy(features).flatten(1).double()).detach().numpy()
    unit: NDArray[np.float64] = inside / np.maximum(np.linalg.norm(inside, axis=1, keepdims=True), 1e-12)
    return unit


def _marks(task: Task, head: Head) -> NDArray[np.floating]:
    """Return what stands for each class (way, dim): the head's centers, or the means of the examples."""
    if head.centers is not None:
        return head.centers.detach().double().numpy()
    features, labels = task.examples.features, task.examples.labels
    return np.stack([features[labels == k].mean(axis=0).reshape(-1) for k in range(len(task.classes))])


def _view(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Two orthonormal directions (dim, 2): from the second point to the first, then where all differ most besides."""
    across = points[0] - points[1]
    across = across / max(np.linalg.norm(across), 1e-12)
    rest = points - points.mean(axis=0)
    rest = rest - np.outer(rest @ across, across)
    along = np.linalg.svd(rest, full_matrices=False)[2][0]
    return np.stack([across, along], axis=1)
