"""Figures of ablations: accuracy against the projection dimension (the paper's Figure 5) and episode composition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tapnet.errors import UserError
from tapnet.paper.ablations.measured import ROTATIONS
from tapnet.paper.ablations.rows import task_words
from tapnet.paper.published import EPISODE_COMPOSITION
from tapnet.plotting import COLORS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]  # an ablation as `tapnet.paper.results` keeps it


def dimension_figure(result: Result) -> Figure:
    """Return a plot of the accuracy at every D: with its interval, and for other orders of the columns of M."""
    rows = _rows(result, "dimension")
    dims = range(1, len(rows) + 1)
    figure, axis = new_figure(6, 4)
    accuracies = [100 * row["accuracy"] for row in rows]
    lowest, highest = ([100 * row[edge] for row in rows] for edge in ("lowest", "highest"))
    axis.fill_between(
        dims, lowest, highest, color=COLORS[4], alpha=0.5, linewidth=0, label=f"{ROTATIONS} random rotations"
    )
    low, high = ([100 * (row["accuracy"] + sign * row["ci95"]) for row in rows] for sign in (-1, 1))
    axis.fill_between(dims, low, high, color=COLORS[0], alpha=0.2, linewidth=0, label="95% over episodes")
    axis.plot(dims, accuracies, color=COLORS[0], label=f"{result['recipe']['name']}, Householder")
    if rows[0].get("references_first") is not None:
        first = [100 * row["references_first"] for row in rows]
        axis.plot(dims, first, color=COLORS[1], label="the references' directions first")
    axis.set(
        xlabel="dimension D of the projection", ylabel="accuracy (%)", title=task_words(result["task"]), xscale="log"
    )
    axis.legend(loc="lower right")
    axis.grid(alpha=0.3)
    return figure


def episode_composition_figure(result: Result) -> Figure:
    """Return a plot of the accuracy of each composition of training episodes, beside the published one."""
    rows = _rows(result, "episode-composition")
    rows = sorted(rows, key=lambda row: _ways(row["variant"]))
    ways = [_ways(row["variant"]) for row in rows]
    figure, axes = new_figure(10, 4, columns=2)
    intervals = [100 * row["ci95"] for row in rows]
    accuracies = [100 * row["accuracy"] for row in rows]
    axes[0].errorbar(ways, accuracies, intervals, fmt="o-", color=COLORS[0], capsize=3)
    for way, accuracy, row in zip(ways, accuracies, rows, strict=True):
        _label(axes[0], way, accuracy, row["variant"].split()[1])
    length = rows[0]["training_episodes"]
    axes[0].set(title=f"{result['recipe']['name']}, {length} training episodes each\n{task_words(result['task'])}")
    published = [float(accuracy) for _, _, accuracy in EPISODE_COMPOSITION]
    axes[1].plot([way for way, _, _ in EPISODE_COMPOSITION], published, "s-", color=COLORS[1])
    for way, query, accuracy in EPISODE_COMPOSITION:
        _label(axes[1], way, float(accuracy), f"{query}-query")
    axes[1].set(title="Published: ResNet-12, best queries of each\n5-way 5-shot on mini-imagenet (test)")
    for axis in axes:
        axis.set(xlabel="classes of a training episode", ylabel="accuracy (%)")
        axis.margins(0.12)
        axis.grid(alpha=0.3)
    return figure


def _rows(result: Result, name: str) -> list[dict[str, Any]]:
    if result.get("name") != name:
        raise UserError(f"Expected a result of `tapnet ablate {name} --record`, got one of {result.get('name')!r}.")
    rows: list[dict[str, Any]] = result["rows"]
    return rows


def _ways(variant: str) -> int:
    return int(variant.split("-")[0])


def _label(axis: Any, x: float, y: float, text: str) -> None:
    axis.annotate(text, (x, y), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8)
