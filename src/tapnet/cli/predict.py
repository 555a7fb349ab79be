"""`tapnet predict TASK IMAGES`: the class of each image, written as it becomes known."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.cli.options import (
    add_engine,
    add_network,
    add_rejection,
    check_engine,
    check_lose,
    check_not_read,
    input_path,
    output_file,
    output_folder,
)
from tapnet.cli.output import ERRORS, ImageProgress
from tapnet.cli.sinks import text_sink, write_parts
from tapnet.errors import UserError
from tapnet.inference.task_path import check_task_path
from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.inference.folders import Skipped
    from tapnet.inference.images import ImageInput

_EXAMPLES = """examples:
  tapnet predict birds.task new_photos/
  tapnet predict birds.task new_photos/ --top 3 --out birds.csv
  tapnet predict birds.task new_photos/ --reject auto --sort-into sorted/
  tapnet predict birds.task new_photos/ --sort confidence --out birds.csv
  tapnet predict birds.onnx new_photos/                  an exported task, without PyTorch
  tapnet predict birds.task list.txt --out birds.parquet           the same command continues what was stopped
  tapnet predict birds.task s3://bucket/photos --engine ray --address auto --out s3://bucket/birds.parquet
"""
_ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".txt": "table"}  # no image is overwritten by mistake
_PARQUET = ".parquet"


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file, or an .onnx file made by `tapnet export`")
    parser.add_argument(
        "images",
        type=_source,
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
    parser.add_argument("--column", metavar="NAME", help="the column of paths or bytes in Parquet files")
    parser.add_argument(
        "--retry-unreadable", action="store_true", help="try images again that could not be read (--out .parquet)"
    )
    add_engine(parser)
    parser.set_defaults(device=None)


def _source(text: str) -> str:
    """Parse the path of images or the address of a bucket."""
    scheme, separator, _ = text.partition("://")
    return text if separator and scheme not in ("http", "https", "ftp") else str(input_path(text))


def _output(text: str) -> Path | str:
    """Parse --out: a folder of part files, which may be in a bucket, as text; else the path of a file."""
    if text.rstrip("/").lower().endswith(_PARQUET):
        return text.rstrip("/")
    if "://" in text:
        raise argparse.ArgumentTypeError(f"expected a name that ends in {_PARQUET} in a bucket, got {text}")
    return output_file(*_ENDINGS, _PARQUET)(text)


def run_predict(args: argparse.Namespace) -> None:
    check_task_path(args.task, allow_onnx=True)
    check_lose(args)
    check_engine(args)
    if isinstance(args.out, str):
        write_parts(args)
        return
    if args.engine or args.retry_unreadable:
        option = f"--engine {args.engine}" if args.engine else "--retry-unreadable"
        raise UserError(f"{option} works on Parquet files: add --out NAME.parquet.")
    check_not_read(args.out, [args.task, *args.images])
    _check_outside(args.sort_into, args.images)
    form = _format(args)

    from tapnet.inference import Skipped, open_predictor
    from tapnet.inference.folders import copy_into_class

    predictor = open_predictor(args.task, args.network, args.device or "cpu")
    predictor.check_options(args.top, args.reject, args.lose)
    if args.reject == "auto":
        ERRORS.print(
            f"Unknown images: threshold from {pluralize(len(predictor.hashes), 'example')}, set so that about "
            f"{100 * args.lose:g}% of known images are lost."
        )
    skipped, shown, done = Skipped(), ImageProgress(), 0
    total, images = _find_images(args, skipped)
    if not total:
        raise UserError(" ".join([f"There is no image in {', '.join(args.images)}.", *skipped.lines()]))
    sink = text_sink(args.out, form, args.top, args.reject != 0, predictor.classes, args.sort is not None)
    with shown.bar(total), sink as write:
        try:
            for batch in predictor.predict_batches(images, args.top, args.reject, shown.unreadable, args.lose):
                write(batch)
                for prediction in batch if args.sort_into else ():
                    path = getattr(prediction.image, "location", None) or str(prediction.image)  # of a list, relative
                    copy_into_class(Path(path), prediction.label, args.sort_into)
                done += len(batch)
                shown.advance(len(batch))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Stopped after {pluralize(done, 'image')}, all of them written.") from None
    if places := [str(path) for path in (args.out, args.sort_into) if path]:
        ERRORS.print(f"{pluralize(done, 'image')}: {' and '.join(places)}")
    shown.finish(skipped)


def _find_images(args: argparse.Namespace, skipped: Skipped) -> tuple[int, Iterator[ImageInput]]:
    """Return how many images there are, and the images, listed again as they are read."""
    from tapnet.inference import find_images
    from tapnet.jobs.sources import LISTS, TABLE, read_chunks

    def is_list(source: str) -> bool:
        return "://" in source or source.lower().endswith((*LISTS, TABLE)) or any(Path(source).glob(f"*{TABLE}"))

    if not any(map(is_list, args.images)):
        return sum(1 for _ in find_images(args.images, skipped)), find_images(args.images)
    chunks, total = partial(read_chunks, args.images, args.column), 0
    for chunk in chunks(skipped):
        total += len(chunk)
        if args.sort_into and (elsewhere := chunk.not_local()):
            raise UserError(f"--sort-into copies files of this machine, got {elsewhere}: leave it out.")
    return total, (image for chunk in chunks() for image in chunk.images())


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


def _check_outside(target: Path | None, images: list[str]) -> None:
    """Raise UserError if copies would come into a folder that is read: the next time they would be read, too."""
    folders = [Path(image) for image in images if Path(image).is_dir()]
    if target and (inside := [folder for folder in folders if target.resolve().is_relative_to(folder.resolve())]):
        raise UserError(f"{target} is in {inside[0]}, whose images are read: give --sort-into a folder elsewhere.")
