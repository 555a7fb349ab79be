"""Every method on Omniglot as a plot: our accuracies with their intervals over episodes, and the published ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tapnet.errors import UserError
from tapnet.paper.rivals import OMNIGLOT, Rival, best_known
from tapnet.plotting import COLORS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measured = tuple[Rival, dict[str, Any]]


def rivals_figure(results: list[dict[str, Any]], way: int = 5, shot: int = 1) -> Figure:
    """Return the plot of one task; raise UserError if it is not in the table or no method has a result."""
    if (way, shot) not in OMNIGLOT.tasks:
        tasks = ", ".join(f"{way}-way {shot}-shot" for way, shot in OMNIGLOT.tasks)
        raise UserError(f"The methods are compared on {tasks}, got {way}-way {shot}-shot.")
    found = [
        (rival, result) for rival in OMNIGLOT.rivals if (result := best_known(OMNIGLOT, rival, way, shot, results))
    ]
    if not found:
        raise UserError("No recorded result is of a method on Omniglot: `tapnet table rivals` has the commands.")
    figure, axis = new_figure(7, 1.2 + 0.4 * len(found))
    _draw(axis, found, OMNIGLOT.tasks.index((way, shot)))
    axis.set(yticks=range(len(found)), yticklabels=[_label(*each) for each in found])
    axis.set(xlabel=f"accuracy (%), {way}-way {shot}-shot, 423 unseen characters")
    axis.invert_yaxis()
    axis.grid(alpha=0.3, axis="x")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    return figure


def _draw(axis: Any, found: list[Measured], task: int) -> None:
    ours = [result["evaluation"] for _, result in found]
    means, intervals = ([100 * each[key] for each in ours] for key in ("accuracy", "ci95"))
    axis.errorbar(
        means, range(len(found)), xerr=intervals, fmt="o", color=COLORS[0], capsize=4, label="ours, 95% over episodes"
    )
    published = [
        (float(rival.published[task].split()[0]), place)
        for place, (rival, _) in enumerate(found)
        if rival.published and rival.published[task] != "—"
    ]
    if published:
        axis.plot(*zip(*published, strict=True), "|", color=COLORS[1], markersize=14, label="published")


def _label(rival: Rival, result: dict[str, Any]) -> str:
    return f"{rival.name} (transductive)" if result["evaluation"].get("transductive") else rival.name
