"""`tapnet score TASK FOLDER`: accuracy and confusion matrix on labelled pictures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tapnet.cli.options import PICTURES, output_file, percent
from tapnet.cli.pictures import ERRORS, Reader, predictor_of
from tapnet.wording import pluralize

if TYPE_CHECKING:
    from tapnet.inference.confusion import Confusion
    from tapnet.inference.images import Example

_WIDEST, _MISTAKES = 12, 10  # classes in the table, lines of mistakes below it
_EXAMPLES = """examples:
  tapnet score birds.task labelled/                      labelled/robin/*.jpg, labelled/wren/*.jpg …
  tapnet score birds.task labelled/ --out confusion.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=Path, help="a task file, or an .onnx file made by `tapnet export`")
    parser.add_argument("folder", type=Path, help="one folder of pictures a class, named as in the task")
    parser.add_argument("--out", type=output_file(*PICTURES), help="also draw the confusion matrix into this file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--network", help="the checkpoint of the task, where it lies elsewhere now")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, mps or auto")


def run(args: argparse.Namespace) -> None:
    from tapnet.inference.confusion import Confusion, confusion_figure
    from tapnet.inference.folders import class_folders
    from tapnet.inference.prediction import predictions

    predictor = predictor_of(args.task, args.network, args.device)
    folders = class_folders(args.folder)
    strangers = [name for name in folders if name not in predictor.classes]
    if strangers:
        raise ValueError(
            f"{args.folder} has a class {strangers[0]!r} that the task does not know: needed are names among "
            f"{', '.join(predictor.classes)}."
        )
    owner = {path: name for name, files in folders.items() for path in files}
    reader = Reader(predictor.preprocessing, len(owner))
    known, fitted = set(predictor.hashes), []

    def pictures() -> Iterator[tuple[Path, Example]]:
        for path, example in reader.read(owner):
            if example.sha256 in known:
                fitted.append(path)
            yield path, example

    pairs = [
        (owner[prediction.file], prediction.label)
        for batch in predictions(predictor, pictures())
        for prediction in batch
    ]
    if not pairs:
        raise ValueError(f"No picture in {args.folder} can be read.")
    confusion = Confusion.of(predictor.classes, pairs)
    if args.json:
        print(json.dumps(confusion.as_dict() | {"fitted": len(fitted)}, ensure_ascii=False))
    else:
        _show(confusion)
    if fitted:
        ERRORS.print(
            f"{len(fitted)} of {pluralize(confusion.total, 'picture')} were examples of the task: new ones may do worse."
        )
    if args.out:
        confusion_figure(confusion, args.out)
        Console(stderr=True, highlight=False).print(f"Picture: {args.out}")
    reader.finish()


def _show(confusion: Confusion) -> None:
    low, high = confusion.interval
    console = Console(highlight=False)
    console.print(
        f"Accuracy {percent(confusion.accuracy)} of {pluralize(confusion.total, 'picture')} (95% interval "
        f"{percent(low)} to {percent(high)}, for further pictures of these classes)"
    )
    if len(confusion.classes) <= _WIDEST:
        console.print("PredictionWriter: what it is; columns: what was said, by number", _matrix(confusion), sep="\n")
    mistakes = confusion.mistakes()[:_MISTAKES]
    for count, truth, said in mistakes:
        console.print(f"  {count} × {truth} taken for {said}")


def _matrix(confusion: Confusion) -> Table:
    table = Table()
    table.add_column("class")
    for k in range(len(confusion.classes)):
        table.add_column(str(k + 1), justify="right", min_width=2)
    for k, name in enumerate(confusion.classes):
        cells = (str(count) if count else "·" for count in confusion.counts[k])
        table.add_row(f"{k + 1} {name}", *cells)
    return table
