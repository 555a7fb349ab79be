"""`tapnet evaluate`, `compare` and `quickstart`: accuracies with their intervals, and paired differences."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.cli import options
from tapnet.cli.output import episode_progress, percent, print_json, print_prose, print_table, write_table
from tapnet.cli.train import train_with_progress
from tapnet.errors import UserError
from tapnet.paths import find_checkpoint
from tapnet.text import class_half_width, half_width, overlap_note, pluralize

if TYPE_CHECKING:
    from tapnet.evaluation.candidates import Candidate, ClassOverlap, EvaluationData
    from tapnet.evaluation.evaluator import Accuracies, Evaluation, SeedSpread

    Measured = tuple[Candidate, Evaluation, Accuracies]

_EVALUATE_EXAMPLES = """examples:
  tapnet evaluate runs/quickstart
  tapnet evaluate drawings --way 10
  tapnet evaluate runs/quickstart --way 5,20 --shot 1,5 --episodes 10000
  tapnet evaluate runs/seed0 runs/seed1 runs/seed2 --seeds
  tapnet evaluate runs/quickstart --way 5,20 --out accuracies.csv
"""
_COMPARE_EXAMPLES = """examples:
  tapnet compare runs/tapnet runs/protonet --shot 1
  tapnet compare runs/tapnet-seed0 runs/tapnet-seed1 runs/protonet --out comparison.html
