"""`tapnet predict TASK IMAGES`: the class of each image, written as it becomes known."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tapnet.cli.batch import add_batch_options, check_no_batch_options, predict_parts
from tapnet.cli.options import (
    add_network,
    add_rejection,
    check_lose,
    check_not_read,
    image_source,
    input_path,
    output_file,
    output_folder,
)
from tapnet.cli.progress import ERRORS, ImageProgress
from tapnet.cli.rows import FORMATS
from tapnet.errors import UserError
from tapnet.inference.task_path import check_task_path
from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.inference.predictor import Prediction
    from tapnet.jobs.sources import Chunk

_EXAMPLES = """examples:
  tapnet predict birds.task new_photos/
  tapnet predict birds.task new_photos/ --top 3 --out birds.csv
  tapnet predict birds.task new_photos/ --reject auto --sort-into sorted/
  tapnet predict birds.task new_photos/ --sort confidence --out birds.csv
  tapnet predict birds.onnx new_photos/                  an exported task, without PyTorch
  tapnet predict birds.task list.txt --out birds.parquet           the same command continues what was stopped
  tapnet predict birds.task s3://bucket/photos --engine ray --address auto --out s3://bucket/birds.parquet
"""
_ENDINGS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".txt": "table",
}  # so that a typing error overwrites no image
_PARQUET = ".parquet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file, or an .onnx file made by `tapnet export`")
    parser.add_argument(
        "images",
        type=image_source,
        nargs="+",
        help="images, folders of them, list files (.txt), Parquet files with paths or bytes, or buckets (s3://, gs://)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", dest="format", action="store_const", const="jsonl", help="one JSON object per line")
    form.add_argument("--csv", dest="format", action="store_const", const="csv", help="comma-separated values")
    parser.add_argument(
        "--out",
        type=_output,
        help="write to this file: .csv, .json (one list), .jsonl (lines) or .txt, or to this folder: .parquet",
    )
    parser.add_argument("--top", type=int, default=1, help="how many classes of each image (default: 1)")
    add_rejection(
        parser,
        'the class is "unknown" below this probability, or by the examples of the task: auto; the best guess is kept',
    )
    parser.add_argument(
        "--sort", choices=["confidence"], help="least certain first; nothing is written before all images are read"
    )
    parser.add_argument("--sort-into", type=output_folder, metavar="DIR", help="copy each image into DIR/CLASS/")
    add_network(parser)
    add_batch_options(parser)
    parser.set_defaults(device=None)


def _output(text: str) -> Path | str:
    """Parse --out: a folder of part files, which may be in a bucket, as text; else the path of a file."""
    if text.rstrip("/").lower().endswith(_PARQUET):
        return text.rstrip("/")
    if "://" in text:
        raise argparse.ArgumentTypeError(f"expected a name that ends in {_PARQUET} in a bucket, got {text}")
    return output_file(*_ENDINGS, _PARQUET)(text)


def run(args: argparse.Namespace) -> None:
    check_task_path(args.task, allow_onnx=True)
    check_lose(args)
    if isinstance(args.out, str):
        predict_parts(args)
        return
    from tapnet.inference import Skipped, open_predictor
    from tapnet.inference.folders import copy_into_class
    from tapnet.jobs.sources import local_path, read_chunks

    check_no_batch_options(args)
    check_not_read(args.out, [args.task, *args.images])
    _check_outside(args.sort_into, args.images)
    form, skipped, progress = _format(args), Skipped(), ImageProgress()
    predictor = open_predictor(args.task, args.network, args.device or "cpu")
    predictor.check_options(args.top, args.reject, args.lose)
    if args.reject == "auto":
        ERRORS.print(
            f"Unknown images: threshold from {pluralize(len(predictor.hashes), 'example')}, set so that about "
            f"{100 * args.lose:g}% of known images are lost."
        )
    total = 0
    for chunk in read_chunks(args.images, args.column, skipped):
        total += len(chunk)
        if args.sort_into:
            _check_local(chunk)
    if not total:
        raise UserError(" ".join([f"There is no image in {', '.join(args.images)}.", *skipped.lines()]))
    kept: list[Prediction] = []
    done = 0
    with progress.bar(total), _stream(args.out) as stream:
        writer = FORMATS[form](stream, args.top, args.reject != 0, len(max(predictor.classes, key=len)))
        try:
            images = (image for chunk in read_chunks(args.images, args.column) for image in chunk.images())
            batches = predictor.predict_batches(images, args.top, args.reject, progress.unreadable, args.lose)
            for batch in batches:
                kept.extend(batch) if args.sort else writer.write(batch)
                for prediction in batch if args.sort_into else ():
                    copy_into_class(local_path(prediction.image), prediction.label, args.sort_into)
                done += len(batch)
                progress.advance(len(batch))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Stopped after {pluralize(done, 'image')}, all of them written.") from None
        finally:
            if kept:
                writer.write(sorted(kept, key=lambda prediction: prediction.probability))
            writer.close()
    if places := [str(path) for path in (args.out, args.sort_into) if path]:
        ERRORS.print(f"{pluralize(done, 'image')}: {' and '.join(places)}")
    progress.finish(skipped)


def _format(args: argparse.Namespace) -> str:
    """Return the format by the options or the suffix of the file; raise UserError if they differ."""
    by_ending = _ENDINGS[args.out.suffix.lower()] if args.out else None
    if args.format is None or by_ending is None:
        return args.format or by_ending or "table"
    if by_ending == "json" and args.format == "jsonl":
        return by_ending
    if by_ending not in ("table", args.format):
        name = {"jsonl": "json"}.get(args.format, args.format)
        raise UserError(f"{args.out} would hold {name.upper()}: give it that ending, or leave out --{name}.")
    return str(args.format)


@contextmanager
def _stream(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
        yield stream


def _check_outside(target: Path | None, images: list[str]) -> None:
    """Raise UserError if copies would come into a folder that is read: the next time they would be read, too."""
    folders = [Path(each) for each in images if Path(each).is_dir()]
    if target and (inside := [each for each in folders if target.resolve().is_relative_to(each.resolve())]):
        raise UserError(f"{target} is in {inside[0]}, whose images are read: give --sort-into a folder elsewhere.")


def _check_local(chunk: Chunk) -> None:
    """Raise UserError if an image is in a bucket or in a table."""
    if elsewhere := chunk.not_local():
        raise UserError(f"--sort-into copies files of this machine, got {elsewhere}: leave it out.")
