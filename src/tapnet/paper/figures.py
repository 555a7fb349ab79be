"""The figures of the paper: an episode in its projection, a run's curves, its references' paths, ablations, rivals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from tapnet.data import ImageSet
from tapnet.data.batches import EpisodeImages, episode_images
from tapnet.errors import UserError
from tapnet.evaluation.plotting import COLORS, new_figure, shade_regions
from tapnet.functional import class_prototypes, modified_references, null_space, reference_directions
from tapnet.hardware import device_of
from tapnet.methods import Method, TapNet
from tapnet.paper.ablations import ROTATIONS
from tapnet.paper.published import ABLATION_TABLES, RIVALS
from tapnet.paper.results import Result
from tapnet.paper.tables import matching_results, task_words
from tapnet.training.run_folder import EPISODES, Point, read_curve, read_snapshots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = NDArray[np.float32]

DISTANCE = "reference_distance"  # the diagnostic that TapNet records
_PLANE = "the plane of the three references that classify, to scale\nshaded: where each is the closest"
_SIDE = 17.0  # of an image on the page, in points
_STAMPS = ((12, 8), (14, -16), (-38, 10))  # offsets of the episode numbers along a path


def tsne(points: Points) -> Points:
    """Return positions (n, 2) of points (n, dim), always the same for the same points."""
    from sklearn.manifold import TSNE

    perplexity = min(20.0, (len(points) - 1) / 3)
    method = "exact" if len(points) < 500 else "barnes_hut"
    placed: Points = TSNE(perplexity=perplexity, init="pca", method=method, random_state=0).fit_transform(points)
    return placed


def learning_curve(run: Path) -> Figure:
    """Return a plot of the validation accuracy, and beside it of the distance if the method has references."""
    points = _points(run)
    has_references = DISTANCE in points[0].diagnostics
    figure, axes = new_figure(10, 3.8, columns=2) if has_references else new_figure(5.5, 3.8)
    axis = axes[0] if has_references else axes
    accuracies, widths = (
        [100 * getattr(point, f"validation_{key}") for point in points] for key in ("accuracy", "ci95")
    )
    _draw_band(axis, [point.episode for point in points], accuracies, widths)
    _draw_curve(axis, points, accuracies, COLORS[0], "validation classes")
    axis.set(ylabel="accuracy (%)", title="Accuracy on classes not trained on")
    if has_references:
        _draw_distance(axes[1], points)
    return figure


def reference_distance(run: Path) -> Figure:
    """Return a plot of the smallest distance between references during training: the paper's Figure 3."""
    points = _points(run)
    if DISTANCE not in points[0].diagnostics:
        raise UserError(f"The method of {run} has no references: expected the folder of a TapNet run.")
    figure, axis = new_figure(5.5, 3.8)
    _draw_distance(axis, points)
    return figure


def _points(run: Path) -> list[Point]:
    points = read_curve(run)
    if not points:
        raise UserError(f"{run} has no point on its learning curve yet: let it train until its first validation.")
    return points


def _draw_distance(axis: Any, points: list[Point]) -> None:
    _draw_curve(axis, points, [point.diagnostics[DISTANCE] for point in points], COLORS[2])
    axis.set(ylabel="Euclidean distance", title="Smallest distance between normalized references")


def _draw_curve(axis: Any, points: list[Point], values: list[float], color: str, label: str | None = None) -> None:
    episodes = [point.episode for point in points]
    best = max(range(len(points)), key=lambda index: points[index].validation_accuracy)
    axis.plot(episodes, values, color=color, label=label)
    axis.plot(episodes[best], values[best], "o", color=COLORS[1], label="best on validation classes")
    axis.set(xlabel="training episodes")
    axis.legend(loc="best")
    axis.grid(alpha=0.3)


