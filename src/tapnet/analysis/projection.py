"""Figure: an episode in embedding space and in projection space (the paper's Figure 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tapnet.analysis.plotting import COLOURS, MARKERS, new_figure, save
from tapnet.batches import EpisodeImages, episode_images
from tapnet.datasets import ImageSet
from tapnet.episodes import Episode
from tapnet.functional import null_space
from tapnet.methods import Method, TapNet

Points = NDArray[np.float32]


def projection_figure(
    method: Method, images: ImageSet, out: Path, way: int = 5, shot: int = 5, query: int = 20, seed: int = 0
) -> Path:
    """t-SNE of the query features and the references, before and after the projection of one episode."""
    if not isinstance(method, TapNet):
        raise ValueError(f"Only TapNet has a projection to draw, this is {type(method).__name__}.")
    if way > len(COLOURS):
        raise ValueError(f"The picture tells {len(COLOURS)} classes apart, got way={way}.")
    episode = images.episodes(way, shot, query, seed)[0]
    before, after = _spaces(method, episode_images(images, episode, next(method.parameters()).device))
    labels = np.repeat(np.arange(way), query)

    figure, axes = new_figure(11, 5.6, columns=2)
    for axis, points, title in zip(axes, (before, after), ("Embedding space", "Projection space"), strict=True):
        _scatter(axis, _tsne(points), labels, way)
        axis.set_title(title)
    _legend(figure, axes[0], images, episode)
    return save(figure, out)


@torch.inference_mode()
def _spaces(method: TapNet, episode: EpisodeImages) -> tuple[Points, Points]:
    """Query features and then references, as they are and projected."""
    support, query = (method.embed(part) for part in (episode.support_images, episode.query_images))
    references, errors = method.adapt(support, episode.support_labels)
    points = torch.cat([query, references])
    return points.cpu().numpy(), (points @ null_space(errors, method.projection_dim)).cpu().numpy()


def _tsne(points: Points) -> Points:
    from sklearn.manifold import TSNE

    perplexity = min(20.0, (len(points) - 1) / 3)
    embedded: Points = TSNE(perplexity=perplexity, init="pca", method="exact", random_state=0).fit_transform(points)
    return embedded


def _scatter(axis: Any, points: Points, labels: NDArray[np.int64], way: int) -> None:
    queries, references = points[:-way], points[-way:]
    for k in range(way):
        style = {"color": COLOURS[k], "marker": MARKERS[k]}
        axis.scatter(*queries[labels == k].T, s=28, alpha=0.75, linewidths=0, **style)
        axis.scatter(*references[k], s=110, edgecolors="black", linewidths=1.4, zorder=3, **style)
    axis.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")


def _legend(figure: Any, axis: Any, images: ImageSet, episode: Episode) -> None:
    """One entry a class with its name, and what the large marks are."""
    handles = [
        axis.scatter([], [], s=60, color=COLOURS[k], marker=MARKERS[k], label=images.class_names[label])
        for k, label in enumerate(episode.classes)
    ]
    large = axis.scatter([], [], s=110, color="white", edgecolors="black", linewidths=1.4, label="its reference")
    figure.legend(handles=[*handles, large], loc="outside lower center", ncols=len(handles) + 1, frameon=False)
