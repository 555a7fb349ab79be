"""`tapnet predict TASK PICTURES`: the class of each picture, written as it becomes known."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tapnet.cli.options import output_file, output_folder
from tapnet.cli.pictures import ERRORS, Reader, predictor_of
from tapnet.cli.rows import FORMATS
from tapnet.wording import pluralize

if TYPE_CHECKING:
    from tapnet.inference.prediction import Prediction

_EXAMPLES = """examples:
  tapnet predict birds.task new_photos/
  tapnet predict birds.task new_photos/ --top 3 --out birds.csv
  tapnet predict birds.task new_photos/ --reject 0.6 --sort-into sorted/
  tapnet predict birds.onnx new_photos/                  an exported task, without PyTorch
"""
_ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".txt": "table"}  # so that no slip overwrites a picture


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=Path, help="a task file, or an .onnx file made by `tapnet export`")
    parser.add_argument("pictures", type=Path, nargs="+", help="pictures, or folders of them")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", dest="format", action="store_const", const="json", help="one JSON object a line")
    form.add_argument("--csv", dest="format", action="store_const", const="csv", help="comma-separated values")
    parser.add_argument("--out", type=output_file(*_ENDINGS), help="write to this file, in the form of its ending")
    parser.add_argument("--top", type=int, default=1, help="how many classes of each picture (default: 1)")
    parser.add_argument("--reject", type=float, default=0.0, help='say "unknown" below this probability')
    parser.add_argument("--sort-into", type=output_folder, metavar="DIR", help="copy each picture into DIR/CLASS/")
    parser.add_argument("--network", help="the checkpoint of the task, where it lies elsewhere now")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, mps or auto")


def run(args: argparse.Namespace) -> None:
    from tapnet.inference.folders import picture_files
    from tapnet.inference.prediction import UNKNOWN, predictions

    form = _format(args)
    if not 0 <= args.reject <= 1:
        raise ValueError(f"--reject is a probability from 0 to 1, got {args.reject}.")
    predictor = predictor_of(args.task, args.network, args.device)
    if args.reject and UNKNOWN in predictor.classes:
        raise ValueError(
            f"The task has a class {UNKNOWN!r}, which --reject also says of pictures that fit no class: fit that class "
            "under another name, or leave out --reject."
        )
    if not 1 <= args.top <= len(predictor.classes):
        raise ValueError(f"--top is from 1 to the number of classes, {len(predictor.classes)}, got {args.top}.")
    reader = Reader(predictor.preprocessing, sum(1 for _ in picture_files(args.pictures)))
    if not reader.total:
        ERRORS.print(f"There is no picture in {', '.join(map(str, args.pictures))}.", markup=False)
        raise SystemExit(1)
    done = 0
    with _stream(args.out) as stream:
        rows = FORMATS[form](stream, args.top, len(max(predictor.classes, key=len)))
        try:
            for batch in predictions(predictor, reader.read(picture_files(args.pictures)), args.top, args.reject):
                rows.write(batch)
                if args.sort_into:
                    _sort(batch, args.sort_into)
                done += len(batch)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Stopped after {pluralize(done, 'picture')}, all of them written.") from None
        except BrokenPipeError:  # whoever read our lines has seen enough
            sys.stdout = None
            raise SystemExit(0) from None
    if places := [str(path) for path in (args.out, args.sort_into) if path]:
        ERRORS.print(f"{pluralize(done, 'picture')}: {' and '.join(places)}", markup=False)
    reader.finish()


def _format(args: argparse.Namespace) -> str:
    """The form that was asked for, or that of the ending of the file; both, when they differ, are refused."""
    by_ending = _ENDINGS[args.out.suffix.lower()] if args.out else None
    if args.format and by_ending not in (None, "table", args.format):
        raise ValueError(
            f"{args.out} would hold {args.format.upper()}: give it that ending, or leave out --{args.format}."
        )
    return args.format or by_ending or "table"


@contextmanager
def _stream(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        yield stream


def _sort(batch: list[Prediction], folder: Path) -> None:
    """Copies, never moves; two pictures of one name both stay, one that is there already is not copied again."""
    import filecmp
    import shutil

    for prediction in batch:
        place = folder / _safe(prediction.label)
        place.mkdir(parents=True, exist_ok=True)
        target, number = place / prediction.file.name, 1
        while target.exists() and not filecmp.cmp(prediction.file, target, shallow=False):
            number += 1
            target = place / f"{prediction.file.stem}-{number}{prediction.file.suffix}"
        if not target.exists():
            shutil.copy2(prediction.file, target)


def _safe(name: str) -> str:
    """A class name as the name of one folder, also when it came from a stranger's file."""
    plain = "".join("_" if character in '/\\:*?"<>|' or ord(character) < 32 else character for character in name)
    return plain.lstrip(". ") or "_"
