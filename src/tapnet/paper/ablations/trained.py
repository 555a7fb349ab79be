"""Ablations that train: one recipe per variant, each run in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tapnet.data import ImageSet
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.jobs.sweep import Train, train_all
from tapnet.methods import METHODS, TapNet
from tapnet.paper.ablations.measured import Options
from tapnet.paper.ablations.rows import Row, paired
from tapnet.recipe import Recipe, recipe_from

Recipes = dict[str, Recipe]

SHARES = (1, 1 / 4, 1 / 2, 3 / 4, 5 / 4, 3 / 2)  # of the recipe's ways; of 20 they are the paper's six


def recipes_of_options(variants: dict[str, Options], recipe: Recipe) -> Recipes:
    """Return the recipe with the method options of each variant."""
    return {name: _varied(recipe, name, options=options) for name, options in variants.items()}


def recipes_of_compositions(recipe: Recipe) -> Recipes:
    """Return recipes with more ways and fewer queries, or the reverse, at the same number of images per episode."""
    training = recipe.training
    images, recipes = training.way * (training.shot + training.query), {}
    for way in (round(share * training.way) for share in SHARES):
        query = round(images / way) - training.shot
        if query >= 1 and way >= recipe.validation.way:
            name, changes = f"{way}-way {query}-query", {"way": way, "query": query}
            recipes[name] = _varied(recipe, name, training=changes, options={"num_references": way})
    return recipes


def _varied(recipe: Recipe, variant: str, options: Options, training: dict[str, Any] | None = None) -> Recipe:
    values = recipe.as_dict()
    if not issubclass(METHODS[recipe.method.name], TapNet):
        raise UserError(f"The ablations are of TapNet, the recipe {recipe.name} trains {recipe.method.name}.")
    if recipe.training.init_from:
        raise UserError(
            f"The variants of an ablation start from random weights, {recipe.name} is initialized from "
            f"{', '.join(recipe.training.init_from)}: set training.init_from=null."
        )
    if recipe.training.teachers:
        raise UserError(
            f"The variants of an ablation learn from labels alone, {recipe.name} has teachers: set "
            "training.teachers=[]."
        )
    values["name"] = f"{recipe.name}-{_slug(variant)}"
    values["method"]["options"] |= options
    values["training"] |= training or {}
    return recipe_from(values, f"{recipe.name}, {variant}")


def _slug(variant: str) -> str:
    return variant.replace(" ", "-")


def train_variants(recipes: Recipes, out: Path, train: Train, log: Callable[[str], None]) -> dict[str, Path]:
    """Train each variant in a folder of its own in `out` and return those folders.

    A finished run is not trained again, which is logged; an interrupted one is resumed.
    """
    folders = train_all(recipes_by_folder(recipes), out, train, log)
    return dict(zip(recipes, folders.values(), strict=True))


def recipes_by_folder(recipes: Recipes) -> Recipes:
    """Return the recipes under the names of the folders in which they are trained."""
    return {_slug(variant): recipe for variant, recipe in recipes.items()}


def measure_runs(evaluators: Mapping[str, Evaluator], task: EpisodeSpec, training_episodes: int) -> list[Row]:
    """Return the accuracies of the trained variants on the same episodes, paired with the first."""
    rows = paired({variant: evaluator.accuracies(task) for variant, evaluator in evaluators.items()})
    return [replace(row, training_episodes=training_episodes) for row in rows]


def check_measurable(recipes: Recipes, images: ImageSet, task: EpisodeSpec) -> None:
    """Raise UserError if the trained variants could not be measured on the task."""
    images.episodes(task.way, task.shot, task.query)
    for variant, recipe in recipes.items():
        if recipe.training.way < task.way:
            raise UserError(
                f"The variant {variant} has {recipe.training.way} references, too few for tasks of {task.way} classes: "
                "choose a smaller way.",
                parameter="way",
            )
