"""Shared by the commands on the user's own images: a progress bar, and reports of images that were not read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tapnet.errors import UserError
from tapnet.wording import pluralize

if TYPE_CHECKING:
    from tapnet.inference.folders import LabeledFolder, Skipped
    from tapnet.inference.images import ImageInput

OUT = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)  # commands and paths stay on one line
ERRORS = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


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

    def finish(self, skipped: Skipped | None = None) -> None:
        """Print what was left out; exit with code 1 if an image could not be read."""
        for line in skipped.lines() if skipped else ():
            ERRORS.print(line)
        if self.broken:
            ERRORS.print(f"{pluralize(self.broken, 'image')} could not be read.")
            raise SystemExit(1)


def progress_bar(what: str) -> Progress:
    """Return a bar that disappears when it is done."""
    columns = BarColumn(), MofNCompleteColumn(), TextColumn(f"{what}, time left"), TimeRemainingColumn()
    return Progress(*columns, console=ERRORS, transient=True, disable=not sys.stderr.isatty())


def input_path(text: str) -> Path:
    """Parse the path of a file or folder to read."""
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text} is an address: download it first, then pass the path of the file.")
    if text == "-":
        raise argparse.ArgumentTypeError("standard input is not read: save the image as a file first.")
    return Path(text)


def image_source(text: str) -> str:
    """Parse the path of images or the address of a bucket."""
    scheme, found, _ = text.partition("://")
    return text if found and scheme not in ("http", "https", "ftp") else str(input_path(text))


def add_labels(parser: argparse.ArgumentParser) -> None:
    """Add the option that takes labels from a file in place of folders."""
    parser.add_argument(
        "--labels",
        type=input_path,
        metavar="FILE",
        help="a .csv or .jsonl file of paths and classes, in place of folders",
    )


def labeled_images(folder: Path | None, labels: Path | None) -> LabeledFolder:
    """Return the images of a folder of classes or of a file of labels; raise UserError unless there is exactly one."""
    from tapnet.inference import class_folders, read_labels

    if labels is not None and folder is None:
        return read_labels(labels)
    if folder is not None and labels is None:
        return class_folders(folder)
    got = "both" if folder else "neither"
    raise UserError(f"Expected a folder of classes or --labels FILE, got {got}.")


def add_network(parser: argparse.ArgumentParser, device: bool = True) -> None:
    """Add the options of commands that open a task."""
    parser.add_argument("--network", help="path to the task's checkpoint, if it moved")
    if device:
        parser.add_argument("--device", default="cpu", help="cpu (default), cuda, mps or auto")
