"""Figure: the paths of the references through training (the paper's Figure 4)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tapnet.errors import UserError
from tapnet.paper.tsne import Points, tsne
from tapnet.plotting import COLORS, new_figure
from tapnet.training.trajectory import read_trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STAMPS = ((12, 8), (14, -16), (-38, 10))  # offsets of the episode numbers along a path


def reference_trajectories(run: Path) -> Figure:
    """Return a t-SNE plot of every reference at every validation; on the right four of them, with episode numbers."""
    trajectory = read_trajectory(run)
    if len(trajectory.episodes) < 3 or "references" not in trajectory.tensors:
        raise UserError(
            f"{run} holds {len(trajectory.episodes)} snapshots of references, three are needed for a path: expected "
            "the folder of a TapNet run, after two validations."
        )
    vectors = torch.stack(trajectory.tensors["references"]).numpy()  # (time, num_references, dim)
    paths = tsne(vectors.reshape(-1, vectors.shape[-1])).reshape(*vectors.shape[:2], 2)

    chosen = _far_apart(paths[-1], min(len(COLORS) // 2, paths.shape[1]))
    some = tsne(vectors[:, chosen].reshape(-1, vectors.shape[-1])).reshape(len(vectors), len(chosen), 2)

    figure, axes = new_figure(11, 5.4, columns=2)
    _draw_all(figure, axes[0], paths, trajectory.episodes)
    _draw_some(axes[1], some, trajectory.episodes, chosen)
    for axis in axes:
        axis.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
    return figure


def _draw_all(figure: Figure, axis: Any, paths: Points, episodes: list[int]) -> None:
    axis.plot(paths[..., 0], paths[..., 1], color="0.8", linewidth=0.6, zorder=1)
    stamps = np.repeat(episodes, paths.shape[1])
    dots = axis.scatter(paths[..., 0], paths[..., 1], c=stamps, cmap="viridis", s=7, zorder=2)
    axis.scatter(
        *paths[-1].T, s=34, facecolors="none", edgecolors="black", linewidths=0.8, zorder=3, label="at the end"
    )
    axis.set_title(f"All {paths.shape[1]} references")
    axis.legend(loc="lower right")
    figure.colorbar(dots, ax=axis, label="training episodes", shrink=0.8)


def _draw_some(axis: Any, paths: Points, episodes: list[int], chosen: list[int]) -> None:
    stamped = [round(step) for step in np.linspace(0, len(episodes) - 1, len(_STAMPS))]
    for column, (color, k) in enumerate(zip(COLORS, chosen, strict=False)):
        path = paths[:, column]
        axis.plot(*path.T, "-", color=color, linewidth=1.3, marker=".", markersize=4)
        axis.plot(*path[-1], "o", color=color, markersize=9, label=f"reference {k + 1}")
        for step, place in zip(stamped, _STAMPS, strict=True):
            axis.annotate(
                f"{episodes[step]:,}",
                path[step],
                xytext=place,
                textcoords="offset points",
                fontsize=8,
                color=color,
                arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6},
            )
    axis.set_title(f"{len(chosen)} of them, with training episodes")
    axis.legend(loc="best")
    axis.margins(0.15)


def _far_apart(points: Points, count: int) -> list[int]:
    """Return indices of points, each the farthest from those before it."""
    chosen = [int(np.linalg.norm(points - points.mean(axis=0), axis=1).argmax())]
    while len(chosen) < count:
        distances: NDArray[np.float32] = np.linalg.norm(points[:, None] - points[chosen], axis=-1).min(axis=1)
        chosen.append(int(distances.argmax()))
    return chosen
