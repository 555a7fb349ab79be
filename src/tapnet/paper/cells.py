"""The cells of the paper's tables that are TapNet's: the published accuracy, ours, and the cost of its training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tapnet.checkpoint import lineage_from
from tapnet.data import DATASETS
from tapnet.methods import METHODS, TapNet
from tapnet.paper.published import ACCURACIES, Task
from tapnet.paper.tables import Results, experiment_of, matching_results, rotations_of, summary
from tapnet.recipe import Recipe, load_recipe
from tapnet.text import difference

CELL_HEADINGS = ("dataset", "network", "task", "paper", "ours", "difference", "episodes", "hours", "recipe")

_NETWORKS = {"conv4": "Conv4", "resnet12": "ResNet-12", "resnet12-small": "ResNet-12-small"}


@dataclass(frozen=True)
class PaperCell:
    """A published accuracy, its task, and the recipe that reproduces it."""

    dataset: str
    task: Task
    published: str
    recipe: Recipe
    rotations: int = 1  # in which each test class counts as a class


def paper_cells() -> Iterator[PaperCell]:
    """Yield each cell once; those of Omniglot also for the rotations of the test characters as classes."""
    seen = set()
    for table in ACCURACIES.values():
        for _, cells in table.rows:
            for cell, task in zip(cells, table.columns, strict=True):
                if cell.recipe is None or (cell.recipe, task) in seen:
                    continue
                seen.add((cell.recipe, task))
                name, recipe = task.heading.rsplit(" ", 1)[0], load_recipe(cell.recipe)
                if task.dataset == "omniglot":
                    rotated = replace(task, classes=4 * task.classes)
                    yield PaperCell(f"{name}, {task.classes} characters", task, cell.published, recipe)
                    yield PaperCell(f"{name}, their {rotated.classes} rotations", rotated, cell.published, recipe, 4)
                else:
                    yield PaperCell(name, task, cell.published, recipe)


def cell_rows(results: Results) -> list[tuple[str, ...]]:
    """Return one row of text per cell, with `not run` if there is no result for its dataset and network.

    Networks that see four views of each image have a row of their own, below that of those that see it once.
    """
    return [_row(cell, ours) for cell in paper_cells() for ours in _ours(cell, results) or [[]]]


def _ours(cell: PaperCell, results: Results) -> list[Results]:
    """Return the results of the paper's recipe, or else of the best on validation classes of this dataset and network.

    They are those of all seeds, apart for networks that see an image once and for those that see four views of it, and
    for the same networks trained further on the validation classes, too. On Omniglot, where the paper has only one
    network, ours may be another.
    """

    def rank(result: dict[str, Any]) -> tuple[bool, bool, bool, float]:
        validation, same_classes = _validation(result, cell, results)
        return (
            not _validation_trains(result["recipe"]["data"]),
            same_classes,
            validation.get("shot") == cell.task.shot,
            validation.get("accuracy", 0.0),
        )

    found = matching_results(cell.recipe.name, cell.task, results) or _similar(cell, results)
    once, four = ([each for each in found if _four_views(each["recipe"]["backbone"]) is four] for four in (False, True))
    best = [max(candidates, key=rank)["recipe"] for candidates in (once, four) if candidates]
    names = [recipe["name"] for recipe in best]
    trained = (each["recipe"] for each in found if _validation_trains(each["recipe"]["data"]))
    rows: list[Results] = []
    for recipe in (*best, *(each for each in trained if _first_network(each) in names)):
        row = [each for each in found if experiment_of(each["recipe"]) == experiment_of(recipe)]
        rows += [row] if row not in rows else []  # one for all seeds
    return rows


def _similar(cell: PaperCell, results: Results) -> Results:
    found = [
        result
        for result in matching_results(None, cell.task, results)
        if result["recipe"]["data"]["name"] == cell.recipe.data.name
        and issubclass(METHODS[result["recipe"]["method"]["name"]], TapNet)
    ]
    same = [result for result in found if result["recipe"]["backbone"]["name"] == cell.recipe.backbone.name]
    return same or (found if cell.task.dataset == "omniglot" else [])


def _row(cell: PaperCell, ours: Results) -> tuple[str, ...]:
    task, network = f"{cell.task.way}-way {cell.task.shot}-shot", _NETWORKS[cell.recipe.backbone.name]
    paper = cell.dataset, network, task, cell.published
    if not ours:
        return *paper, "not run", "—", "—", "—", f"`{cell.recipe.name}`"
    result, hours = ours[0], _hours(ours[0]["trained"])
    published = float(cell.published.split()[0]) / 100
    return (
        *paper,
        summary(ours),
        difference(fmean(each["evaluation"]["accuracy"] for each in ours) - published),
        f"{_episodes(result['trained']):,}",
        f"{hours:.1f}" if hours else "—",
        ", ".join([f"`{result['recipe']['name']}`", *_departures(cell, result["recipe"])]),
    )


def _departures(cell: PaperCell, recipe: dict[str, Any]) -> list[str]:
    """Return how our network differs from the paper's, or from those that leave classes for validation."""
    name = recipe["backbone"]["name"]
    other = [_NETWORKS[name]] if name != cell.recipe.backbone.name else []
    branches = recipe["backbone"]["options"].get("branches", 1)
    other += [f"{branches} branches"] if branches > 1 else []
    views = ["four views of each image"] if _four_views(recipe["backbone"]) else []
    return [*other, *views, *(["validation classes train, too"] if _validation_trains(recipe["data"]) else [])]


def _validation(result: dict[str, Any], cell: PaperCell, results: Results) -> tuple[dict[str, Any], bool]:
    """Return the validation of a network, and whether its classes count in the rotations of the cell.

    It is the one that chose the network, or else an evaluation on the validation classes in those rotations.
    """
    own = result.get("validation") or {}
    if rotations_of(result["recipe"]["data"], "val") == cell.rotations:
        return own, True
    classes = cell.rotations * len(DATASETS[cell.task.dataset].splits["val"])
    wanted = {"dataset": cell.task.dataset, "split": "val", "classes": classes, "way": cell.task.way}
    evaluations = (each["evaluation"] for each in results if each["recipe"] == result["recipe"])
    found = [each for each in evaluations if wanted.items() <= each.items()]
    return (max(found, key=lambda each: each["shot"] == cell.task.shot), True) if found else (own, False)


def _validation_trains(data: dict[str, Any]) -> bool:
    """Return whether the validation classes are trained on, so that they choose nothing."""
    return str(data.get("train_split", "train")) != "train"


def _first_network(recipe: dict[str, Any]) -> str:
    """Return the name of the one network that a recipe is initialized from; empty if there is none, or several."""
    networks = recipe["training"]["init_from"]
    return Path(networks[0]).name.removesuffix(".safetensors") if len(networks) == 1 else ""


def _four_views(backbone: dict[str, Any]) -> bool:
    return bool(backbone["options"].get("four_rotations"))


def _episodes(trained: dict[str, Any]) -> int:
    """Return the training episodes of a network and of those that it was initialized or distilled from."""
    return int(trained["episodes"]) + sum(network.episodes for network in lineage_from(trained["lineage"]).networks())


def _hours(trained: dict[str, Any]) -> float | None:
    """Return the hours of training of a network and of those that it was initialized or distilled from.

    `None` if one of them is unknown.
    """
    earlier = (network.seconds for network in lineage_from(trained["lineage"]).networks())
    seconds = [trained.get("seconds"), *earlier]
    return sum(filter(None, seconds)) / 3600 if all(seconds) else None
