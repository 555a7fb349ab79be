"""Where predictions go: text on stdout or in a file, sorted or as they come, and Parquet part files."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tapnet.cli.output import ERRORS, progress
from tapnet.data.source import normalize_name
from tapnet.errors import UserError
from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.inference.predictor import Prediction
    from tapnet.jobs.batch import BatchPrediction

_NAMED = 20  # unreadable images named on the terminal; the part files have all of them
_LOG_SECONDS = 30


class PredictionWriter(ABC):
    """Writes to a stream and flushes after every batch, so that an interrupted run leaves complete lines.

    With `reject` the class may be "unknown", and the best guess is written beside it.
    """

    end = ""

    def __init__(self, stream: TextIO, top: int, reject: bool, classes: Iterable[str]) -> None:
        self.stream, self.top, self.reject = stream, top, reject
        self.widest = max(len(name) for name in (*classes, "class"))
        self.first = self.widest + (len("unknown ()") if reject else 0)  # the width of a table's first column
        self.stream.write(self.heading())

    def write(self, batch: list[Prediction]) -> None:
        self.stream.write("".join(map(self.line, batch)))
        self.stream.flush()

    def heading(self) -> str:
        return ""

    @abstractmethod
    def line(self, prediction: Prediction) -> str: ...


class Table(PredictionWriter):
    """Class, or "unknown" with the nearest class in brackets; probability; further classes with theirs; file."""

    def heading(self) -> str:
        more = "".join(f"  {'next':<{self.widest}}  {'':>6}" for _ in range(self.top - 1))
        return f"{'class':<{self.first}}  {'prob.':>6}{more}  file\n"

    def line(self, prediction: Prediction) -> str:
        best = f"{prediction.label} ({prediction.best})" if prediction.rejected else prediction.best
        names = f"{best:<{self.first}}", *(f"{name:<{self.widest}}" for name, _ in prediction.ranked[1:])
        values = (f"{100 * value:5.1f}%" for _, value in prediction.ranked)
        cells = "  ".join(f"{name}  {value}" for name, value in zip(names, values, strict=True))
        return f"{cells}  {normalize_name(str(prediction.image))}\n"


class Csv(PredictionWriter):
    """One row per image, with a heading."""

    def heading(self) -> str:
        more = [cell for rank in range(2, self.top + 1) for cell in (f"class_{rank}", f"probability_{rank}")]
        return _csv_line(["file", "class", *(["best_guess"] if self.reject else []), "probability", *more])

    def line(self, prediction: Prediction) -> str:
        guess = [prediction.best] if self.reject else []
        more = [cell for name, value in prediction.ranked[1:] for cell in (name, f"{value:.6f}")]
        file = normalize_name(str(prediction.image))  # on one line, whatever its name
        return _csv_line([file, prediction.label, *guess, f"{prediction.probability:.6f}", *more])


def _csv_line(cells: list[str]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()


class JsonLines(PredictionWriter):
    """One object per line, so that the file is valid after every line."""

    def line(self, prediction: Prediction) -> str:
        row: dict[str, Any] = {"file": str(prediction.image), "class": prediction.label}
        if self.reject:
            row["best_guess"] = prediction.best
        row["probability"] = round(prediction.probability, 6)
        if self.top > 1:
            row["top"] = [{"class": name, "probability": round(value, 6)} for name, value in prediction.ranked]
        return json.dumps(row, ensure_ascii=False) + "\n"


class JsonList(JsonLines):
    """One list of objects, which is closed even after an interruption."""

    end, _separator = "\n]\n", "\n"

    def heading(self) -> str:
        return "["

    def line(self, prediction: Prediction) -> str:
        separator, self._separator = self._separator, ",\n"
        return separator + super().line(prediction).rstrip("\n")


FORMATS: dict[str, type[PredictionWriter]] = {"table": Table, "csv": Csv, "json": JsonList, "jsonl": JsonLines}


@contextmanager
def text_sink(
    path: Path | None, form: str, top: int, reject: bool, classes: Iterable[str], sort: bool
) -> Iterator[Callable[[list[Prediction]], None]]:
    """Yield a function that writes predictions to a file or stdout; with `sort` at the end, the least certain first."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    file = path and path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
    with file or nullcontext(sys.stdout) as stream:
        writer = FORMATS[form](stream, top, reject, classes)
        kept: list[Prediction] = []
        try:
            yield kept.extend if sort else writer.write
        finally:
            if kept:
                writer.write(sorted(kept, key=lambda prediction: prediction.probability))
            writer.stream.write(writer.end)


def write_parts(args: argparse.Namespace) -> None:
    """Predict what is missing in the part files, showing progress; exit with code 1 if an image could not be read."""
    from tapnet.jobs.batch import plan_batch

    if args.format or args.sort or args.sort_into:
        raise UserError("--json, --csv, --sort and --sort-into cannot be combined with Parquet files: leave them out.")
    if args.engine:
        from tapnet.jobs.on_ray import import_ray

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
    unreadable = _run(job, args)
    for line in job.skipped.lines():
        ERRORS.print(line)
    if unreadable:
        ERRORS.print(f"{pluralize(unreadable, 'image')} could not be read: the column reason says why.")
        raise SystemExit(1)


def _run(job: BatchPrediction, args: argparse.Namespace) -> int:
    """Show progress until all parts are written; return how many images could not be read."""
    done = unreadable = 0
    parts = job.run_on_ray(args.address, args.workers, args.device) if args.engine else job.run(args.device)
    try:
        with progress("images") if sys.stderr.isatty() else nullcontext(_Log()) as show:
            for part in parts:
                for file, reason in part.unreadable[: max(0, _NAMED - unreadable)]:
                    ERRORS.print(f"{file}: {reason}")
                unreadable += len(part.unreadable)
                done += part.images
                show(done, job.remaining)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Stopped after {pluralize(done, 'image')}, all of them written; the same command continues."
        ) from None
    if done:
        ERRORS.print(f"{pluralize(done, 'image')}: {job.parts.folder}")
    return unreadable


class _Log:
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
