"""`tapnet ablate NAME`: the variants of an ablation on identical episodes, with their paired differences."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.cli.batch import add_engine, check_engine
from tapnet.cli.evaluate import candidate, evaluation_data
from tapnet.cli.options import add_device, add_episodes, episode_spec, output_folder, percent
from tapnet.cli.sweep import train_on_cluster
from tapnet.cli.tables import print_prose, print_table
from tapnet.cli.train import train_with_progress
from tapnet.errors import UserError
from tapnet.text import difference, half_width

if TYPE_CHECKING:
    from tapnet.checkpoint import Header
    from tapnet.data.episodes import EpisodeSpec
    from tapnet.evaluation.candidates import Candidate
    from tapnet.paper.ablations import Ablation
    from tapnet.paper.ablations.rows import Row

_EXAMPLES = """examples:
  tapnet ablate                                            list the ablations
  tapnet ablate selection --checkpoint runs/mine --way 20
  tapnet ablate dimension --checkpoint drawings --split val
  tapnet ablate gradient --recipe quickdraw --set training.episodes=300
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("name", nargs="?", help="the ablation; without one, list them")
    parser.add_argument("--checkpoint", help="variants of a trained network: a run, a file or a bundled name")
    parser.add_argument("--recipe", help="variants that are trained, by this recipe")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change the recipe")
    parser.add_argument("--out", type=output_folder, help="folder of the trained runs (default: runs/ablate-NAME)")
    add_episodes(parser, None, "2000, or fewer where each takes long")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--record", type=output_folder, metavar="DIR", help="record the result in DIR/ablations")
    add_device(parser, precision="auto")
    add_engine(parser)


def run(args: argparse.Namespace) -> None:
    from tapnet.paper.ablations import ABLATIONS, find_ablation
    from tapnet.paper.ablations.rows import task_words
    from tapnet.paper.results import ablation_result, record_ablation

    if args.name is None:
        if args.json:
            raise UserError("--json needs the name of an ablation; `tapnet ablate` lists them.")
        _print_list(ABLATIONS)
        return
    ablation = find_ablation(args.name)
    _check_options(ablation, args)
    if args.episodes is None:
        args.episodes = ablation.episodes
    task = episode_spec(args)
    header, base, rows = (_measure if args.checkpoint else _train_and_measure)(ablation, args, task)
    recorded_task = asdict(task) | ({"way": None} if ablation.varies_way else {})
    rows_as_dicts, overlap = [asdict(row) for row in rows], base.overlap.as_dict()
    result = ablation_result(args.name, header, base.evaluator, recorded_task, rows_as_dicts, overlap)
    if args.json:
        print(json.dumps(result))
    else:
        _print_rows(rows, f"{args.name}: {task_words(result['task'])}, {task.episodes} episodes", ablation.note)
    if args.record:
        print(f"Recorded in {record_ablation(args.record, result)}", file=sys.stderr)


def _check_options(ablation: Ablation, args: argparse.Namespace) -> None:
    if (args.checkpoint is None) == (args.recipe is None):
        raise UserError("Expected either --checkpoint, to vary a trained network, or --recipe, to train the variants.")
    if args.checkpoint and ablation.measure is None:
        raise UserError(f"The variants of {args.name} need training: use --recipe in place of --checkpoint.")
    if args.recipe and ablation.recipes is None:
        raise UserError(f"The variants of {args.name} need no training: use --checkpoint in place of --recipe.")
    if args.checkpoint and (args.set or args.out or args.engine):
        raise UserError("--set, --out and --engine are for variants that are trained: leave them out, or use --recipe.")
    check_engine(args)


def _measure(ablation: Ablation, args: argparse.Namespace, task: EpisodeSpec) -> tuple[Header, Candidate, list[Row]]:
    """Return the header of the checkpoint, the checkpoint with its evaluator, and the rows."""
    assert ablation.measure is not None
    opened = candidate(args.checkpoint, _in_float32(args))
    return opened.header, opened, ablation.measure(opened.evaluator, task)


def _train_and_measure(
    ablation: Ablation, args: argparse.Namespace, task: EpisodeSpec
) -> tuple[Header, Candidate, list[Row]]:
    """Train the variants; return the same as `_measure`, for the first of them."""
    from tapnet.paper.ablations.trained import check_measurable, measure_runs, recipes_by_folder, train_variants
    from tapnet.recipe import load_recipe

    assert ablation.recipes is not None
    recipe = load_recipe(args.recipe, args.set)
    train = partial(
        train_with_progress,
        device=args.device,
        precision=args.precision,
        quiet=args.json,
        again="the same command",
        test=False,
    )
    recipes = ablation.recipes(recipe)
    check_measurable(recipes, evaluation_data(args).load(recipe.data), task)
    out = args.out or Path("runs") / f"ablate-{args.name}"
    if args.engine:
        train_on_cluster(recipes_by_folder(recipes), out, args)
    folders = train_variants(recipes, out, train, partial(print, file=sys.stderr))
    candidates = {variant: candidate(str(folder), _in_float32(args)) for variant, folder in folders.items()}
    evaluators = {variant: each.evaluator for variant, each in candidates.items()}
    base = next(iter(candidates.values()))
    return replace(base.header, recipe=recipe), base, measure_runs(evaluators, task, recipe.training.episodes)


def _in_float32(args: argparse.Namespace) -> argparse.Namespace:
    """Return the options for an evaluation in float32; --precision is that of training."""
    return argparse.Namespace(**vars(args) | {"precision": "float32"})


def _print_list(ablations: dict[str, Ablation]) -> None:
    for name, ablation in ablations.items():
        sources = (("--checkpoint", ablation.measure), ("--recipe", ablation.recipes))
        options = " or ".join(option for option, function in sources if function)
        print(f"{name:<26}{options}")
        print_prose(ablation.question, indent=2)


def _print_rows(rows: list[Row], title: str, note: str) -> None:
    from tapnet.paper.ablations.rows import subsample_rows

    is_paired = any(row.difference is not None for row in rows)
    headings = ["variant", "accuracy", "over episodes", *(("difference", "paired interval") if is_paired else ())]
    headings += ["references first"] if rows[0].references_first is not None else []
    headings += ["over rotations"] if rows[0].lowest is not None else []
    lines = []
    for row in subsample_rows(rows, max(rows, key=lambda row: row.accuracy)):
        cells = [row.variant, percent(row.accuracy), half_width(row.ci95)]
        if is_paired:
            cells += [difference(row.difference), half_width(row.difference_ci95)]
        if row.references_first is not None:
            cells.append(percent(row.references_first))
        if row.lowest is not None and row.highest is not None:
            cells.append(f"{100 * row.lowest:.2f} to {percent(row.highest)}")
        lines.append(cells)
    print(title)
    print_table(headings, lines)
    if rows[0].training_episodes:
        note = f"Each variant was trained once, for {rows[0].training_episodes} episodes; another seed may differ."
    if note:
        print_prose(note)
