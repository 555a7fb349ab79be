"""Figure: the image, its probabilities, the most similar examples, and where all lie where the task decides."""

from __future__ import annotations

import colorsys
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tapnet.inference.explanation import Explanation
from tapnet.inference.images import displayed_image
from tapnet.inference.planes import Points
from tapnet.plotting import COLORS, MARKERS, new_canvas, save, shade_regions
from tapnet.text import shorten

SHOWN = 6  # classes
_PALETTE = tuple(color for color in COLORS if color != "#000000")  # black is the image's
_GOLDEN = 0.618034  # turns of the color wheel between classes beyond the palette


def explanation_figure(explanation: Explanation, out: Path) -> Path:
    """Save the figure; a class has the same color and marker in every figure of its task."""
    figure: Any = new_canvas(12, 7.6)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # inches, also at the edges
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.25])
    shown = [int(k) for k in np.argsort(-explanation.probabilities, kind="stable")[:SHOWN]]
    _answer(top, explanation, shown)
    left, right = bottom.subfigures(1, 2, width_ratios=[1, 1.15])
    _nearest(left, explanation)
    draw = _exact_plane if explanation.planes and explanation.planes.exact else _plane
    draw(right.subplots(), explanation, shown)
    return save(figure, out)


def class_color(index: int) -> str:
    """Return the color of the class at this position of a task."""
    if index < len(_PALETTE):
        return _PALETTE[index]
    red, green, blue = colorsys.hsv_to_rgb(index * _GOLDEN % 1, 0.75, 0.75)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _answer(figure: Any, explanation: Explanation, shown: list[int]) -> None:
    image, bars = figure.subplots(1, 2, width_ratios=[1, 1.6])
    image.imshow(displayed_image(explanation.image))
    image.set(xticks=[], yticks=[])
    image.set_title("your image", fontsize=11)
    classes, probabilities, rows = explanation.task.classes, explanation.probabilities, shown[::-1]
    bars.barh(range(len(rows)), 100 * probabilities[rows], color=[class_color(k) for k in rows])
    bars.set_yticks(range(len(rows)), [shorten(classes[k], 24) for k in rows])
    for row, k in enumerate(rows):
        bars.text(100 * probabilities[k] + 1, row, f"{100 * probabilities[k]:.1f}%", va="center")
    bars.set(xlim=(0, 112), xticks=range(0, 101, 20), xlabel="probability (%)")
    bars.spines[["top", "right"]].set_visible(False)
    best = shown[0]
    bars.set_title(f"{shorten(classes[best], 36)}, {100 * probabilities[best]:.0f}%", fontsize=14, weight="bold")


def _nearest(figure: Any, explanation: Explanation) -> None:
    figure.suptitle("the most similar of your examples", fontsize=11)
    axes = np.atleast_1d(figure.subplots(2, 2)).reshape(-1)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
    for axis in axes[len(explanation.nearest) :]:
        axis.axis("off")
    task = explanation.task
    for axis, neighbor in zip(axes, explanation.nearest, strict=False):
        if thumbnail := task.examples.thumbnails[neighbor.index]:
            axis.imshow(Image.open(io.BytesIO(thumbnail), formats=["JPEG"]).convert("RGB"))
        axis.spines[:].set(color=class_color(task.classes.index(neighbor.label)), linewidth=3)
        axis.set_title(f"{shorten(neighbor.label, 18)}\nsimilarity {neighbor.similarity:.2f}", fontsize=9)
    if explanation.reason:
        figure.supxlabel(
            f"{shorten(explanation.nearest[0].label, 18)} has the most similar example,\n"
            f"{shorten(explanation.label, 18)} the most similar class as a whole",
            fontsize=9,
        )


def _exact_plane(axis: Any, explanation: Explanation, shown: list[int]) -> None:
    """Examples, centers and the image in the plane of two or three classes, which has all that tells them apart."""
    planes = explanation.planes
    assert planes is not None and explanation.place is not None  # noqa: PT018
    _marks(axis, explanation, shown, planes.examples[1], planes.centers[1], explanation.place)
    shade_regions(axis, planes.centers[1], [class_color(k) for k in range(len(planes.centers[1]))])
    axis.set_title("where the task decides, to scale", fontsize=11)
    axis.set_xlabel(
        "small marks: examples; large marks: what stands for each class\nan image is of the class whose large mark is "
        "closest (shaded)",
        fontsize=9,
    )


def _plane(axis: Any, explanation: Explanation, shown: list[int]) -> None:
    """Directions of examples, centers and the image; left to right is from the second class to the first."""
    task, examples = explanation.task, explanation.examples
    plane = _view(np.stack([examples[task.examples.labels == k].mean(axis=0) for k in shown]))
    _marks(axis, explanation, shown, examples @ plane, explanation.centers @ plane, explanation.query @ plane)
    axis.set_title("the classes as the task sees them (distances are approximate)", fontsize=11)
    first, second = (shorten(task.classes[k], 14) for k in shown[:2])
    axis.set_xlabel(
        f"← more like {second}    more like {first} →\nsmall marks: examples; large marks: the center of each class",
        fontsize=9,
    )


def _marks(
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


def _view(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return two orthonormal directions (dim, 2): from the second point to the first, then where all differ most."""
    across = points[0] - points[1]
    across = across / max(np.linalg.norm(across), 1e-12)
    rest = points - points.mean(axis=0)
    rest = rest - np.outer(rest @ across, across)
    along = np.linalg.svd(rest, full_matrices=False)[2][0]
    return np.stack([across, along], axis=1)
