"""The paper's cells that are TapNet's, one row each: the published accuracy, ours, and what ours took to train."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tapnet.methods import METHODS, TapNet
from tapnet.paper.published import ACCURACIES, Task
from tapnet.paper.tables import Results, matching_results
from tapnet.recipe import Recipe, load_recipe
from tapnet.wording import difference

CELL_HEADINGS = ("dataset", "network", "task", "paper", "ours", "difference", "episodes", "hours", "recipe")

_NETWORKS = {"conv4": "Conv4", "resnet12": "ResNet-12", "resnet12-small": "ResNet-12-small"}


@dataclass(frozen=True)
class PaperCell:
    """A published accuracy, by which task, and the recipe that is to give it."""

    dataset: str
    task: Task
    published: str
    recipe: Recipe


def paper_cells() -> Iterator[PaperCell]:
    """Yield each cell once; those of Omniglot also for the rotations of the test characters as classes."""
    met = set()
    for table in ACCURACIES.values():
        for _, cells in table.rows:
            for cell, task in zip(cells, table.columns, strict=True):
                if cell.recipe is None or (cell.recipe, task) in met:
                    continue
                met.add((cell.recipe, task))
                name, recipe = task.heading.rsplit(" ", 1)[0], load_recipe(cell.recipe)
                if task.dataset == "omniglot":
                    rotated = replace(task, classes=4 * task.classes)
                    yield PaperCell(f"{name}, {task.classes} characters", task, cell.published, recipe)
                    yield PaperCell(f"{name}, their {rotated.classes} rotations", rotated, cell.published, recipe)
                else:
                    yield PaperCell(name, task, cell.published, recipe)


def cell_rows(results: Results) -> list[tuple[str, ...]]:
    """Return one row of text per cell, `not run` where no result is of its dataset and network."""
    return [_row(cell, _ours(cell, results), results) for cell in paper_cells()]


def _ours(cell: PaperCell, results: Results) -> dict[str, Any] | None:
    """Return the result of the paper's recipe, else of ours for this dataset and network that validated best.

    On Omniglot the paper has one network only; there ours may have another.
    """
    exact = matching_results(cell.recipe.name, cell.task, results)
    return max(exact or _similar(cell, results), key=lambda result: _validation(cell, result), default=None)


def _similar(cell: PaperCell, results: Results) -> Results:
    found = [
        result
        for result in matching_results(None, cell.task, results)
        if result["recipe"]["data"]["name"] == cell.recipe.data.name
        and issubclass(METHODS[result["recipe"]["method"]["name"]], TapNet)
    ]
    same = [result for result in found if result["recipe"]["backbone"]["name"] == cell.recipe.backbone.name]
    return same or (found if cell.task.dataset == "omniglot" else [])


def _validation(cell: PaperCell, result: dict[str, Any]) -> tuple[bool, float]:
    """Return by what results are chosen: validated with as many shots, then the accuracy in validation."""
    validation = result.get("validation") or {}
    return validation.get("shot") == cell.task.shot, validation.get("accuracy", 0.0)


def _row(cell: PaperCell, result: dict[str, Any] | None, results: Results) -> tuple[str, ...]:
    task, network = f"{cell.task.way}-way {cell.task.shot}-shot", _NETWORKS[cell.recipe.backbone.name]
    asked = cell.dataset, network, task, cell.published
    if result is None:
        return *asked, "not run", "—", "—", "—", f"`{cell.recipe.name}`"
    measured, hours = result["evaluation"], _hours(result, results)
    ahead = measured["accuracy"] - float(cell.published.split()[0]) / 100
    return (
        *asked,
        f"{100 * measured['accuracy']:.2f} ± {100 * measured['ci95']:.2f}",
        difference(ahead),
        f"{_episodes(result['trained']):,}",
        f"{hours:.1f}" if hours else "—",
        ", ".join([f"`{result['recipe']['name']}`", *_departures(cell, result["recipe"]["backbone"])]),
    )


def _departures(cell: PaperCell, backbone: dict[str, Any]) -> list[str]:
    """Return in what our network is another than the paper's."""
    other = [_NETWORKS[backbone["name"]]] if backbone["name"] != cell.recipe.backbone.name else []
    return [*other, *(["four views of each image"] if backbone["options"].get("four_rotations") else [])]


def _episodes(trained: dict[str, Any]) -> int:
    """Return the training episodes of a network and of those that it was initialized from."""
    earlier = re.findall(r"after ([\d,]+) episodes?", trained.get("origin", ""))
    return int(trained["episodes"]) + sum(int(number.replace(",", "")) for number in earlier)


def _hours(result: dict[str, Any], results: Results) -> float | None:
    """Return the hours of training of a network and of those that it was initialized from; `None` if unknown."""
    names = re.findall(r"initialized from (\S+) after", result["trained"].get("origin", ""))
    earlier = [[each for each in results if each["recipe"]["name"] == name] for name in names]
    seconds = [each[0]["trained"].get("seconds") if each else None for each in ([result], *earlier)]
    known = [each for each in seconds if each]
    return sum(known) / 3600 if len(known) == len(seconds) else None
