"""`tapnet sweep`, `runs` and `recipes`: many runs from one file; runs with their results; what can be trained."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapnet.cli import options
from tapnet.cli.output import ERRORS, OUT, percent, print_json, print_table, progress_bar
from tapnet.cli.train import train_with_progress
from tapnet.errors import NotFoundError
from tapnet.text import half_width, pluralize

if TYPE_CHECKING:
    from tapnet.jobs.sweep import Outcome
    from tapnet.recipe import Recipe
    from tapnet.training.run_folder import RunSummary

_SWEEP_EXAMPLES = """examples:
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


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, add = _SWEEP_EXAMPLES, parser.add_argument
    add("file", type=Path, help="a YAML file with recipes, changes, a grid, seeds or a list of runs")
    add("--out", type=options.output_folder, help="folder of the run folders (default: as in the file)")
    add("--list", action="store_true", help="print the runs without training")
    options.add_shared(parser, "--device", "--precision", *options.ENGINE)


def run_sweep(args: argparse.Namespace) -> None:
    from tapnet.jobs.sweep import read_sweep

    options.check_engine(args)
    sweep = read_sweep(args.file)
    out = args.out or sweep.out
    if args.list:
        print(*(out / name for name in sweep.recipes), sep="\n")
        return
    outcomes = train_runs(sweep.recipes, out, args, sweep.test)
    failed = [f"{name} failed: {reason}" for name, reason in outcomes if reason]
    folders = [out / name for name in sweep.recipes]
    if trained := _summaries(folders):
        _print_runs(trained)
    if failed:
        ERRORS.print(*failed, sep="\n")
        raise SystemExit(1)
    if len(folders) > 1:
        OUT.print(f"Compare them: {options.command('compare', *folders)}")


def train_runs(recipes: dict[str, Recipe], out: Path, args: argparse.Namespace, test: bool) -> Iterator[Outcome]:
    """Train the unfinished runs one after the other or, with --engine, on the cluster; yield how each ended.

    On the cluster one bar shows the episodes of all runs; on Ctrl-C they save their state and end.
    """
    from tapnet.jobs.sweep import check_trainable, train_one_by_one, unfinished

    check_trainable(recipes)
    count, recipes = len(recipes), unfinished(recipes, out, test)
    if done := count - len(recipes):
        ERRORS.print(f"{done} of {pluralize(count, 'run')} trained already, in {out}")
    if not args.engine:
        how = {"device": args.device, "precision": args.precision, "quiet": getattr(args, "json", False), "test": test}
        yield from train_one_by_one(recipes, out, partial(train_with_progress, **how, again="the same command"))
        return
    if not recipes:
        return
    from tapnet.jobs.on_ray import train_on_ray

    folders = [out / name for name in recipes]
    with progress_bar("episodes") as bar:
        shown = bar.add_task("", total=sum(recipe.training.episodes for recipe in recipes.values()))

        def watch() -> None:
            bar.update(shown, completed=sum(run.episode for run in _summaries(folders)))

        where = args.address, args.workers, args.device, args.precision
        try:
            for name, reason in train_on_ray(recipes, out, *where, test, watch):
                print(f"{name}: {'failed' if reason else 'trained'}", file=sys.stderr)
                yield name, reason
        except KeyboardInterrupt:
            words = f"Stopped; the runs in {out} have saved their state and the same command continues."
            raise KeyboardInterrupt(words) from None


def _summaries(folders: Sequence[Path]) -> list[RunSummary]:
    from tapnet.jobs.sweep import can_resume
    from tapnet.training.run_folder import summarize_run

    return [summarize_run(folder) for folder in folders if can_resume(folder)]


def add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Resume one that is not finished: tapnet train --resume RUN"
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="where to look (default: runs)")
    options.add_shared(parser, "--json", help="print a JSON array")


def run_runs(args: argparse.Namespace) -> None:
    from tapnet.training.run_folder import find_runs

    runs = find_runs(args.folder)
    if args.json:
        print_json([asdict(run) | {"folder": str(run.folder)} for run in runs])
        return
    if not runs:
        raise NotFoundError(f"There is no run in {args.folder}: start one with `tapnet train`, or name its folder.")
    _print_runs(runs)


def _print_runs(runs: Sequence[RunSummary]) -> None:
    rows = []
    for run in runs:
        tests = "\n".join(map(_result, run.evaluation))
        validation = _result(run.validation) if run.validation else "—"
        episodes = "—" if run.problem else f"{run.episode}/\n{run.episodes}"
        started = run.started[:16].replace("T", "\n")
        rows.append((str(run.folder), run.state, episodes, validation, tests or "—", started))
    print_table(("run", "state", "episodes", "validation", "test", "started"), rows)
    for run in runs:
        if run.problem:
            ERRORS.print(run.problem)


def _result(result: dict[str, Any]) -> str:
    accuracy = f"{percent(result['accuracy'])} {half_width(result['ci95'])}"
    return f"{accuracy}\n{result['way']}-way {result['shot']}-shot"


def add_recipes_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Train one with: tapnet train NAME"


def run_recipes(_: argparse.Namespace) -> None:
    from tapnet.data import DATASETS
    from tapnet.recipe import bundled_recipes, load_recipe

    recipes = {path.stem: load_recipe(str(path)) for path in bundled_recipes()}
    width = max(map(len, recipes))
    for dataset in dict.fromkeys([*DATASETS, *(recipe.data.name for recipe in recipes.values())]):
        of_dataset = [(name, recipe) for name, recipe in recipes.items() if recipe.data.name == dataset]
        if of_dataset:
            OUT.print(dataset, style="bold")
        for name, recipe in sorted(of_dataset, key=lambda entry: (entry[1].method.name != "tapnet", entry[0])):
            training = recipe.training
            task = f"{training.episodes:>9,} episodes, {training.way}-way {training.shot}-shot"
            OUT.print(f"  {name:<{width}} {task}, {recipe.method.name} with {recipe.backbone.name}")
