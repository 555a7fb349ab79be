"""Figure: an episode in embedding space and in projection space (the paper's Figure 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from tapnet.data import ImageSet
from tapnet.data.batches import EpisodeImages, episode_images
from tapnet.errors import UserError
from tapnet.functional import class_prototypes, modified_references, null_space, reference_directions
from tapnet.hardware import device_of
from tapnet.methods import Method, TapNet, TapNetVariant
from tapnet.paper.tsne import Points, tsne
from tapnet.plotting import COLORS, new_figure, shade_regions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLANE = "the plane of the three references that classify, to scale\nshaded: where each is the closest"
_SIDE = 17.0  # of an image on the page, in points


def has_projection(method: Method) -> bool:
    """Return whether `projection_figure` can draw the method: whether it is TapNet or a variant of it."""
    return isinstance(method, TapNet)


def projection_figure(
    method: Method, images: ImageSet, way: int = 5, shot: int = 5, query: int = 15, seed: int = 0
) -> Figure:
    """Return a t-SNE plot of one episode before and after its projection: query images, and references as circles.

    It shows directions, because the projection does not match lengths, and after a short run the references are so
    short beside the features that all would be in one place. With three classes the projection space is shown exactly:
    in the plane of their references, which contains everything that separates the classes.
    """
    if not isinstance(method, TapNet):
        raise UserError(f"Only TapNet has a projection to draw, this is {type(method).__name__}.")
    if way > len(COLORS):
        raise UserError(f"The figure tells {len(COLORS)} classes apart, got way={way}.")
    episode = images.episodes(way, shot, query, seed)[0]
    embedded, inside, exact = _spaces(method, episode_images(images, episode, device_of(method)))
    pixels = images.gather(episode.query)  # (way, query, height, width, channels)

    figure, axes = new_figure(11, 6, columns=2)
    placed = tsne(embedded), tsne(inside) if exact is None else exact
    for axis, points, title in zip(axes, placed, ("Embedding space", "Projection space"), strict=True):
        _draw(axis, points, pixels)
        axis.set(title=title, xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
    kind, shown = _projection_references(method), "Directions of features"
    if exact is not None:
        axes[0].set(xlabel="t-SNE 1 of directions", ylabel="t-SNE 2 of directions")
        axes[1].set(xlabel=_PLANE, ylabel="")
        shade_regions(axes[1], exact[-way:], COLORS[:way])
        kind, shown = f"left: {kind}", "Features"
    _legend(figure, axes[0], [images.class_names[label] for label in episode.classes], kind)
    figure.suptitle(f"{shown}, {way}-way {shot}-shot, {images.split} classes of {images.name}")
    return figure


@torch.inference_mode()
def _spaces(method: TapNet, episode: EpisodeImages) -> tuple[Points, Points, Points | None]:
    """Return the directions of query features and then of the references that built the projection.

    They are returned as embedded, as projected, and for three classes in the plane of the references (else `None`).
    """
    support, query = (method.embed(part) for part in (episode.support_images, episode.query_images))
    prototypes = class_prototypes(support, episode.support_labels, episode.way)
    head = method.adapt_to(prototypes)
    references, modified = method.references[head.chosen], _projection_references(method) == "modified"
    points = torch.cat([query, modified_references(references) if modified else references])
    inside = points @ null_space(head.ordered_errors, method.projection_dim, head.leading)
    exact = None
    if len(references) == 3 and method.projection_dim is None and head.shift is None:
        plane = reference_directions(head.references, head.errors)
        exact = (torch.cat([query, head.references]) @ plane.mT).cpu().numpy()
    return F.normalize(points, dim=1).cpu().numpy(), F.normalize(inside, dim=1).cpu().numpy(), exact


def _projection_references(method: TapNet) -> str:
    return method.projection_references if isinstance(method, TapNetVariant) else "modified"


def _draw(axis: Any, points: Points, pixels: NDArray[np.uint8]) -> None:
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    way, query = pixels.shape[:2]
    places = points[:-way].reshape(way, query, 2)
    axis.scatter(*points.T, alpha=0)  # sets the limits of the axes
    for k, q in np.ndindex(way, query):
        drawn, frame = _tinted(pixels[k, q], COLORS[k])
        image = OffsetImage(drawn, zoom=_SIDE / drawn.shape[0])
        style = {"edgecolor": COLORS[k], "linewidth": 1.2 if frame else 0, "facecolor": "none"}
        axis.add_artist(AnnotationBbox(image, tuple(places[k, q]), pad=0, bboxprops=style))
    for k, place in enumerate(points[-way:]):
        axis.scatter(*place, s=230, color=COLORS[k], edgecolors="black", linewidths=1.6, zorder=5)
        axis.annotate("φ", place, ha="center", va="center", color="white", fontsize=11, zorder=6)


def _tinted(image: NDArray[np.uint8], color: str) -> tuple[NDArray[np.float64], bool]:
    """Return a drawing as ink of this color on transparency; a photograph unchanged, and that it needs a frame."""
    from matplotlib.colors import to_rgb

    values = image / 255
    if image.shape[-1] == 3:
        return values, True
    ink = np.broadcast_to(to_rgb(color), (*values.shape[:2], 3))
    return np.concatenate([ink, values], axis=-1), False


def _legend(figure: Any, axis: Any, names: list[str], kind: str) -> None:
    """Draw a legend with one entry per class, and one for the circles."""
    handles = [
        axis.scatter([], [], s=60, color=color, marker="s", label=name)
        for color, name in zip(COLORS, names, strict=False)
    ]
    style = {"s": 110, "color": "white", "edgecolors": "black", "linewidths": 1.4}
    circle = axis.scatter([], [], label=f"φ: its reference ({kind})", **style)
    figure.legend(handles=[*handles, circle], loc="outside lower center", ncols=3, frameon=False)
