"""The paper's tables with what was really run beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tapnet.analysis.paper import TABLES, Cell, PaperTable
from tapnet.recipe import load_recipe


@dataclass(frozen=True)
class Filled:
    """A table ready to print: headings, rows of text, and the commands for what is not run."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    commands: list[str]


def filled_table(name: str, results: list[dict[str, Any]]) -> Filled:
    """The published table; under each TapNet row what our results say, or that it was not run."""
    if name not in TABLES:
        raise ValueError(f"A table is one of {', '.join(TABLES)}, got {name!r}.")
    table = TABLES[name]
    rows: list[tuple[str, ...]] = []
    for method, cells in table.rows:
        rows.append((method, *(cell.published for cell in cells)))
        if any(cell.recipe for cell in cells):
            rows.append((f"{method}, this package", *(_ours(cell, results) for cell in cells)))
    return Filled(table.title, ("method", *table.columns), rows, _commands(table, results))


def _ours(cell: Cell, results: list[dict[str, Any]]) -> str:
    runs = _runs(cell, results)
    if not runs:
        return "not run"
    accuracies = [100 * run["evaluation"]["accuracy"] for run in runs]
    mean = sum(accuracies) / len(accuracies)
    interval = 100 * max(run["evaluation"]["ci95"] for run in runs)
    seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
    return f"{mean:.2f} ± {interval:.2f} ({seeds}, {runs[0]['trained']['hardware'].get('device_name', 'unknown')})"


def _runs(cell: Cell, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of a cell's recipe, on its own dataset and task, on test classes."""
    if cell.recipe is None:
        return []
    recipe = load_recipe(cell.recipe)
    task = recipe.validation
    wanted = {"split": "test", "way": task.way, "shot": task.shot, "dataset": recipe.data.name}
    return [
        result
        for result in results
        if _essence(result["recipe"]) == _essence(recipe.as_dict()) and wanted.items() <= result["evaluation"].items()
    ]


def _commands(table: PaperTable, results: list[dict[str, Any]]) -> list[str]:
    missing = [cell.recipe for _, cells in table.rows for cell in cells if cell.recipe and not _runs(cell, results)]
    return [
        f"tapnet train {name} && tapnet evaluate runs/{name} --way {task.way} --shot {task.shot} --record results"
        for name, task in ((name, load_recipe(name).validation) for name in missing)
    ]


def _essence(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe without what does not change the experiment: its seed, and where the data lies."""
    return recipe | {"seed": None, "data": recipe["data"] | {"root": None}}