def _draw_band(axis: Any, places: Sequence[int], values: list[float], half_widths: list[float]) -> None:
    low, high = np.array(values) - half_widths, np.array(values) + half_widths
    axis.fill_between(places, low, high, color=COLORS[0], alpha=0.2, linewidth=0, label="95% over episodes")


def reference_trajectories(run: Path) -> Figure:
    """Return the paths of all references through training by t-SNE, the paper's Figure 4; on the right four of them."""
    snapshots = read_snapshots(run)
    episodes = snapshots[EPISODES].tolist()
    if len(episodes) < 3 or "references" not in snapshots:
        raise UserError(
            f"{run} holds {len(episodes)} snapshots of references, three are needed for a path: expected "
            "the folder of a TapNet run, after two validations."
        )
    vectors = snapshots["references"].numpy()  # (time, num_references, dim)
    paths = tsne(vectors.reshape(-1, vectors.shape[-1])).reshape(*vectors.shape[:2], 2)
    chosen = _far_apart(paths[-1], min(len(COLORS) // 2, paths.shape[1]))
    some = tsne(vectors[:, chosen].reshape(-1, vectors.shape[-1])).reshape(len(vectors), len(chosen), 2)

    figure, axes = new_figure(11, 5.4, columns=2)
    axes[0].plot(paths[..., 0], paths[..., 1], color="0.8", linewidth=0.6, zorder=1)
    stamps = np.repeat(episodes, paths.shape[1])
    dots = axes[0].scatter(paths[..., 0], paths[..., 1], c=stamps, cmap="viridis", s=7, zorder=2)
    ring = {"facecolors": "none", "edgecolors": "black", "linewidths": 0.8}
    axes[0].scatter(*paths[-1].T, s=34, zorder=3, label="at the end", **ring)
    axes[0].set(title=f"All {paths.shape[1]} references")
    axes[0].legend(loc="lower right")
    figure.colorbar(dots, ax=axes[0], label="training episodes", shrink=0.8)
    _draw_paths(axes[1], some, episodes, chosen)
    for axis in axes:
        axis.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
    return figure


def _draw_paths(axis: Any, paths: Points, episodes: list[int], chosen: list[int]) -> None:
    stamped = [round(step) for step in np.linspace(0, len(episodes) - 1, len(_STAMPS))]
    for column, (color, k) in enumerate(zip(COLORS, chosen, strict=False)):
        path, arrow = paths[:, column], {"arrowstyle": "-", "color": color, "linewidth": 0.6}
        axis.plot(*path.T, "-", color=color, linewidth=1.3, marker=".", markersize=4)
        axis.plot(*path[-1], "o", color=color, markersize=9, label=f"reference {k + 1}")
        for step, place in zip(stamped, _STAMPS, strict=True):
            style = {"textcoords": "offset points", "fontsize": 8, "color": color, "arrowprops": arrow}
            axis.annotate(f"{episodes[step]:,}", path[step], xytext=place, **style)
    axis.set(title=f"{len(chosen)} of them, with training episodes")
    axis.legend(loc="best")
    axis.margins(0.15)


def _far_apart(points: Points, count: int) -> list[int]:
    """Return indices of points, each the farthest from those before it."""
    chosen = [int(np.linalg.norm(points - points.mean(axis=0), axis=1).argmax())]
    while len(chosen) < count:
        distances: Points = np.linalg.norm(points[:, None] - points[chosen], axis=-1).min(axis=1)
        chosen.append(int(distances.argmax()))
    return chosen


def dimension_figure(result: Result) -> Figure:
    """Return the accuracy at every D, with its interval, and for other orders of the columns of M: Figure 5."""
    rows = result["rows"]
    dims, band = range(1, len(rows) + 1), {"alpha": 0.5, "linewidth": 0, "label": f"{ROTATIONS} random rotations"}
    accuracies, widths, lowest, highest = (
        [100 * row[key] for row in rows] for key in ("accuracy", "ci95", "lowest", "highest")
    )
    figure, axis = new_figure(6, 4)
    axis.fill_between(dims, lowest, highest, color=COLORS[4], **band)
    _draw_band(axis, dims, accuracies, widths)
    axis.plot(dims, accuracies, color=COLORS[0], label=f"{result['recipe']['name']}, Householder")
    if rows[0].get("references_first") is not None:
        first = [100 * row["references_first"] for row in rows]
        axis.plot(dims, first, color=COLORS[1], label="the references' directions first")
    axis.set(xlabel="dimension D of the projection", ylabel="accuracy (%)", xscale="log")
    axis.set(title=task_words(result["task"]))
    axis.legend(loc="lower right")
    axis.grid(alpha=0.3)
    return figure


def episode_composition_figure(result: Result) -> Figure:
    """Return the accuracy of each composition of training episodes, beside the published one: supplement, Figure 1."""
    figure, axes = new_figure(10, 4, columns=2)
    rows = [(row["variant"], 100 * row["accuracy"], 100 * row["ci95"]) for row in result["rows"]]
    published = [(name, float(value), 0.0) for name, _, _, value in ABLATION_TABLES["episode-composition"]["rows"]]
    for axis, points, color in ((axes[0], rows, COLORS[0]), (axes[1], published, COLORS[1])):
        points.sort(key=lambda point: int(point[0].split("-")[0]))
        names, accuracies, widths = zip(*points, strict=True)
        ways = [int(name.split("-")[0]) for name in names]
        axis.errorbar(ways, accuracies, widths if any(widths) else None, fmt="o-", color=color, capsize=3)
        for way, name, accuracy in zip(ways, names, accuracies, strict=True):
            style = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axis.annotate(name.split()[1], (way, accuracy), **style)
        axis.set(xlabel="classes of a training episode", ylabel="accuracy (%)")
        axis.margins(0.12)
        axis.grid(alpha=0.3)
    length = result["rows"][0]["training_episodes"]
    axes[0].set(title=f"{result['recipe']['name']}, {length} training episodes each\n{task_words(result['task'])}")
    axes[1].set(title="Published: ResNet-12, best queries of each\n5-way 5-shot on mini-imagenet (test)")
    return figure


def rivals_figure(results: list[Result], way: int = 5, shot: int = 1) -> Figure:
    """Return the accuracies of every method on a task of Omniglot, ours and the published ones.

    Raise UserError if the task is not in the table or no method has a result.
    """
    table = RIVALS["rivals"]
    task = next((task for task in table.columns if (task.way, task.shot) == (way, shot)), None)
    if task is None:
        tasks = ", ".join(task.heading for task in table.columns)
        raise UserError(f"The methods are compared on {tasks}, got {way}-way {shot}-shot.")
    column = table.columns.index(task)
    labels: list[str] = []
    ours, published = [], []
    for name, row in table.rows.items():
        recipe = row.recipes[column]
        if recipe and (measured := matching_results(recipe, task, results, by_name=True)):
            evaluation = measured[0]["evaluation"]
            if row.published and row.published[column] != "—":
                published.append((float(row.published[column].split()[0]), len(labels)))
            labels.append(f"{name} (transductive)" if evaluation.get("transductive") else name)
            ours.append((100 * evaluation["accuracy"], 100 * evaluation["ci95"]))
    if not ours:
        raise UserError("No recorded result is of a method on Omniglot: `tapnet table rivals` has the commands.")
    figure, axis = new_figure(7, 1.2 + 0.4 * len(ours))
    means, widths = zip(*ours, strict=True)
    style = {"fmt": "o", "color": COLORS[0], "capsize": 4, "label": "ours, 95% over episodes"}
    axis.errorbar(means, range(len(ours)), xerr=widths, **style)
    if published:
        axis.plot(*zip(*published, strict=True), "|", color=COLORS[1], markersize=14, label="published")
    axis.set(yticks=range(len(ours)), yticklabels=labels)
    axis.set(xlabel=f"accuracy (%), {task.heading}, {task.classes} unseen characters")
    axis.invert_yaxis()
    axis.grid(alpha=0.3, axis="x")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    return figure


def has_projection(method: Method) -> bool:
    """Return whether `projection_figure` can draw the method: whether it is TapNet or a variant of it."""
    return isinstance(method, TapNet)


def projection_figure(
    method: Method, images: ImageSet, way: int = 5, shot: int = 5, query: int = 15, seed: int = 0
) -> Figure:
    """Return an episode before and after its projection by t-SNE, the paper's Figure 2; references are circles.

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
        _draw_episode(axis, points, pixels)
        axis.set(title=title, xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
    kind, shown = getattr(method, "projection_references", "modified"), "Directions of features"
    if exact is not None:
        axes[0].set(xlabel="t-SNE 1 of directions", ylabel="t-SNE 2 of directions")
        axes[1].set(xlabel=_PLANE, ylabel="")
        shade_regions(axes[1], exact[-way:], COLORS[:way])
        kind, shown = f"left: {kind}", "Features"
    handles = [
        axes[0].scatter([], [], s=60, color=color, marker="s", label=images.class_names[label])
        for color, label in zip(COLORS, episode.classes, strict=False)
    ]
    style = {"s": 110, "color": "white", "edgecolors": "black", "linewidths": 1.4}
    circle = axes[0].scatter([], [], label=f"φ: its reference ({kind})", **style)
    figure.legend(handles=[*handles, circle], loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"{shown}, {way}-way {shot}-shot, {images.split} classes of {images.name}")
    return figure


@torch.inference_mode()
def _spaces(method: TapNet, episode: EpisodeImages) -> tuple[Points, Points, Points | None]:
    """Return the directions of query features and then of the references that built the projection.

    They are returned as embedded, as projected, and for three classes in the plane of the references (else `None`).
    """
    support, query = map(method.embed, episode.images.split(episode.sizes))
    head = method.adapt_to(class_prototypes(support, episode.support_labels, episode.way))
    references = method.references[head.chosen]
    if getattr(method, "projection_references", "modified") == "modified":
        references = modified_references(references)
    points = torch.cat([query, references])
    inside = points @ null_space(head.ordered_errors, method.projection_dim, head.leading_directions)
    exact = None
    if len(references) == 3 and method.projection_dim is None and head.shift is None:
        plane = reference_directions(head.references, head.errors)
        exact = (torch.cat([query, head.references]) @ plane.mT).cpu().numpy()
    return F.normalize(points, dim=1).cpu().numpy(), F.normalize(inside, dim=1).cpu().numpy(), exact


def _draw_episode(axis: Any, points: Points, pixels: NDArray[np.uint8]) -> None:
    """Draw each query image where its point is, drawings as ink of their color and photographs in a frame of it."""
    from matplotlib.colors import to_rgb
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    way, query = pixels.shape[:2]
    places, photographs = points[:-way].reshape(way, query, 2), pixels.shape[-1] == 3
    axis.scatter(*points.T, alpha=0)  # sets the limits of the axes
    for k, q in np.ndindex(way, query):
        image = pixels[k, q] / 255
        if not photographs:
            image = np.concatenate([np.broadcast_to(to_rgb(COLORS[k]), (*image.shape[:2], 3)), image], axis=-1)
        style = {"edgecolor": COLORS[k], "linewidth": 1.2 if photographs else 0, "facecolor": "none"}
        shown = OffsetImage(image, zoom=_SIDE / image.shape[0])
        axis.add_artist(AnnotationBbox(shown, tuple(places[k, q]), pad=0, bboxprops=style))
    for k, place in enumerate(points[-way:]):
        axis.scatter(*place, s=230, color=COLORS[k], edgecolors="black", linewidths=1.6, zorder=5)
        axis.annotate("φ", place, ha="center", va="center", color="white", fontsize=11, zorder=6)
