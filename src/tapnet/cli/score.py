"""`tapnet score TASK FOLDER`: accuracy, mistakes and thresholds of rejection on labeled images."""

from __future__ import annotations

import argparse
import json
from itertools import chain
from typing import TYPE_CHECKING

from tapnet.cli.options import (
    FIGURES,
    add_labels,
    add_network,
    add_rejection,
    check_lose,
    check_not_read,
    input_path,
    labeled_images,
    output_file,
    percent,
)
from tapnet.cli.progress import ERRORS, OUT, ImageProgress
from tapnet.cli.tables import print_table
from tapnet.inference.task_path import check_task_path
from tapnet.text import pluralize, shorten

if TYPE_CHECKING:
    from tapnet.inference.confusion import Confusion
    from tapnet.inference.scoring import Score

_WIDEST, _MISTAKES, _NAME = 12, 20, 24  # classes in the matrix, files named, characters of a class in a table
_EXAMPLES = """examples:
  tapnet score birds.task labeled/                      labeled/robin/*.jpg, labeled/wren/*.jpg …
  tapnet score birds.task labeled/ --out confusion.png
  tapnet score birds.task --labels labels.csv --reject auto

Folders that are not named after a class of the task count as unknown classes.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file, or an .onnx file made by `tapnet export`")
    parser.add_argument(
        "folder", type=input_path, nargs="?", help="one folder of images per class, named as in the task"
    )
    add_labels(parser)
    parser.add_argument("--out", type=output_file(*FIGURES), help="also save the confusion matrix as a figure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_rejection(parser, "also what rejecting below this probability, or with auto by the examples of the task, does")
    add_network(parser)


def run(args: argparse.Namespace) -> None:
    check_task_path(args.task, allow_onnx=True)
    check_lose(args)
    from tapnet.inference import confusion_figure, open_predictor, score

    predictor = open_predictor(args.task, args.network, args.device)
    predictor.check_options(reject=args.reject, lose=args.lose)
    folder, progress = labeled_images(args.folder, args.labels), ImageProgress()
    check_not_read(args.out, [args.labels, *chain.from_iterable(folder.classes.values())])
    with progress.bar(len(folder)):
        found = score(predictor, folder.classes, progress.unreadable, progress.advance, args.reject, args.lose)
    if found.fitted:
        ERRORS.print(
            f"{found.fitted} of {pluralize(len(found.predictions), 'image')} were examples of the task: new ones may "
            "do worse."
        )
    if args.json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        _show(found)
    if args.out:
        confusion_figure(found.confusion, args.out)
        ERRORS.print(f"Figure: {args.out}")
    progress.finish(folder)


def _show(found: Score) -> None:
    confusion = found.confusion
    low, high = map(percent, confusion.interval)
    scope = "" if found.fitted else ", for further images of these classes"
    OUT.print(
        f"Accuracy {percent(confusion.accuracy)} of {pluralize(confusion.total, 'image')} (95% interval {low} to "
        f"{high}{scope})"
    )
    for name, accuracy in sorted(found.class_accuracies().items(), key=lambda row: row[1]):
        count = int(confusion.counts[confusion.classes.index(name)].sum())
        OUT.print(f"  {percent(accuracy):>7} of {pluralize(count, 'image')}: {name}")
    if len(confusion.classes) <= _WIDEST:
        OUT.print("Rows: true class; columns: predicted class, by number")
        _print_matrix(confusion)
    mistakes = found.mistakes()
    for mistake in mistakes[:_MISTAKES]:
        OUT.print(f"  {mistake.truth} taken for {mistake.predicted} ({percent(mistake.probability)}): {mistake.image}")
    if len(mistakes) > _MISTAKES:
        OUT.print(f"  … and {len(mistakes) - _MISTAKES} more mistakes; --json lists all.")
    if found.unknown:
        names = ", ".join(dict.fromkeys(truth for truth, _ in found.unknown))
        OUT.print(f"{pluralize(len(found.unknown), 'image')} of classes that the task does not have: {names}")
    OUT.print("What --reject would do, as shares of the images:")
    _print_thresholds(found)


def _print_matrix(confusion: Confusion) -> None:
    numbers = [str(k + 1) for k in range(len(confusion.classes))]
    rows = [
        (f"{number} {shorten(name, _NAME)}", *(str(count) if count else "·" for count in counts))
        for number, name, counts in zip(numbers, confusion.classes, confusion.counts, strict=True)
    ]
    print_table(("class", *numbers), rows)


def _print_thresholds(found: Score) -> None:
    rejection, rows = found.rejection(), []
    for each in [*found.thresholds(), *([rejection] if rejection else [])]:
        shares = each.correct_rejected, each.mistakes_rejected, each.unknown_rejected
        name = each.reject if isinstance(each.reject, str) else f"{each.reject:g}"
        rows.append((name, *("—" if share is None else f"{100 * share:.0f}%" for share in shares)))
    print_table(("--reject", "correct lost", "mistakes caught", "unknown caught"), rows)
