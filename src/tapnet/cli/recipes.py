"""`tapnet recipes`: list the bundled recipes."""

from __future__ import annotations

import argparse

from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Train one with: tapnet train NAME"


def run(_: argparse.Namespace) -> None:
    from tapnet.recipe_file import bundled_recipes, load_recipe

    console = Console(highlight=False)
    for path in bundled_recipes():
        recipe = load_recipe(str(path))
        training = recipe.training
        console.print(path.stem, style="bold")
        network = f"{recipe.method.name} with {recipe.backbone.name} on {recipe.data.name}"
        console.print(f"  {network}: {training.episodes:,} episodes, {training.way}-way {training.shot}-shot")
