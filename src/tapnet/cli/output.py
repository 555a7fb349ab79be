"""What commands print: consoles, progress bars, tables and prose; images that were not read."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.inference.folders import LabeledFolder, Skipped
    from tapnet.inference.images import ImageInput

OUT = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)  # commands and paths stay on one line
ERRORS = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
Advance = Callable[[int, int], None]  # how many are done, of how many
_FRAME = 3  # characters of a column's border and padding
_LEAST = 16  # characters of the first column


def percent(value: float) -> str:
    return f"{100 * value:.2f}%"


def progress_bar(what: str, hidden: bool = False) -> Progress:
    """Return a bar on stderr that disappears when it is done; there is none if that is no terminal."""
    columns = TextColumn("{task.description}"), BarColumn(bar_width=12), MofNCompleteColumn()
    return Progress(
        *columns,
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
    """Shows how many images were read, and names those that could not be read."""

    def __init__(self) -> None:
        self.broken = 0
        self._bar: Progress | None = None

    @contextmanager
    def bar(self, total: int) -> Iterator[None]:
        """Show a bar on stderr, if that is a terminal, which `advance` moves."""
        with progress_bar("images") as self._bar:
            self._bar.add_task("", total=total)
            yield
        self._bar = None

    def advance(self, count: int = 1) -> None:
        """Count images that were read."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], count)

    def unreadable(self, image: ImageInput, reason: str) -> None:
        """Name an image that could not be read."""
        from tapnet.inference.images import name_of

        self.broken += 1
        console = ERRORS if self._bar is None else self._bar.console
        console.print(f"{name_of(image)}: {reason}")

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
    widths = [
        max(len(part) for part in (*heading.split(), *(line for cell in cells for line in cell.split("\n"))))
        for heading, *cells in zip(headings, *rows, strict=True)
    ]
    others = sum(width + _FRAME for width in widths[1:]) + _FRAME + 1
    terminal = Console().width if sys.stdout.isatty() else sys.maxsize
    first = min(max(map(len, (headings[0], *(row[0] for row in rows)))), max(terminal - others, _LEAST))
    table = Table()
    for number, (heading, width) in enumerate(zip(headings, [first, *widths[1:]], strict=True)):
        table.add_column(heading, width=width, justify="left" if number == 0 else "right")
    for number, (name, *numbers) in enumerate(rows):
        table.add_row(Text(_fold(name, first)), *map(Text, numbers), style="bold" if number in bold else "")
    Console(width=first + others, highlight=False).print(table)


def print_prose(text: str, indent: int = 0) -> None:
    """Print a paragraph, wrapped at words on a terminal, else on one line."""
    if sys.stdout.isatty():
        Console().print(Padding(Text(text), (0, 0, 0, indent)))
    else:
        print(" " * indent + text)


def _fold(name: str, width: int) -> str:
    """Return a name in lines of at most `width`, broken after hyphens, slashes and spaces if there are any."""
    lines = [""]
    for part in re.findall(r"[^-/ _]*[-/ _]?", name):
        while len(part) > width:
            room = width - len(lines[-1])
            lines[-1], part = lines[-1] + part[:room], part[room:]
            lines.append("")
        if len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines if line.strip())
