"""Figure: validation accuracy over training, and the smallest distance between references (the paper's Figure 3)."""

from __future__ import annotations

from pathlib import Path

from tapnet.analysis.plotting import COLOURS, new_figure, save
from tapnet.training.folder import read_curve


def learning_curve(run: Path, out: Path) -> Path:
    """Draw the curve of a run; a dot marks the checkpoint that validation chose."""
    points = read_curve(run)
    if not points:
        raise ValueError(f"{run} has no point on its learning curve yet: let it train until its first validation.")
    episodes = [point.episode for point in points]
    best = max(points, key=lambda point: point.validation_accuracy)
    distances = [point.reference_distance for point in points if point.reference_distance is not None]
    figure, axes = new_figure(10 if distances else 5.5, 3.8, columns=2 if distances else 1)
    left = axes[0] if distances else axes

    accuracies = [100 * point.validation_accuracy for point in points]
    widths = [100 * point.validation_ci95 for point in points]
    left.plot(episodes, accuracies, color=COLOURS[0], label="validation classes")
    low, high = ([a + sign * w for a, w in zip(accuracies, widths, strict=True)] for sign in (-1, 1))
    left.fill_between(episodes, low, high, color=COLOURS[0], alpha=0.2, label="95% over episodes")
    left.plot(best.episode, 100 * best.validation_accuracy, "o", color=COLOURS[1], label="kept")
    left.set(xlabel="training episodes", ylabel="accuracy (%)", title="Accuracy on classes not trained on")
    left.legend(loc="lower right")
    left.grid(alpha=0.3)

    if distances:
        axes[1].plot(episodes, distances, color=COLOURS[2])
        axes[1].plot(best.episode, best.reference_distance, "o", color=COLOURS[1], label="kept")
        axes[1].set(
            xlabel="training episodes", ylabel="distance", title="Smallest distance between normalised references"
        )
        axes[1].legend(loc="lower right")
        axes[1].grid(alpha=0.3)
    return save(figure, out)
