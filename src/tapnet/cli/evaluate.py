"""`tapnet evaluate` and `compare`: the accuracy of checkpoints with its intervals, and their paired differences."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapnet.cli.options import (
    add_device,
    add_episodes,
    add_json,
    add_processes,
    episode_spec,
    output_file,
    output_folder,
    processes,
)
from tapnet.cli.output import Advance, episode_progress, percent, print_prose, print_table
from tapnet.errors import UserError
from tapnet.paths import find_checkpoint
from tapnet.text import class_half_width, half_width, overlap_note, pluralize

if TYPE_CHECKING:
    from tapnet.data.episodes import EpisodeSpec
    from tapnet.evaluation.candidates import Candidate, EvaluationData
    from tapnet.evaluation.evaluator import Accuracies, Evaluation, SeedSpread

_EVALUATE_EXAMPLES = """examples:
  tapnet evaluate runs/quickstart
  tapnet evaluate drawings --way 10
  tapnet evaluate runs/quickstart --way 5,20 --shot 1,5 --episodes 10000
  tapnet evaluate runs/seed0 runs/seed1 runs/seed2 --seeds
  tapnet evaluate runs/quickstart --json
"""
_COMPARE_EXAMPLES = """examples:
  tapnet compare runs/tapnet runs/protonet --shot 1
  tapnet compare runs/tapnet-seed0 runs/tapnet-seed1 runs/protonet --out comparison.html
