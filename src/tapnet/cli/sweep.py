"""`tapnet sweep FILE.yaml`: many runs from one file, one after another or on a Ray cluster, and their results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.cli.batch import add_engine, check_engine
from tapnet.cli.options import add_device, command, output_folder
from tapnet.cli.progress import ERRORS, OUT, progress_bar
from tapnet.cli.runs import print_runs
from tapnet.cli.train import train_with_progress
from tapnet.errors import UserError
from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.jobs.sweep import Outcome
    from tapnet.recipe import Recipe
    from tapnet.training.run_summary import RunSummary

_EXAMPLES = """examples:
  tapnet sweep my-sweep.yaml                         one run after another; the same command continues
  tapnet sweep my-sweep.yaml --list                  list the runs
  tapnet sweep my-sweep.yaml --engine ray --address auto --out /shared/runs/my-sweep

my-sweep.yaml:
  recipe: quickdraw                # or several: [quickdraw, mine.yaml]
  method: [tapnet, protonet]       # optional
  set: {training.episodes: 300}    # changes of every run
  grid: {training.query: [5, 8]}   # every combination of these values
  seeds: [0, 1]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("file", type=Path, help="a YAML file with recipes, changes, a grid, seeds or a list of runs")
    parser.add_argument("--out", type=output_folder, help="folder of the run folders (default: as in the file)")
    parser.add_argument("--list", action="store_true", help="print the runs without training")
    add_device(parser, precision="auto")
    add_engine(parser)


def run(args: argparse.Namespace) -> None:
    from tapnet.jobs.sweep import check_trainable, unfinished
    from tapnet.jobs.sweep_file import read_sweep

    check_engine(args)
    sweep = read_sweep(args.file)
    out = args.out or sweep.out
    if args.list:
        for name in sweep.recipes:
            print(out / name)
        return
    check_trainable(sweep.recipes)
    todo = unfinished(sweep.recipes, out, sweep.test)
    if done := len(sweep.recipes) - len(todo):
        ERRORS.print(f"{done} of {pluralize(len(sweep.recipes), 'run')} trained already, in {out}")
    ended = (_on_cluster if args.engine else _one_by_one)(todo, out, args, sweep.test)
    failed = [outcome for outcome in ended if outcome.reason]
    folders = [out / name for name in sweep.recipes]
    if trained := _summaries(folders):
        print_runs(trained)
    for outcome in failed:
        ERRORS.print(f"{outcome.name} failed: {outcome.reason}")
    if failed:
        raise SystemExit(1)
    if len(folders) > 1:
        OUT.print(f"Compare them: {command('compare', *folders)}")


def train_on_cluster(recipes: dict[str, Recipe], out: Path, args: argparse.Namespace) -> None:
    """Train the unfinished runs on the cluster of the options; raise UserError if one fails."""
    from tapnet.jobs.sweep import check_trainable, unfinished

    check_trainable(recipes)
    for outcome in _on_cluster(unfinished(recipes, out), out, args, test=False):
        if outcome.reason:
            raise UserError(f"{outcome.name} failed: {outcome.reason}")


def _one_by_one(recipes: dict[str, Recipe], out: Path, args: argparse.Namespace, test: bool) -> Iterator[Outcome]:
    from tapnet.jobs.sweep import train_one_by_one

    options = {"device": args.device, "precision": args.precision, "again": "the same command", "test": test}
    return train_one_by_one(recipes, out, partial(train_with_progress, **options))


def _on_cluster(recipes: dict[str, Recipe], out: Path, args: argparse.Namespace, test: bool) -> Iterator[Outcome]:
    """Train on Ray, with one bar over the episodes of all runs; on Ctrl-C they save their state and end."""
    from tapnet.jobs.ray_sweep import train_on_ray

    if not recipes:
        return
    folders = [out / name for name in recipes]
    with progress_bar("episodes") as bar:
        shown = bar.add_task("", total=sum(recipe.training.episodes for recipe in recipes.values()))

        def watch() -> None:
            bar.update(shown, completed=sum(each.episode for each in _summaries(folders)))

        options = args.address, args.workers, args.device, args.precision
        try:
            for outcome in train_on_ray(recipes, out, *options, test, watch):
                print(f"{outcome.name}: {'failed' if outcome.reason else 'trained'}", file=sys.stderr)
                yield outcome
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"Stopped; the runs in {out} have saved their state and the same command continues."
            ) from None


def _summaries(folders: list[Path]) -> list[RunSummary]:
    from tapnet.jobs.sweep import can_resume
    from tapnet.training.run_summary import summarize_run

    return [summarize_run(folder) for folder in folders if can_resume(folder)]
