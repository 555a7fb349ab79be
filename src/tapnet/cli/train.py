"""`tapnet train RECIPE`: train, showing progress, and say where the result is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from tapnet.cli.options import add_device, percent

if TYPE_CHECKING:
    from tapnet.recipe import Recipe
    from tapnet.training import Step

_EXAMPLES = """examples:
  tapnet train quickdraw
  tapnet train my.yaml --out runs/mine --set training.episodes=500 training.way=30
  tapnet train --resume runs/mine
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("recipe", nargs="?", help="a YAML file or the name of a bundled recipe (`tapnet recipes`)")
    parser.add_argument("--out", type=Path, help="folder of the run (default: runs/NAME)")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change the recipe")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted run")
    add_device(parser, precision="auto")


def run(args: argparse.Namespace) -> None:
    from tapnet.checkpoint import LAST, read_checkpoint
    from tapnet.recipe import load_recipe

    if (args.recipe is None) == (args.resume is None):
        raise ValueError(
            "Give a recipe to start a run, or --resume DIR to go on with one; `tapnet recipes` lists them."
        )
    if args.resume is not None:
        if args.set or args.out:
            raise ValueError("--resume goes on with the run as it is: leave out --set and --out.")
        recipe, folder = read_checkpoint(args.resume / LAST).header.recipe, args.resume
    else:
        recipe = load_recipe(args.recipe, args.set)
        folder = args.out or Path("runs") / recipe.name
    best = train_visibly(recipe, folder, args.device, args.precision, resume=args.resume is not None)
    Console().print(f"Best checkpoint: {best}\nTry: tapnet evaluate {folder}", highlight=False)


def train_visibly(recipe: Recipe, folder: Path, device: str, precision: str, resume: bool) -> Path:
    """Train with a progress bar; Ctrl-C says where the state is and how to go on."""
    from tapnet.training import Interrupted, train

    console = Console()
    console.print(
        f"{recipe.method.name} with {recipe.backbone.name} on {recipe.data.name}: {recipe.training.episodes} episodes "
        f"of {recipe.training.way}-way {recipe.training.shot}-shot, {recipe.training.query} queries a class",
        highlight=False,
    )
    with _progress(console) as progress:
        bar = progress.add_task("training", total=recipe.training.episodes, loss=float("nan"), validation="—")

        def watch(step: Step) -> None:
            progress.update(bar, completed=step.episode, loss=step.loss)
            if step.point:
                accuracy = f"{percent(step.point.validation_accuracy)} ± {100 * step.point.validation_ci95:.2f}"
                progress.update(bar, validation=percent(step.point.validation_accuracy))
                line = f"  episode {step.episode:>6}   loss {step.point.loss:.3f}   validation {accuracy}"
                progress.console.print(line, highlight=False)

        try:
            return train(recipe, folder, device, precision, resume, watch)
        except Interrupted as stop:
            message = f"{stop} Go on with: tapnet train --resume {stop.folder}"
            raise KeyboardInterrupt(message) from None


class _Speed(ProgressColumn):
    """Episodes a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} episodes/s" if task.speed else "— episodes/s")


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=12),
        TextColumn("{task.completed}/{task.total}"),
        _Speed(table_column=Column(no_wrap=True)),
        TextColumn("loss {task.fields[loss]:.2f}  validation {task.fields[validation]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
    )
