"""`tapnet recipes`: list the bundled recipes, by dataset."""

from __future__ import annotations

import argparse

from tapnet.cli.progress import OUT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Train one with: tapnet train NAME"


def run(_: argparse.Namespace) -> None:
    from tapnet.data import DATASETS
    from tapnet.recipe import bundled_recipes, load_recipe

    recipes = {path.stem: load_recipe(str(path)) for path in bundled_recipes()}
    width = max(map(len, recipes))
    for dataset in dict.fromkeys([*DATASETS, *(recipe.data.name for recipe in recipes.values())]):
        names = [name for name, recipe in recipes.items() if recipe.data.name == dataset]
        if names:
            OUT.print(dataset, style="bold")
        for name in sorted(names, key=lambda name: (recipes[name].method.name != "tapnet", name)):
            recipe, training = recipes[name], recipes[name].training
            task = f"{training.episodes:>9,} episodes, {training.way}-way {training.shot}-shot"
            OUT.print(f"  {name:<{width}} {task}, {recipe.method.name} with {recipe.backbone.name}")
