"""`tapnet predict … --out NAME.parquet`: part files in a folder, continued where they were stopped, or by a cluster."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from datetime import timedelta

from tapnet.cli.output import ERRORS, progress
from tapnet.errors import UserError
from tapnet.text import pluralize

_NAMED = 20  # unreadable images named on the terminal; the part files have all of them
_LOG_SECONDS = 30


def write_parts(args: argparse.Namespace) -> None:
    """Predict what is missing in the part files, showing progress; exit with code 1 if an image could not be read."""
    from tapnet.jobs.batch import plan_batch

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
        with progress("images") if sys.stderr.isatty() else nullcontext(Log()) as show:
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


class Log:
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
