"""The forms in which datasets are handed out, a file per form: folders of images and tables, arrays, pickles.

A reader takes a file tree and returns the Source in it, or None if it is another form. It reports the splits that the
files declare; the dataset's class lists take precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from tapnet.data.preprocessing import Raw
from tapnet.text import abbreviate, normalize_name, pluralize

SPLITS = ("train", "val", "test")
Splits = Mapping[str, tuple[str, ...]]  # split: its classes
Read = Callable[[Collection[str]], Iterator[tuple[str, Raw]]]


@dataclass
class Source:
    """Images before packing. `read(names)` yields each image once, in the order that is cheapest to read."""

    format: str  # what the path was recognized as
    classes: dict[str, list[str]]  # the names of each class's images, in the order in which they will be packed
    read: Read
    splits: dict[str, list[str]] = field(default_factory=dict)  # the classes of each, where declared
    notes: list[str] = field(default_factory=list)
    version: Callable[[str], int] = lambda _: 0  # of an image: a number that changes when its file does

    @cached_property
    def names(self) -> list[str]:
        """The names of all images, class after class."""
        return [name for names in self.classes.values() for name in names]


def sort_classes(classes: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return classes and their images sorted by name, the same on every file system and in any folders."""

    def file_order(name: str) -> tuple[str, str]:
        return normalize_name(PurePosixPath(name).name), normalize_name(name)

    return {label: sorted(classes[label], key=file_order) for label in sorted(classes)}


def skipped(names: Sequence[str], reason: str, noun: str = "file") -> list[str]:
    """Return one sentence with number, names and reason of what was skipped, or none if nothing was."""
    return [f"Skipped {pluralize(len(names), noun)}, {reason}: {abbreviate(names)}."] if names else []
