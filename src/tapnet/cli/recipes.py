"""`tapnet recipes`: what can be trained by name."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Train one with: tapnet train NAME"


def run(_: argparse.Namespace) -> None:
    from tapnet.recipe import bundled_recipes, load_recipe

    table = Table()
    table.add_column("name", no_wrap=True)  # it has to be typed
    for heading in ("method", "backbone", "dataset", "training episodes"):
        table.add_column(heading)
    for path in bundled_recipes():
        recipe = load_recipe(str(path))
        training = recipe.training
        episodes = f"{training.episodes:,} of {training.way}-way {training.shot}-shot, {training.query} queries"
        table.add_row(path.stem, recipe.method.name, recipe.backbone.name, recipe.data.name, episodes)
    Console().print(table)
