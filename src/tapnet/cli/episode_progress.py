"""A progress bar over episodes with the time left, for methods that take minutes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int, int], None]  # episodes done, of how many


@contextmanager
def episode_progress() -> Iterator[Callable[[str], Advance]]:
    """Yield a function that starts the bar again with a description; the bar disappears at the end.

    It is on stderr, if that is a terminal; of several processes only the first has one.
    """
    from tapnet import distributed

    columns = TextColumn("{task.description}"), BarColumn(bar_width=12), MofNCompleteColumn(), TextColumn("episodes,")
    bar = Progress(
        *columns,
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty() or distributed.rank() > 0,
    )
    with bar:
        task = bar.add_task("", visible=False)

        def start(description: str) -> Advance:
            bar.reset(task, description=description, visible=True)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield start
