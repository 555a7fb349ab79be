"""What commands print: consoles, progress, tables, prose, and predictions as text, sorted or as they come."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tapnet.text import csv_table, latex_table, normalize_name, pluralize, printable

if TYPE_CHECKING:
    from tapnet.inference.folders import LabeledFolder, Skipped
    from tapnet.inference.images import ImageInput
    from tapnet.inference.predictor import Prediction

Advance = Callable[[int, int], None]  # how many are done, of how many
_FRAME, _LEAST = 3, 16  # characters of a column's border and padding, and of the first column


class _Console(Console):
    """Keeps commands and paths on one line, and escapes what names of strangers could steer a terminal with."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(text) if isinstance(text, str) else text for text in objects), **options)


OUT = _Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
ERRORS = _Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def percent(value: float) -> str:
    return f"{100 * value:.2f}%"


def print_json(values: Any) -> None:
    """Print one JSON value on one line."""
    print(printable(json.dumps(values, ensure_ascii=False)))


def progress_bar(what: str, hidden: bool = False) -> Progress:
    """Return a bar on stderr that disappears when it is done; there is none if that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn(f"{what}, time left"),
        TimeRemainingColumn(),
        console=ERRORS,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # above the bar on a terminal, but never from a file or a pipe to stderr
        disable=hidden or not sys.stderr.isatty(),
    )


@contextmanager
def progress(what: str) -> Iterator[Advance]:
    """Yield a function that shows how many are done, of how many."""
    with progress_bar(what) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def episode_progress() -> Iterator[Callable[[str], Advance]]:
    """Yield a function that starts the bar again with a description; of several processes only the first has one."""
    from tapnet import hardware

    with progress_bar("episodes", hidden=hardware.rank() > 0) as bar:
        task = bar.add_task("", visible=False)

        def start(description: str) -> Advance:
            bar.reset(task, description=description, visible=True)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield start


class ImageProgress:
    """Shows on a terminal how many images were read, and names those that could not be read."""

    def __init__(self) -> None:
        self.broken = 0
        self._bar = progress_bar("images")

    @contextmanager
    def bar(self, total: int) -> Iterator[None]:
        """Show the bar, which `advance` moves."""
        self._bar.add_task("", total=total)
        with self._bar:
            yield

    def advance(self, count: int = 1) -> None:
        """Count images that were read."""
        self._bar.advance(self._bar.task_ids[0], count)

    def unreadable(self, image: ImageInput, reason: str) -> None:
        """Name an image that could not be read."""
        self.broken += 1
        ERRORS.print(f"{image!s}: {reason}")

    def finish(self, images: Skipped | LabeledFolder) -> None:
        """Print what was left out; exit with code 1 if an image could not be read."""
        for line in images.lines():
            ERRORS.print(line)
        if self.broken:
            ERRORS.print(f"{pluralize(self.broken, 'image')} could not be read.")
            raise SystemExit(1)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[int] = ()) -> None:
    """Print a table whose first column, of names, has the width that the others leave; `bold` are row numbers.

    Names may be folded; numbers never are: if the terminal is narrower than the other columns, the table is wider than
    the terminal. In a file or a pipe nothing is folded.
    """
    names = [printable(name) for name, *_ in rows]
    columns = zip(headings, *rows, strict=True)
    widths = [max(map(len, [*heading.split(), *"\n".join(cells).split("\n")])) for heading, *cells in columns]
    others = sum(width + _FRAME for width in widths[1:]) + _FRAME + 1
    terminal = Console().width if sys.stdout.isatty() else sys.maxsize
    widths[0] = min(max(map(len, (headings[0], *names))), max(terminal - others, _LEAST))
    table = Table()
    for number, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        table.add_column(heading, width=width, justify="right" if number else "left")
    for number, (name, (_, *cells)) in enumerate(zip(names, rows, strict=True)):
        folded = textwrap.fill(name, widths[0])  # after hyphens, too
        table.add_row(*map(Text, (folded, *cells)), style="bold" if number in bold else "")
    Console(width=widths[0] + others, highlight=False).print(table)


def print_prose(text: str, indent: int = 0) -> None:
    """Print a paragraph, wrapped at words on a terminal, else on one line."""
    if sys.stdout.isatty():
        Console().print(Padding(Text(text), (0, 0, 0, indent)))
    else:
        print(" " * indent + text)


def write_table(path: Path, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table as CSV or LaTeX, by the ending of the path, and say so on stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    form = csv_table if path.suffix.lower() == ".csv" else latex_table
    path.write_text(form(headings, rows), encoding="utf-8", newline="")
    ERRORS.print(f"Wrote {path}")


class PredictionWriter:
    """Writes predictions to a stream as a table, CSV, lines of JSON or one list of JSON.

    It flushes after every batch, so that an interrupted run leaves complete lines. With `reject` the class may be
    "unknown", and the best guess stands beside it.
    """

    def __init__(self, stream: TextIO, form: str, top: int, reject: float | str, classes: Iterable[str]) -> None:
        self.stream, self.form, self.top, self.reject, self.separator = stream, form, top, reject, "\n"
        self.widest = max(map(len, map(printable, (*classes, "class"))))
        self.first = self.widest + (len("unknown (nearest: )") if reject else 0)  # the width of a table's first column
        self.line = {"table": self._table, "csv": self._csv}.get(form, self._json)
        self.stream.write(self._heading())

    def write(self, batch: Sequence[Prediction]) -> None:
        for prediction in batch:
            if self.form == "json":
                self.stream.write(self.separator)
                self.separator = ",\n"
            self.stream.write(self.line(prediction))
        self.stream.flush()

    def close(self) -> None:
        """Write what has to stand at the end, even after an interruption."""
        self.stream.write("\n]\n" if self.form == "json" else "")

    def _heading(self) -> str:
        ranks = range(2, self.top + 1)
        if self.form == "table":
            more = "".join(f"  {'next':<{self.widest}}  {'':>6}" for _ in ranks)
            return f"{'class':<{self.first}}  {'prob.':>6}{more}  file\n"
        best = ["best_guess"] if self.reject else []
        further = [f"{name}_{rank}" for rank in ranks for name in ("class", "probability")]
        return {"csv": _csv_line(["file", "class", *best, "probability", *further]), "json": "["}.get(self.form, "")

    def _table(self, prediction: Prediction) -> str:
        """Class, or "unknown" and the nearest class; probability; further classes with theirs; file."""
        first, *others = (printable(name) for name, _ in prediction.ranked)
        first = f"{prediction.label} (nearest: {first})" if prediction.rejected else first
        padded = f"{first:<{self.first}}", *(f"{name:<{self.widest}}" for name in others)
        cells = (f"{name}  {100 * value:5.1f}%" for name, (_, value) in zip(padded, prediction.ranked, strict=True))
        return f"{'  '.join(cells)}  {normalize_name(str(prediction.image))}\n"

    def _row(self, prediction: Prediction) -> dict[str, Any]:
        best = {"best_guess": prediction.best} if self.reject else {}
        return {"class": prediction.label, **best, "probability": round(prediction.probability, 6)}

    def _csv(self, prediction: Prediction) -> str:
        more = (cell for pair in prediction.ranked[1:] for cell in pair)
        file = normalize_name(str(prediction.image))  # on one line, whatever its name
        return _csv_line([file, *self._row(prediction).values(), *more])

    def _json(self, prediction: Prediction) -> str:
        row = {"file": str(prediction.image)} | self._row(prediction)
        if self.top > 1:
            row["top"] = [{"class": name, "probability": round(value, 6)} for name, value in prediction.ranked]
        return printable(json.dumps(row, ensure_ascii=False)) + ("" if self.form == "json" else "\n")


def _csv_line(cells: Sequence[str | float]) -> str:
    """Return a line of CSV; a name that a spreadsheet would take for a formula begins with an apostrophe."""
    stream = io.StringIO()
    shown = (f"{cell:.6f}" if isinstance(cell, float) else re.sub(r"^(?=[-=+@])", "'", cell) for cell in cells)
    csv.writer(stream, lineterminator="\n").writerow(shown)
    return stream.getvalue()


@contextmanager
def text_sink(
    path: Path | None, form: str, top: int, reject: float | str, classes: Iterable[str], sort: bool
) -> Iterator[Callable[[list[Prediction]], None]]:
    """Yield a function that writes predictions to a file or stdout; with `sort` at the end, the least certain first."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    file = path and path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
    with file or nullcontext(sys.stdout) as stream:
        writer = PredictionWriter(stream, form, top, reject, classes)
        kept: list[Prediction] = []
        try:
            yield kept.extend if sort else writer.write
        finally:
            writer.write(sorted(kept, key=lambda prediction: prediction.probability))
            writer.close()