"""


@dataclass(frozen=True)
class _Measured:
    """The result of a checkpoint on one task."""

    candidate: Candidate
    result: Evaluation
    accuracies: Accuracies

    def as_dict(self) -> dict[str, Any]:
        return self.result.as_dict() | {"checkpoint": self.candidate.name} | self.candidate.overlap.as_dict()


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EVALUATE_EXAMPLES
    parser.add_argument(
        "checkpoints",
        nargs="+",
        metavar="checkpoint",
        help="a .safetensors checkpoint or the folder of a run (its best)",
    )
    add_episodes(parser, several=True)
    parser.add_argument("--seeds", action="store_true", help="runs that differ in seed only: mean and spread over them")
    add_json(parser)
    parser.add_argument("--no-class-interval", action="store_true", help="leave out the interval over classes: faster")
    parser.add_argument("--no-cache", action="store_true", help="compute the features even if they are cached")
    parser.add_argument("--record", type=output_folder, metavar="DIR", help="record the result for `tapnet table`")
    add_device(parser, precision="float32")
    add_processes(parser)


def run_evaluate(args: argparse.Namespace) -> None:
    _check_found(args.checkpoints)

    from tapnet import hardware
    from tapnet.data.episodes import EpisodeSpec
    from tapnet.evaluation.candidates import check_seeds

    specs = [EpisodeSpec(way, shot, args.query, args.episodes, args.seed) for way in args.way for shot in args.shot]
    with processes(args):
        if args.seeds:
            check_seeds(args.checkpoints)
        with episode_progress() as start:
            measured = [
                _measure(found, spec, not args.no_class_interval, start) for found in candidates(args) for spec in specs
            ]
        if hardware.rank() > 0:
            return
    spreads = _spreads(measured, len(specs)) if args.seeds else []
    if args.json:
        print(json.dumps(_as_json(measured, spreads)))
    else:
        _print(measured, spreads)
    if args.record:
        _record(measured, args.record)


def _measure(found: Candidate, spec: EpisodeSpec, bootstrap: bool, start: Callable[[str], Advance]) -> _Measured:
    """Evaluate a checkpoint on the episodes of the spec; with `bootstrap`, include the interval over classes."""
    name = f"{found.name}, {spec.way}-way {spec.shot}-shot"
    accuracies = found.evaluator.accuracies(spec, start(name))
    over_classes = start(f"{name}, over classes") if bootstrap else None
    return _Measured(found, found.evaluator.evaluate(spec, bootstrap, over_classes, accuracies), accuracies)


def _as_json(measured: list[_Measured], spreads: list[tuple[Evaluation, SeedSpread]]) -> dict[str, Any]:
    """Return the only result, or all of them under `results`."""
    if len(measured) == 1:
        return measured[0].as_dict()
    seeds = [{"way": result.way, "shot": result.shot} | asdict(spread) for result, spread in spreads]
    return {"results": [each.as_dict() for each in measured]} | ({"over_seeds": seeds} if seeds else {})


def _print(measured: list[_Measured], spreads: list[tuple[Evaluation, SeedSpread]]) -> None:
    for found in dict.fromkeys(each.candidate for each in measured):
        results = [each.result for each in measured if each.candidate is found]
        first = results[0]
        print_results(results, f"{found.name} on {first.dataset} ({first.classes} {first.split} classes{_note(found)})")
    if spreads:
        print(f"Mean of {pluralize(len(spreads[0][1].seeds), 'run')} with other seeds:")
        headings = ("task", "accuracy", "over episodes", "over seeds", "deviation of one run")
        rows = [
            (
                f"{result.way}-way {result.shot}-shot",
                percent(spread.accuracy),
                half_width(spread.ci95),
                half_width(spread.seed_ci95),
                "—" if spread.seed_deviation is None else f"{100 * spread.seed_deviation:.2f}",
            )
            for result, spread in spreads
        ]
        print_table(headings, rows)
    print_prose(EXPLANATION + (_OVER_SEEDS if spreads else ONE_RUN))


def _note(found: Candidate) -> str:
    """Return what the title says about classes that are not unseen."""
    overlaps = {"trained on": found.overlap.trained_on, "chosen by": found.overlap.validated_on}
    counts = [f", {words} {count} of them" for words, count in overlaps.items() if count]
    return overlap_note(found.overlap.pretrained_on) + "".join(counts)


def _spreads(measured: list[_Measured], tasks: int) -> list[tuple[Evaluation, SeedSpread]]:
    """Return for each task the mean over the runs, with its variation over episodes and over seeds."""
    from tapnet.evaluation.evaluator import seed_spread

    spreads = []
    for task in range(tasks):
        runs = measured[task::tasks]
        seeds = [each.candidate.header.recipe.seed for each in runs]
        spreads.append((runs[0].result, seed_spread([each.accuracies for each in runs], seeds)))
    return spreads


def _record(measured: list[_Measured], folder: Path) -> None:
    from tapnet.paper.results import record
    from tapnet.training.run_folder import RunFolder

    for each in measured:
        found = each.candidate
        state = str(RunFolder(Path(found.name)).metadata().get("state", "unknown"))  # unknown of a single file
        path = record(folder, found.header, each.result, found.overlap.as_dict(), state, found.training_seconds)
        print(f"Recorded in {path}", file=sys.stderr)


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _COMPARE_EXAMPLES
    parser.add_argument(
        "checkpoints", nargs="+", help="two or more checkpoints or run folders; runs that differ in seed are grouped"
    )
    add_episodes(parser)
    parser.add_argument("--no-class-interval", action="store_true", help="leave out the interval over classes: faster")
    add_json(parser)
    parser.add_argument(
        "--out", type=output_file(".md", ".html"), help="write a report: .md with its plot, or .html, all in one file"
    )
    add_device(parser, precision="float32")


def run_compare(args: argparse.Namespace) -> None:
    if len(args.checkpoints) < 2:
        raise UserError(f"A comparison needs at least 2 checkpoints, got {len(args.checkpoints)}.")
    _check_found(args.checkpoints)

    from tapnet.evaluation.comparison import compare, note, tables, title, write

    spec, found = episode_spec(args), candidates(args)
    with episode_progress() as start:
        result = compare(found, spec, bootstrap=not args.no_class_interval, progress=start)
    if args.json:
        print(json.dumps(result.as_dict()))
    else:
        print(title(result))
        for heading, rows in tables(result).items():
            print(f"\n{heading}")
            print_table([*rows[0]], [[*row.values()] for row in rows])
        print_prose(note(result))
    if args.out:
        print(*(f"Wrote {path}" for path in write(result, args.out)), sep="\n", file=sys.stderr)


def _check_found(checkpoints: Sequence[str]) -> None:
    """Raise UserError if there is no such checkpoint, before PyTorch is imported."""
    for checkpoint in checkpoints:
        find_checkpoint(checkpoint)


def candidates(args: argparse.Namespace) -> Iterator[Candidate]:
    """Return the checkpoints as `candidate` does; raise UserError before the first is used if one cannot be read."""
    from tapnet.checkpoint import read_checkpoint

    for checkpoint in args.checkpoints:
        read_checkpoint(checkpoint)
    return (candidate(checkpoint, args) for checkpoint in args.checkpoints)


def candidate(checkpoint: str, args: argparse.Namespace) -> Candidate:
    """Return a checkpoint with an evaluator by the options; print which classes are not unseen."""
    from tapnet.evaluation.candidates import Candidate
    from tapnet.paths import feature_cache
    from tapnet.training.outcome import training_seconds
    from tapnet.training.run_folder import RunFolder

    cache = None if getattr(args, "no_cache", False) else feature_cache()
    found = Candidate.open(
        checkpoint, evaluation_data(args), args.device, args.precision, cache, allow_overlap=args.allow_overlap
    )
    if notes := found.overlap.notes():
        print(f"Note on {checkpoint}: {' '.join(notes)}", file=sys.stderr)
    return replace(found, training_seconds=training_seconds(RunFolder(Path(checkpoint))))


def evaluation_data(args: argparse.Namespace) -> EvaluationData:
    """Return the images by the options of `add_task`."""
    from tapnet.evaluation.candidates import EvaluationData

    return EvaluationData(args.split, args.dataset, args.root, args.rotations)


EXPLANATION = (
    "Over episodes: 95% interval for these classes and images. Over classes: 95% interval for others of the same kind, "
    "by resampling classes and images; not resolvable where their variance is lost in that of the episodes. "
)
ONE_RUN = "One training run; another seed may differ."
_OVER_SEEDS = "Over seeds: 95% interval for the mean over other seeds of training."


def print_results(results: list[Evaluation], title: str) -> None:
    """Print a title on one line and one row per task."""
    rows = []
    for result in results:
        task = f"{result.way}-way {result.shot}-shot"
        intervals = half_width(result.ci95), class_half_width(result.ci95_bootstrap, result.ci95_bootstrap_at_most)
        rows.append((task, percent(result.accuracy), *intervals, f"{result.episodes:,}"))
    print(title)
    print_table(("task", "accuracy", "over episodes", "over classes", "episodes"), rows)
