"""`tapnet predict TASK IMAGES`: the class of each image, written as it becomes known."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet import inference
from tapnet.cli import options
from tapnet.cli.output import ERRORS, ImageProgress, text_sink
from tapnet.errors import UserError
from tapnet.inference.folders import copy_into_class
from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.inference import ImageInput, Skipped

_EXAMPLES = """examples:
  tapnet predict birds.task new_photos/
  tapnet predict birds.task new_photos/ --top 3 --out birds.csv
  tapnet predict birds.task new_photos/ --reject auto --sort-into sorted/
  tapnet predict birds.task new_photos/ --sort confidence --out birds.csv
  tapnet predict birds.onnx new_photos/                  an exported task, without PyTorch
  tapnet predict birds.task list.txt --out birds.parquet           the same command continues what was stopped
  tapnet predict birds.task s3://bucket/photos --engine ray --address auto --out s3://bucket/birds.parquet
"""
_FORMS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".txt": "table"}  # no image is overwritten by mistake
_PARQUET = ".parquet"
_LISTS = (".txt", ".list", ".lst", _PARQUET)


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, add = _EXAMPLES, parser.add_argument
    add("task", type=options.input_path, help="a task file, or an .onnx file made by `tapnet export`")
    words = "images, folders, lists of them (.txt), Parquet files with paths or bytes, or buckets (s3://, gs://)"
    add("images", type=_source, nargs="+", help=words)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", dest="format", action="store_const", const="jsonl", help="one JSON object per line")
    form.add_argument("--csv", dest="format", action="store_const", const="csv", help="comma-separated values")
    words = "write to this file: .csv, .json (one list), .jsonl (lines) or .txt, or to this folder: .parquet"
    add("--out", type=_output, help=words)
    add("--top", type=int, default=1, help="how many classes of each image (default: 1)")
    words = 'the class is "unknown" below this probability, or by the examples of the task: auto; best guesses are kept'
    options.add_shared(parser, "--reject", help=words)
    words = "least certain first; nothing is written before all images are read"
    add("--sort", choices=["confidence"], help=words)
    add("--sort-into", type=options.output_folder, metavar="DIR", help="copy each image into DIR/CLASS/")
    add("--column", metavar="NAME", help="the column of paths or bytes in Parquet files")
    add("--retry-unreadable", action="store_true", help="try images again that could not be read (--out .parquet)")
    add("--device", help="cpu (default; of a cluster its GPUs), cuda, mps or auto")
    options.add_shared(parser, "--lose", "--network", *options.ENGINE)


def _source(text: str) -> str:
    """Parse the path of images or the address of a bucket."""
    scheme, separator, _ = text.partition("://")
    return text if separator and scheme not in ("http", "https", "ftp") else str(options.input_path(text))


def _output(text: str) -> Path | str:
    """Parse --out: a folder of part files, which may be in a bucket, as text; else the path of a file."""
    if text.rstrip("/").lower().endswith(_PARQUET):
        return text.rstrip("/")
    if "://" in text:
        raise argparse.ArgumentTypeError(f"expected a name that ends in {_PARQUET} in a bucket, got {text}")
    return options.output_file(*_FORMS, _PARQUET)(text)


def run_predict(args: argparse.Namespace) -> None:
    options.check_lose(args)
    options.check_engine(args)
    if isinstance(args.out, str):
        from tapnet.cli.parts import write_parts

        write_parts(args)
        return
    if args.engine or args.retry_unreadable:
        option = f"--engine {args.engine}" if args.engine else "--retry-unreadable"
        raise UserError(f"{option} works on Parquet files: add --out NAME.parquet.")
    options.check_not_read(args.out, [args.task, *args.images])
    _check_outside(args.sort_into, args.images)
    form = _form(args)

    predictor = inference.open_predictor(args.task, args.network, args.device or "cpu")
    predictor.check_options(args.top, args.reject, args.lose)
    if args.reject == "auto":
        ERRORS.print(
            f"Unknown images: threshold from {pluralize(len(predictor.hashes), 'example')}, set so that about "
            f"{100 * args.lose:g}% of known images are lost."
        )
    skipped, shown, done = inference.Skipped(), ImageProgress(), 0
    total, images = _find_images(args, skipped)
    if not total:
        raise UserError(" ".join([f"There is no image in {', '.join(args.images)}.", *skipped.lines()]))
    sink = text_sink(args.out, form, args.top, args.reject, predictor.classes, args.sort is not None)
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


def _find_images(args: argparse.Namespace, skipped: Skipped) -> tuple[int, Iterable[ImageInput]]:
    """Return how many images there are, and the images: in files and folders, or also in lists, tables and buckets."""
    if any("://" in name or name.lower().endswith(_LISTS) or any(Path(name).glob("*.parquet")) for name in args.images):
        from tapnet.jobs.sources import read_chunks

        chunks = list(read_chunks(args.images, args.column, skipped))
        if args.sort_into and (elsewhere := next(filter(None, (chunk.not_local() for chunk in chunks)), None)):
            raise UserError(f"--sort-into copies files of this machine, got {elsewhere}: leave it out.")
        return sum(map(len, chunks)), (image for chunk in chunks for image in chunk.images())
    images = list(inference.find_images(args.images, skipped))
    return len(images), images


def _form(args: argparse.Namespace) -> str:
    """Return the form by the options or the ending of the file; raise UserError if they differ."""
    by_ending = _FORMS[args.out.suffix.lower()] if args.out else None
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
