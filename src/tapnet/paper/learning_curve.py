"""Figures of a run: validation accuracy, and the smallest distance between references (the paper's Figure 3)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapnet.errors import UserError
from tapnet.plotting import COLORS, new_figure
from tapnet.training.run_folder import Point, read_curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCE = "reference_distance"  # the diagnostic that TapNet records


def learning_curve(run: Path) -> Figure:
    """Return a plot of the learning curve, and beside it of the distance if the method has references."""
    points = _points(run)
    if DISTANCE not in points[0].diagnostics:
        figure, axis = new_figure(5.5, 3.8)
        _draw_accuracy(axis, points)
    else:
        figure, axes = new_figure(10, 3.8, columns=2)
        _draw_accuracy(axes[0], points)
        _draw_distance(axes[1], points)
    return figure


def reference_distance(run: Path) -> Figure:
    """Return a plot of the smallest distance between references during training."""
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


def _draw_accuracy(axis: Any, points: list[Point]) -> None:
    episodes = [point.episode for point in points]
    accuracies = [100 * point.validation_accuracy for point in points]
    widths = [100 * point.validation_ci95 for point in points]
    axis.plot(episodes, accuracies, color=COLORS[0], label="validation classes")
    low, high = ([a + sign * w for a, w in zip(accuracies, widths, strict=True)] for sign in (-1, 1))
    axis.fill_between(episodes, low, high, color=COLORS[0], alpha=0.2, label="95% over episodes")
    best = _best(points)
    axis.plot(best.episode, 100 * best.validation_accuracy, "o", color=COLORS[1], label="best on validation classes")
    _finish(axis, "accuracy (%)", "Accuracy on classes not trained on")


def _draw_distance(axis: Any, points: list[Point]) -> None:
    best = _best(points)
    axis.plot([point.episode for point in points], [point.diagnostics[DISTANCE] for point in points], color=COLORS[2])
    axis.plot(best.episode, best.diagnostics[DISTANCE], "o", color=COLORS[1], label="best on validation classes")
    _finish(axis, "Euclidean distance", "Smallest distance between normalized references")


def _best(points: list[Point]) -> Point:
    return max(points, key=lambda point: point.validation_accuracy)


def _finish(axis: Any, ylabel: str, title: str) -> None:
    axis.set(xlabel="training episodes", ylabel=ylabel, title=title)
    axis.legend(loc="best")
    axis.grid(alpha=0.3)
