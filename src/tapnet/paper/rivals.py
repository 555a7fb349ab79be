"""Every method of the paper's tables on Omniglot: published accuracies, ours, and the cost of ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tapnet.evaluation.comparison import extra_parameters
from tapnet.recipe import Recipe
from tapnet.recipe_file import load_recipe, recipe_from

HEADINGS = ("method", "5-way 1-shot", "5-way 5-shot", "20-way 1-shot", "20-way 5-shot")
COSTS = ("extra parameters", "episodes", "minutes", "transductive")
TASKS = ((5, 1), (5, 5), (20, 1), (20, 5))  # way and shot of the columns
PROTOCOL = {"dataset": "omniglot", "split": "test", "classes": 423, "query": 5}
EPISODES = 2000
NOTES = (
    "Extra parameters are those besides the backbone's; TADAM-TC has a linear layer over the training classes more "
    "while it is trained.",
    "Minutes are those of training on one core that other work shared: they do not rank the methods' speed.",
    "MAML, TADAM-TC and SNAIL are initialized from the network of TADAM-α, whose episodes and minutes come on top.",
    "MAML, Reptile, SNAIL and adaCNN have networks for one number of classes; ours are trained for 5.",
)

IMAGE_SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class Rival:
    """A method, its published accuracies on the tasks, and our recipes for a CPU, of which the first is compared.

    The others are for tasks that the network of the first cannot do, such as those with another number of classes.
    """

    name: str
    recipes: tuple[str, ...]
    published: tuple[str, str, str, str] = ("—", "—", "—", "—")


RIVALS: tuple[Rival, ...] = (
    Rival("TapNet", ("omniglot-60way-gradient",), ("—", "—", "98.07", "99.49")),
    Rival("Prototypical Networks", ("omniglot-60way-protonet",), ("98.8", "99.7", "96.0", "98.9")),
    Rival("Matching Networks", ("omniglot-matching-cpu",), ("98.1", "98.9", "93.8", "98.5")),
    Rival("TADAM-α", ("omniglot-tadam-alpha-cpu",)),
    Rival("TADAM-TC", ("omniglot-tadam-tc-cpu",)),
    Rival("Relation Networks", ("omniglot-relation-cpu",), ("99.6 ± 0.2", "99.8 ± 0.1", "97.6 ± 0.2", "99.1 ± 0.1")),
    Rival("Transductive Propagation", ("omniglot-tpn-cpu",)),
    Rival("MAML", ("omniglot-maml-cpu",), ("98.7 ± 0.4", "99.9 ± 0.1", "95.8 ± 0.3", "98.9 ± 0.2")),
    Rival("Reptile", ("omniglot-reptile-cpu",), ("97.68", "99.48", "89.43", "97.12")),
    Rival("SNAIL", ("omniglot-snail-cpu",), ("99.07 ± 0.16", "99.78 ± 0.09", "97.64 ± 0.30", "99.36 ± 0.18")),
    Rival("adaCNN", ("omniglot-shifted-neurons-cpu",), ("98.42", "99.37", "96.12", "98.43")),
)


def best_known(rival: Rival, way: int, shot: int, results: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return our result for a method and a task: that with the most episodes of the first recipe that has one."""
    wanted = PROTOCOL | {"way": way, "shot": shot}
    for recipe in rival.recipes:
        found = [
            result
            for result in results
            if result["recipe"]["name"] == recipe and wanted.items() <= result.get("evaluation", {}).items()
        ]
        if found:
            return max(found, key=lambda result: int(result["evaluation"]["episodes"]))
    return None


def accuracy_cell(rival: Rival, way: int, shot: int, results: list[dict[str, Any]]) -> str:
    """Return our accuracy for a task with its interval over episodes, or why there is none."""
    found = best_known(rival, way, shot, results)
    if found:
        return f"{100 * found['evaluation']['accuracy']:.2f} ± {100 * found['evaluation']['ci95']:.2f}"
    most = max(_most_classes(recipe) for recipe in rival.recipes)
    return "not run" if way <= most else f"{most}-way only"


def _most_classes(recipe: str) -> float:
    limit = load_recipe(recipe).outline(IMAGE_SHAPE).max_way
    return math.inf if limit is None else limit


def costs(rival: Rival, results: list[dict[str, Any]]) -> tuple[str, str, str, str]:
    """Return the cells of the costs of our first result; without one, the parameters of the recipe alone."""
    found = next((found for task in TASKS if (found := best_known(rival, *task, results))), None)
    recipe = load_recipe(rival.recipes[0]) if found is None else _as_tested(found["recipe"])
    parameters = f"{extra_parameters(recipe.outline(IMAGE_SHAPE)):,}"
    if found is None:
        return parameters, "—", "—", "—"
    seconds, transductive = found["trained"].get("seconds"), found["evaluation"].get("transductive")
    minutes = f"{seconds / 60:.0f}" if seconds else "—"
    return parameters, f"{found['trained']['episodes']:,}", minutes, "yes" if transductive else "no"


def _as_tested(recipe: dict[str, Any]) -> Recipe:
    """Return the recipe of a result, without the layer over the training classes that only training has."""
    options = {name: value for name, value in recipe["method"]["options"].items() if name != "num_classes"}
    return recipe_from(recipe | {"method": recipe["method"] | {"options": options}}, "its recipe")
