"""`tapnet predict TASK IMAGES`: the class of each image, written as it becomes known, or in part files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet import inference
from tapnet.cli import options
from tapnet.cli.output import ERRORS, ImageProgress, progress, text_sink
from tapnet.errors import UserError
from tapnet.inference.folders import copy_into_class
from tapnet.jobs.batch import plan_batch
from tapnet.jobs.sources import LISTS, TABLE, read_chunks
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
_NAMED = 20  # unreadable images named on the terminal; the part files have all of them
_LOG_SECONDS = 30


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, add = _EXAMPLES, parser.add_argument
    add("task", type=options.input_path, help="a task file, or an .onnx file made by `tapnet export`")
    words = "images, folders, lists of them (.txt), Parquet files with paths or bytes, or buckets (s3://, gs://)"
    add("images", type=_source, nargs="+", help=words)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", dest="format", action="store_const", const="jsonl", help="one JSON object per line")
    form.add_argument("--csv", dest="format", action="store_const", const="csv", help="comma-separated values")
    add("--out", type=_output, help="a file: .csv, .json (one list), .jsonl (lines) or .txt; or a folder: .parquet")
    add("--top", type=int, default=1, help="how many classes of each image (default: 1)")
    options.add_shared(parser, "--reject", help="unknown below this probability, or with auto by the task's examples")
    add("--sort", choices=["confidence"], help="least certain first, once all images are read")
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
    if text.rstrip("/").lower().endswith(TABLE):
        return text.rstrip("/")
    if "://" in text:
        raise argparse.ArgumentTypeError(f"expected a name that ends in {TABLE} in a bucket, got {text}")
    return options.output_file(*_FORMS, TABLE)(text)


def run_predict(args: argparse.Namespace) -> None:
    options.check_lose(args)
    options.check_engine(args)
    if isinstance(args.out, str):
        _write_parts(args)
        return
    if args.engine or args.retry_unreadable:
        option = f"--engine {args.engine}" if args.engine else "--retry-unreadable"
        raise UserError(f"{option} works on Parquet files: add --out NAME.parquet.")
    options.check_not_read(args.out, [args.task, *args.images])
    form, target = _form(args), args.sort_into
    for folder in (Path(image) for image in args.images if target and Path(image).is_dir()):
        if target.resolve().is_relative_to(folder.resolve()):  # the next time the copies would be read, too
            raise UserError(f"{target} is in {folder}, whose images are read: give --sort-into a folder elsewhere.")

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
                for prediction in batch if target else ():
                    path = getattr(prediction.image, "location", None) or str(prediction.image)  # of a list, relative
                    copy_into_class(Path(path), prediction.label, target)
                done += len(batch)
                shown.advance(len(batch))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Stopped after {pluralize(done, 'image')}, all of them written.") from None
    if places := [str(path) for path in (args.out, target) if path]:
        ERRORS.print(f"{pluralize(done, 'image')}: {' and '.join(places)}")
    shown.finish(skipped)


def _find_images(args: argparse.Namespace, skipped: Skipped) -> tuple[int, Iterable[ImageInput]]:
    """Return how many images there are, and the images: in files and folders, or also in lists, tables and buckets."""
    endings = (*LISTS, TABLE)
    if any(
        "://" in name or name.lower().endswith(endings) or any(Path(name).glob(f"*{TABLE}")) for name in args.images
    ):
        chunks = list(read_chunks(args.images, args.column, skipped))
        if args.sort_into and (elsewhere := next(filter(None, (chunk.not_local() for chunk in chunks)), None)):
            raise UserError(f"--sort-into copies files of this machine, got {elsewhere}: leave it out.")
        return sum(map(len, chunks)), (image for chunk in chunks for image in chunk.images())
    images = list(inference.find_images(args.images, skipped))
    return len(images), images


def _form(args: argparse.Namespace) -> str:
    """Return the form by the options or the ending of the file; raise UserError if they differ."""
    by_ending = _FORMS[args.out.suffix.lower()] if args.out else None
    form = args.format or by_ending or "table"
    if by_ending == "json" and form == "jsonl":
        return by_ending
    if by_ending not in (None, "table", form):
        name = {"jsonl": "json"}.get(form, form)
        raise UserError(f"{args.out} would hold {name.upper()}: give it that ending, or leave out --{name}.")
    return str(form)


def _write_parts(args: argparse.Namespace) -> None:
    """Predict what is missing in the part files, showing progress; exit with code 1 if an image could not be read."""
    if args.format or args.sort or args.sort_into:
        raise UserError("--json, --csv, --sort and --sort-into cannot be combined with Parquet files: leave them out.")
    if args.engine:
        from tapnet.jobs.on_ray import import_ray, predict_on_ray

        import_ray()
    names = "network", "column", "top", "reject", "lose", "retry_unreadable"
    job = plan_batch(args.task, args.images, args.out, **{name: getattr(args, name) for name in names})
    if already := job.total - job.remaining:
        ERRORS.print(f"{args.out} holds {already:,} of {pluralize(job.total, 'image')} already.")
    cluster = args.address, args.workers, args.device or "auto"
    parts = predict_on_ray(job, *cluster) if args.engine else job.run(args.device or "cpu")
    done = unreadable = 0
    try:
        with progress("images") if sys.stderr.isatty() else nullcontext(TextProgress()) as show:
            for part in parts:
                for file, reason in part.unreadable[: max(0, _NAMED - unreadable)]:
                    ERRORS.print(f"{file}: {reason}")
                unreadable += len(part.unreadable)
                done += part.images
                show(done, job.remaining)
    except KeyboardInterrupt:
        words = f"Stopped after {pluralize(done, 'image')}, all of them written; the same command continues."
        raise KeyboardInterrupt(words) from None
    if done:
        ERRORS.print(f"{pluralize(done, 'image')}: {args.out}")
    for line in job.skipped.lines():
        ERRORS.print(line)
    if unreadable:
        ERRORS.print(f"{pluralize(unreadable, 'image')} could not be read: the column reason says why.")
        raise SystemExit(1)


class TextProgress:
    """Prints every now and then how many images are done and how long the rest will take, if there is no terminal."""

    first, began, printed = 0, 0.0, 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.first:  # the time until the first part is that of starting; the next may come at once
            self.first, self.began, self.printed = done, now, now
        if now - self.printed < _LOG_SECONDS or done == total:
            return
        self.printed = now
        rate = (done - self.first) / (now - self.began)
        left = timedelta(seconds=round((total - done) / rate))
        ERRORS.print(f"{done:,} of {pluralize(total, 'image')}, {rate:.1f} per second, {left} left")
