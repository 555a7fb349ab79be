"""`tapnet score`, `explain` and `info`: how good a task is, why it answers as it does, what a file holds."""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapnet.cli.options import (
    FIGURES,
    add_json,
    add_labels,
    add_network,
    add_rejection,
    check_lose,
    check_not_read,
    input_path,
    labeled_images,
    output_file,
)
from tapnet.cli.output import ERRORS, OUT, ImageProgress, percent, print_table
from tapnet.inference.task_path import check_task_path
from tapnet.text import pluralize, shorten

if TYPE_CHECKING:
    from tapnet.inference.scoring import Score

_WIDEST, _MISTAKES, _NAME = 12, 20, 24  # classes in the matrix, files named, characters of a class in a table
_SCORE_EXAMPLES = """examples:
  tapnet score birds.task labeled/                      labeled/robin/*.jpg, labeled/wren/*.jpg …
  tapnet score birds.task labeled/ --out confusion.png
  tapnet score birds.task --labels labels.csv --reject auto

Folders that are not named after a class of the task count as unknown classes.
"""
_INFO_EXAMPLES = """examples:
  tapnet info birds.task
  tapnet info runs/mine                         the best checkpoint of a run
  tapnet info drawings                          a bundled checkpoint
  tapnet info birds.onnx --json
"""


def add_score_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _SCORE_EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file, or an .onnx file made by `tapnet export`")
    parser.add_argument(
        "folder", type=input_path, nargs="?", help="one folder of images per class, named as in the task"
    )
    add_labels(parser)
    parser.add_argument("--out", type=output_file(*FIGURES), help="also save the confusion matrix as a figure")
    add_json(parser)
    add_rejection(parser, "also what rejecting below this probability, or with auto by the examples of the task, does")
    add_network(parser)


def run_score(args: argparse.Namespace) -> None:
    check_task_path(args.task, allow_onnx=True)
    check_lose(args)
    from tapnet.inference import confusion_figure, open_predictor, score

    predictor = open_predictor(args.task, args.network, args.device)
    predictor.check_options(reject=args.reject, lose=args.lose)
    folder, shown = labeled_images(args.folder, args.labels), ImageProgress()
    check_not_read(args.out, [args.labels, *chain.from_iterable(folder.classes.values())])
    with shown.bar(len(folder)):
        result = score(predictor, folder.classes, shown.unreadable, shown.advance, args.reject, args.lose)
    if result.fitted:
        ERRORS.print(
            f"{result.fitted} of {pluralize(len(result.predictions), 'image')} were examples of the task: new ones may "
            "do worse."
        )
    if args.json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
    else:
        _print_score(result)
    if args.out:
        confusion_figure(result.confusion, args.out)
        ERRORS.print(f"Figure: {args.out}")
    shown.finish(folder)


def _print_score(result: Score) -> None:
    confusion = result.confusion
    low, high = map(percent, confusion.interval)
    scope = "" if result.fitted else ", for further images of these classes"
    OUT.print(
        f"Accuracy {percent(confusion.accuracy)} of {pluralize(confusion.total, 'image')} (95% interval {low} to "
        f"{high}{scope})"
    )
    for name, accuracy in sorted(result.class_accuracies().items(), key=lambda row: row[1]):
        count = int(confusion.counts[confusion.classes.index(name)].sum())
        OUT.print(f"  {percent(accuracy):>7} of {pluralize(count, 'image')}: {name}")
    if len(confusion.classes) <= _WIDEST:
        OUT.print("Rows: true class; columns: predicted class, by number")
        numbers = [str(k + 1) for k in range(len(confusion.classes))]
        matrix = [
            (f"{number} {shorten(name, _NAME)}", *(str(count) if count else "·" for count in counts))
            for number, name, counts in zip(numbers, confusion.classes, confusion.counts, strict=True)
        ]
        print_table(("class", *numbers), matrix)
    mistakes = result.mistakes()
    for mistake in mistakes[:_MISTAKES]:
        OUT.print(f"  {mistake.truth} taken for {mistake.predicted} ({percent(mistake.probability)}): {mistake.image}")
    if len(mistakes) > _MISTAKES:
        OUT.print(f"  … and {len(mistakes) - _MISTAKES} more mistakes; --json lists all.")
    if result.unknown:
        names = ", ".join(dict.fromkeys(truth for truth, _ in result.unknown))
        OUT.print(f"{pluralize(len(result.unknown), 'image')} of classes that the task does not have: {names}")
    OUT.print("What --reject would do, as shares of the images:")
    rejection, rows = result.rejection(), []
    for row in [*result.thresholds(), *([rejection] if rejection else [])]:
        shares = row.correct_rejected, row.mistakes_rejected, row.unknown_rejected
        name = row.reject if isinstance(row.reject, str) else f"{row.reject:g}"
        rows.append((name, *("—" if share is None else f"{100 * share:.0f}%" for share in shares)))
    print_table(("--reject", "correct lost", "mistakes caught", "unknown caught"), rows)


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example:\n  tapnet explain birds.task photo.jpg --out why.png"
    parser.add_argument("task", type=input_path, help="a task file")
    parser.add_argument("image", type=input_path, help="the image to explain")
    out = output_file(*FIGURES)
    parser.add_argument("--out", type=out, default=Path("why.png"), help="the figure to save (default: why.png)")
    add_network(parser, device=False)


def run_explain(args: argparse.Namespace) -> None:
    check_task_path(args.task)
    from tapnet.inference import explain, read_task

    explanation = explain(read_task(args.task), args.image, args.network)
    explanation.figure(args.out)
    OUT.print(f"{explanation.label}, {100 * explanation.ranked[0][1]:.1f}%")
    for name, probability in explanation.ranked[1:5]:
        OUT.print(f"  {100 * probability:5.1f}%  {name}")
    similar = ", ".join(f"{example.label} ({example.similarity:.2f})" for example in explanation.nearest)
    OUT.print(f"Most similar examples: {similar}")
    if explanation.reason:
        OUT.print(explanation.reason)
    OUT.print(f"Figure: {args.out}")


def add_info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _INFO_EXAMPLES
    parser.add_argument("file", type=input_path, help="a task, checkpoint, ONNX file, run folder or bundled network")
    add_json(parser)


def run_info(args: argparse.Namespace) -> None:
    from tapnet.inference import describe

    description = describe(args.file)
    if args.json:
        print(json.dumps(description, ensure_ascii=False))
        return
    width = max(map(len, description))
    for name, value in description.items():
        for row, text in enumerate(_lines(name, value)):
            OUT.print(f"{name if row == 0 else '':<{width}}  {text}")


def _lines(name: str, value: Any) -> list[str]:
    if name == "classes":
        counts = (f"{label}: {count}" for label, count in value.items()) if isinstance(value, dict) else value
        return [str(len(value)), *counts]
    if isinstance(value, dict):
        return [f"{key}: {_text(entry)}" for key, entry in value.items()] or ["none"]
    return [", ".join(map(str, value)) or "none" if isinstance(value, list) else _text(value)]


def _text(value: Any) -> str:
    return "none" if value in (None, "") else format(value, {float: ".4g", int: ","}.get(type(value), ""))
