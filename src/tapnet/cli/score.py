"""`tapnet score`, `explain` and `info`: how good a task is, why it answers as it does, what a file holds."""

from __future__ import annotations

import argparse
from itertools import chain
from typing import TYPE_CHECKING, Any

from tapnet import inference
from tapnet.cli import options
from tapnet.cli.output import ERRORS, OUT, ImageProgress, percent, print_json, print_table
from tapnet.text import pluralize, shorten

if TYPE_CHECKING:
    from tapnet.inference import Score

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
    parser.epilog, add = _SCORE_EXAMPLES, parser.add_argument
    add("task", type=options.input_path, help="a task file, or an .onnx file made by `tapnet export`")
    add("folder", type=options.input_path, nargs="?", help="one folder of images per class, named as in the task")
    add("--out", type=options.output_file(*options.FIGURES), help="also save the confusion matrix as a figure")
    options.add_shared(parser, "--reject", help="also what rejecting below this probability, or by auto, does")
    options.add_shared(parser, "--lose", "--labels", "--json", "--network")
    options.add_shared(parser, "--device", default="cpu")


def run_score(args: argparse.Namespace) -> None:
    options.check_lose(args)
    predictor = inference.open_predictor(args.task, args.network, args.device)
    predictor.check_options(reject=args.reject, lose=args.lose)
    folder, shown = options.labeled_images(args.folder, args.labels), ImageProgress()
    options.check_not_read(args.out, [args.labels, *chain.from_iterable(folder.classes.values())])
    with shown.bar(len(folder)):
        result = inference.score(predictor, folder.classes, shown.unreadable, shown.advance, args.reject, args.lose)
    if result.fitted:
        of_all = f"{result.fitted} of {pluralize(len(result.predictions), 'image')}"
        ERRORS.print(f"{of_all} were examples of the task: new ones may do worse.")
    if args.json:
        print_json(result.as_dict())
    else:
        _print_score(result)
    if args.out:
        inference.confusion_figure(result.confusion, args.out)
        ERRORS.print(f"Figure: {args.out}")
    shown.finish(folder)


def _print_score(result: Score) -> None:
    confusion, mistakes = result.confusion, result.mistakes()
    low, high = map(percent, confusion.interval)
    scope = "" if result.fitted else ", for further images of these classes"
    images = pluralize(confusion.total, "image")
    OUT.print(f"Accuracy {percent(confusion.accuracy)} of {images} (95% interval {low} to {high}{scope})")
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
    parser.epilog, add = "example:\n  tapnet explain birds.task photo.jpg --out why.png", parser.add_argument
    add("task", type=options.input_path, help="a task file")
    add("image", type=options.input_path, help="the image to explain")
    out = options.output_file(*options.FIGURES)
    add("--out", type=out, default="why.png", help="the figure to save (default: why.png)")
    options.add_shared(parser, "--network")


def run_explain(args: argparse.Namespace) -> None:
    inference.check_task_path(args.task)
    options.check_not_read(args.out, [args.image])
    explanation = inference.explain(inference.read_task(args.task), args.image, args.network)
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
    parser.add_argument("file", type=options.input_path, help="a task, checkpoint, ONNX file, run or bundled network")
    options.add_shared(parser, "--json")


def run_info(args: argparse.Namespace) -> None:
    description = inference.describe(args.file)
    if args.json:
        print_json(description)
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