"""
_HEADINGS = ("task", "accuracy", "over episodes", "over classes", "episodes")
_TASKS = ((5, 1), (5, 5), (20, 1), (20, 5))  # way, shot of the quickstart
_EXPLANATION = (
    "Over episodes: 95% interval for these classes and images. Over classes: 95% interval for others of the same kind, "
    "by resampling classes and images; not resolvable where their variance is lost in that of the episodes. "
)
_ONE_RUN = "One training run; another seed may differ."
_OVER_SEEDS = "Over seeds: 95% interval for the mean over other seeds of training."


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, add = _EVALUATE_EXAMPLES, parser.add_argument
    add("checkpoints", nargs="+", metavar="checkpoint", help="a checkpoint, or the folder of a run (its best)")
    several = {"type": options.numbers, "default": [5]}
    options.add_shared(parser, "--way", **several, help="classes per episode (default: 5), or several: 5,20")
    options.add_shared(parser, "--shot", **several, help="labeled images per class (default: 5), or several: 1,5")
    others = (flag for flag in options.TASK if flag not in ("--way", "--shot"))
    options.add_shared(parser, *others, "--episodes", "--no-class-interval", "--json", *options.PROCESSES, "--device")
    options.add_shared(parser, "--precision", default="float32")
    add("--seeds", action="store_true", help="runs that differ in seed only: mean and spread over them")
    add("--out", type=options.output_file(*options.TABLES), help="write the table: .csv or .tex")
    add("--no-cache", action="store_true", help="compute the features even if they are cached")
    add("--record", type=options.output_folder, metavar="DIR", help="record the result for `tapnet table`")


def run_evaluate(args: argparse.Namespace) -> None:
    for checkpoint in args.checkpoints:
        find_checkpoint(checkpoint)

    from tapnet import hardware
    from tapnet.data.episodes import EpisodeSpec
    from tapnet.evaluation.candidates import check_seeds
    from tapnet.paper.results import record
    from tapnet.training.run_folder import RunFolder

    specs = [EpisodeSpec(way, shot, args.query, args.episodes, args.seed) for way in args.way for shot in args.shot]
    measured: list[Measured] = []
    with options.processes(args):
        if args.seeds:
            check_seeds(args.checkpoints)
        with episode_progress() as start:
            for opened in candidates(args):
                for spec in specs:
                    name, bootstrap = f"{opened.name}, {spec.way}-way {spec.shot}-shot", not args.no_class_interval
                    accuracies = opened.evaluator.accuracies(spec, start(name))
                    over_classes = start(f"{name}, over classes") if bootstrap else None
                    result = opened.evaluator.evaluate(spec, bootstrap, over_classes, accuracies)
                    measured.append((opened, result, accuracies))
        if hardware.rank() > 0:
            return
    spreads = _spreads(measured, len(specs)) if args.seeds else []
    if args.json:
        rows = [result.as_dict() | {"checkpoint": one.name} | one.overlap.as_dict() for one, result, _ in measured]
        seeds = [{"way": result.way, "shot": result.shot} | asdict(spread) for result, spread in spreads]
        print_json({"results": rows, "over_seeds": seeds})
    else:
        _print(measured, spreads)
    if args.out:
        write_table(args.out, ["checkpoint", *_HEADINGS], [[one.name, *_row(result)] for one, result, _ in measured])
    for one, result, _ in measured if args.record else ():
        state = str(RunFolder(Path(one.name)).metadata().get("state", "unknown"))  # unknown of a single file
        path = record(args.record, one.header, result, one.overlap.as_dict(), state, one.training_seconds)
        print(f"Recorded in {path}", file=sys.stderr)


def _spreads(measured: list[Measured], tasks: int) -> list[tuple[Evaluation, SeedSpread]]:
    """Return for each task the mean over the runs, with its variation over episodes and over seeds."""
    from tapnet.evaluation.evaluator import seed_spread

    seeds = [opened.header.recipe.seed for opened, *_ in measured[::tasks]]
    by_task = [measured[task::tasks] for task in range(tasks)]
    return [(runs[0][1], seed_spread([accuracies for *_, accuracies in runs], seeds)) for runs in by_task]


def _print(measured: list[Measured], spreads: list[tuple[Evaluation, SeedSpread]]) -> None:
    for opened in dict.fromkeys(one for one, _, _ in measured):
        results = [result for one, result, _ in measured if one is opened]
        first = results[0]
        print(f"{opened.name} on {first.dataset} ({first.classes} {first.split} classes{_note(opened.overlap)})")
        print_table(_HEADINGS, [*map(_row, results)])
    if spreads:
        print(f"Mean of {pluralize(len(spreads[0][1].seeds), 'run')} with other seeds:")
        rows = []
        for result, spread in spreads:
            deviation = "—" if spread.seed_deviation is None else f"{100 * spread.seed_deviation:.2f}"
            intervals = half_width(spread.ci95), half_width(spread.seed_ci95)
            rows.append((f"{result.way}-way {result.shot}-shot", percent(spread.accuracy), *intervals, deviation))
        print_table(("task", "accuracy", "over episodes", "over seeds", "deviation of one run"), rows)
    print_prose(_EXPLANATION + (_OVER_SEEDS if spreads else _ONE_RUN))


def _row(result: Evaluation) -> tuple[str, ...]:
    """Return a row of text, below `_HEADINGS`."""
    intervals = half_width(result.ci95), class_half_width(result.ci95_bootstrap, result.ci95_bootstrap_at_most)
    return f"{result.way}-way {result.shot}-shot", percent(result.accuracy), *intervals, f"{result.episodes:,}"


def _note(overlap: ClassOverlap) -> str:
    """Return what the title says about classes that are not unseen."""
    overlaps = {"trained on": overlap.trained_on, "chosen by": overlap.validated_on}
    counts = [f", {words} {count} of them" for words, count in overlaps.items() if count]
    return overlap_note(overlap.pretrained_on) + "".join(counts)


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, add = _COMPARE_EXAMPLES, parser.add_argument
    add("checkpoints", nargs="+", help="two or more checkpoints or runs; seeds of a run are grouped")
    options.add_shared(parser, *options.TASK, "--episodes", "--no-class-interval", "--json", "--device")
    options.add_shared(parser, "--precision", default="float32")
    words = "write a report: .html, .md with its plot; or its tables: .csv (pairs in a second file), .tex"
    add("--out", type=options.output_file(".md", ".html", *options.TABLES), help=words)


def run_compare(args: argparse.Namespace) -> None:
    if len(args.checkpoints) < 2:
        raise UserError(f"A comparison needs at least 2 checkpoints, got {len(args.checkpoints)}.")
    for checkpoint in args.checkpoints:
        find_checkpoint(checkpoint)

    from tapnet.evaluation.comparison import compare, note, tables, title, write

    spec, opened = options.episode_spec(args), candidates(args)
    with episode_progress() as start:
        result = compare(opened, spec, bootstrap=not args.no_class_interval, progress=start)
    if args.json:
        print_json(result.as_dict())
    else:
        print(title(result))
        for heading, rows in tables(result).items():
            print(f"\n{heading}")
            print_table([*rows[0]], [[*row.values()] for row in rows])
        print_prose(note(result))
    if args.out:
        print(*(f"Wrote {path}" for path in write(result, args.out)), sep="\n", file=sys.stderr)


def candidates(args: argparse.Namespace) -> Iterator[Candidate]:
    """Return the checkpoints as `candidate` does; raise UserError before the first is used if one cannot be read."""
    from tapnet.checkpoint import read_checkpoint

    for checkpoint in args.checkpoints:
        read_checkpoint(checkpoint)
    return (candidate(checkpoint, args) for checkpoint in args.checkpoints)


def candidate(checkpoint: str, args: argparse.Namespace, precision: str | None = None) -> Candidate:
    """Return a checkpoint with an evaluator by the options; print which classes are not unseen."""
    from tapnet.evaluation.candidates import Candidate
    from tapnet.paths import feature_cache
    from tapnet.training.run_folder import RunFolder

    cache = None if getattr(args, "no_cache", False) else feature_cache()
    data, precision = evaluation_data(args), precision or args.precision
    opened = Candidate.open(checkpoint, data, args.device, precision, cache, allow_overlap=args.allow_overlap)
    if notes := opened.overlap.notes():
        print(f"Note on {checkpoint}: {' '.join(notes)}", file=sys.stderr)
    return replace(opened, training_seconds=RunFolder(Path(checkpoint)).training_seconds())


def evaluation_data(args: argparse.Namespace) -> EvaluationData:
    """Return the images by the options `TASK`."""
    from tapnet.evaluation.candidates import EvaluationData

    return EvaluationData(args.split, args.dataset, args.root, args.rotations)


def add_quickstart_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "A finished run in the folder is evaluated again, an interrupted one is resumed."
    add = parser.add_argument
    add("--out", type=options.output_folder, default="runs/quickstart", help="folder (default: runs/quickstart)")
    add("--method", default="tapnet", help="tapnet, or protonet trained by the same recipe")
    options.add_shared(parser, "--set", "--device", "--precision")


def run_quickstart(args: argparse.Namespace) -> None:
    from tapnet.checkpoint import load
    from tapnet.data.episodes import EpisodeSpec
    from tapnet.evaluation.evaluator import Evaluator
    from tapnet.evaluation.plotting import save
    from tapnet.hardware import resolve_device
    from tapnet.paper.figures import has_projection, learning_curve, projection_figure
    from tapnet.paths import LAST
    from tapnet.recipe import load_recipe
    from tapnet.training.run_folder import RunFolder

    recipe = load_recipe("quickdraw", args.set, args.method)
    train_with_progress(recipe, args.out, args.device, args.precision, resume=(args.out / LAST).exists(), test=False)

    method = load(args.out, resolve_device(args.device))
    evaluator = Evaluator(method, recipe.data.images("test"))
    results = [evaluator.evaluate(EpisodeSpec(way, shot, 15, 1000)) for way, shot in _TASKS]
    RunFolder(args.out).record_evaluation([result.as_dict() for result in results])
    print(f"{args.method} on {len(evaluator.images.names)} classes it has never seen")
    print_table(_HEADINGS, [*map(_row, results)])
    print_prose(_EXPLANATION + _ONE_RUN)
    plots = [save(learning_curve(args.out), args.out / "learning-curve.png")]
    if has_projection(method):
        plots.append(save(projection_figure(method, evaluator.images), args.out / "projection.png"))
    print("\nPlots:", *(f"  {path}" for path in plots), sep="\n")
    print(
        "\nNext:",
        f"  {options.command('evaluate', args.out)} --way 10 --shot 3",
        "  tapnet train quickdraw --set training.episodes=3000 --out runs/longer",
        "  tapnet fit my_images --out mine.task      one folder per class",
        "  tapnet recipes                            what else can be trained",
        "  make compare                              Prototypical Networks beside it",
        sep="\n",
    )
