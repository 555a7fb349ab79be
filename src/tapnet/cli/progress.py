"""The consoles, progress bars, and reports of images that were not read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.inference.folders import LabeledFolder, Skipped
    from tapnet.inference.images import ImageInput

OUT = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)  # commands and paths stay on one line
ERRORS = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
Advance = Callable[[int, int], None]  # how many are done, of how many


class ImageProgress:
    """Shows how many images were read, and names those that could not be read."""

    def __init__(self) -> None:
        self.broken = 0
        self._bar: Progress | None = None

    @contextmanager
    def bar(self, total: int, what: str = "images") -> Iterator[None]:
        """Show a bar on stderr, if that is a terminal, which `advance` moves."""
        with progress_bar(what) as self._bar:
            self._bar.add_task("", total=total)
            yield
        self._bar = None

    def advance(self, count: int = 1) -> None:
        """Count images that were read."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], count)

    def show(self, done: int, total: int) -> None:
        """Set the bar to `done` of `total`."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def unreadable(self, image: ImageInput, reason: str) -> None:
        """Name an image that could not be read."""
        from tapnet.inference.images import name_of

        self.broken += 1
        console = ERRORS if self._bar is None else self._bar.console
        console.print(f"{name_of(image)}: {reason}")

    def finish(self, found: Skipped | LabeledFolder) -> None:
        """Print what was left out; exit with code 1 if an image could not be read."""
        for line in found.lines():
            ERRORS.print(line)
        if self.broken:
            ERRORS.print(f"{pluralize(self.broken, 'image')} could not be read.")
            raise SystemExit(1)


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
def episode_progress() -> Iterator[Callable[[str], Advance]]:
    """Yield a function that starts the bar again with a description; of several processes only the first has one."""
    from tapnet import hardware

    with progress_bar("episodes", hidden=hardware.rank() > 0) as bar:
        task = bar.add_task("", visible=False)

        def start(description: str) -> Advance:
            bar.reset(task, description=description, visible=True)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield start
