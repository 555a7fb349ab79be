"""The look of our figures, with colors that color-blind readers can tell apart."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapnet.atomic_write import write_atomically
from tapnet.errors import UserError

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


def save(figure: Figure, path: Path) -> Path:
    """Write the figure atomically, in the format of the file's suffix; return the path."""
    content = BytesIO()
    figure.savefig(content, format=path.suffix.removeprefix(".") or "png")
    write_atomically(path, content.getvalue())
    return path
