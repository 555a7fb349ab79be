"""`tapnet predict … --out NAME.parquet`: many images as part files, on this machine or on a Ray cluster."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from tapnet.cli.progress import ERRORS, progress_bar
from tapnet.errors import UserError
from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.jobs.batch import BatchPrediction
    from tapnet.jobs.prediction import Part

_NAMED = 20  # unreadable images named on the terminal; the part files have all of them
_LOG_SECONDS = 30


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--column", metavar="NAME", help="the column of paths or bytes in Parquet files")
    parser.add_argument(
        "--retry-unreadable", action="store_true", help="try images again that could not be read (--out .parquet)"
    )
    add_engine(parser)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that can run on a cluster."""
    parser.add_argument("--engine", choices=["ray"], help="run on a Ray cluster (tapnet[ray])")
    parser.add_argument(
        "--address", help="the Ray cluster: auto, or host:port (default: RAY_ADDRESS, else local cores)"
    )
    parser.add_argument("--workers", type=int, help="Ray workers (default: one per GPU, or per core if there is none)")


def check_engine(args: argparse.Namespace) -> None:
    """Raise UserError if options of a cluster are used without one."""
    if args.engine is None and (args.address or args.workers is not None):
        raise UserError("--address and --workers belong to a cluster: add --engine ray, or leave them out.")
    if args.workers is not None and args.workers < 1:
        raise UserError(f"Expected --workers to be at least 1, got {args.workers}.")


def check_no_batch_options(args: argparse.Namespace) -> None:
    """Raise UserError if an option needs part files, but --out is not Parquet."""
    check_engine(args)
    if args.engine:
        raise UserError(f"--engine {args.engine} writes Parquet files: add --out NAME.parquet.")
    if args.retry_unreadable:
        raise UserError("--retry-unreadable continues Parquet files: add --out NAME.parquet.")


def predict_parts(args: argparse.Namespace) -> None:
    """Predict what is missing in the part files, showing progress; exit with code 1 if an image could not be read."""
    from tapnet.jobs.batch import plan_batch

    check_engine(args)
    if args.format or args.sort or args.sort_into:
        raise UserError("--json, --csv, --sort and --sort-into cannot be combined with Parquet files: leave them out.")
    if args.engine:
        from tapnet.jobs.ray_session import import_ray

        import_ray()
    job = plan_batch(
        args.task,
        args.images,
        args.out,
        network=args.network,
        column=args.column,
        top=args.top,
        reject=args.reject,
        lose=args.lose,
        retry_unreadable=args.retry_unreadable,
    )
    if done := job.total - job.remaining:
        ERRORS.print(f"{args.out} holds {done:,} of {pluralize(job.total, 'image')} already.")
    written = job.run_on_ray(args.address, args.workers, args.device) if args.engine else job.run(args.device)
    unreadable = _watch(written, job)
    for line in job.skipped.lines():
        ERRORS.print(line)
    if unreadable:
        ERRORS.print(f"{pluralize(unreadable, 'image')} could not be read: the column reason says why.")
        raise SystemExit(1)


def _watch(written: Iterator[Part], job: BatchPrediction) -> int:
    """Show progress until all parts are written; return how many images could not be read."""
    done = unreadable = 0
    try:
        with _advance(job.remaining) as advance:
            for part in written:
                for file, reason in part.unreadable[: max(0, _NAMED - unreadable)]:
                    ERRORS.print(f"{file}: {reason}")
                unreadable += len(part.unreadable)
                done += part.images
                advance(done)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Stopped after {pluralize(done, 'image')}, all of them written; the same command continues."
        ) from None
    if done:
        ERRORS.print(f"{pluralize(done, 'image')}: {job.parts.folder}")
    return unreadable


class _Log:
    """Prints every now and then how many images are done and how long the rest will take, if there is no terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.first, self.began, self.printed = total, 0, 0.0, 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if not self.first:  # the time until the first part is that of starting; the next may come at once
            self.first, self.began, self.printed = done, now, now
        if now - self.printed < _LOG_SECONDS or done == self.total:
            return
        self.printed = now
        rate = (done - self.first) / (now - self.began)
        left = timedelta(seconds=round((self.total - done) / rate))
        ERRORS.print(f"{done:,} of {pluralize(self.total, 'image')}, {rate:.1f} per second, {left} left")


@contextmanager
def _advance(total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many images are done: as a bar on a terminal, else as lines."""
    if not sys.stderr.isatty():
        yield _Log(total)
        return
    with progress_bar("images") as bar:
        shown = bar.add_task("", total=total)
        yield lambda done: bar.update(shown, completed=done)
