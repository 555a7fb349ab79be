"""The look of our figures, with colors that color-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tapnet.errors import UserError
from tapnet.paths import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")  # Okabe and Ito
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """Return a figure and its axes, side by side."""
    figure = new_canvas(width, height)
    return figure, figure.subplots(1, columns)


def new_canvas(width: float, height: float) -> Figure:
    """Return an empty figure that needs no screen; raise UserError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError("Figures need matplotlib: pip install 'tapnet[figures]'.") from None
    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def shade_regions(axis: Any, centers: NDArray[np.floating[Any]], colors: Sequence[str]) -> None:
    """Shade the region of each center (n, 2), where no other one is closer, in a square that holds what is drawn."""
    low, high = np.array([axis.get_xlim(), axis.get_ylim()]).T
    middle, half = (low + high) / 2, (high - low).max() / 2
    sides = [np.linspace(place - half, place + half, 400) for place in middle]
    grid = np.stack(np.meshgrid(*sides), axis=-1)  # (400, 400, 2)
    distances = np.square(grid[..., None, :] - centers).sum(axis=-1)  # (400, 400, n)
    for k, color in enumerate(colors):
        margin = np.delete(distances, k, axis=-1).min(axis=-1) - distances[..., k]
        axis.contourf(*sides, margin, levels=[0, abs(margin.max()) + 1], colors=[color], alpha=0.13, zorder=0)
    axis.set(xlim=sides[0][[0, -1]], ylim=sides[1][[0, -1]], aspect="equal")


def save(figure: Figure, path: Path) -> Path:
    """Write the figure atomically, in the format of the file's suffix; return the path."""
    content, form = BytesIO(), path.suffix.removeprefix(".") or "png"
    options: dict[str, Any] = {"pil_kwargs": {"comment": b"Matplotlib"}} if form == "jpg" else {}  # others name it, too
    figure.savefig(content, format=form, **options)
    write_atomically(path, content.getvalue())
    return path
