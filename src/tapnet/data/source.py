"""The images found at a path: classes, names of their images, and a function that reads them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tapnet.text import pluralize

LARGEST_FILE = 100_000_000  # bytes of one encoded image; far beyond any photograph, and small enough to hold
SPLITS = ("train", "val", "test")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
Splits = Mapping[str, tuple[str, ...]]  # split: its classes
Log = Callable[[str], None]


class Unreadable(NamedTuple):
    """The reason why an image cannot be read, in place of the image."""

    reason: str


class TooLarge(Unreadable):
    """The image was not decoded, because it has more pixels than allowed."""


Raw = bytes | NDArray[np.uint8] | Unreadable
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

    def __len__(self) -> int:
        return sum(map(len, self.classes.values()))


def normalize_name(text: str) -> str:
    """Return a name as it is stored and printed: on one line, in valid Unicode, with composed accents.

    Some file systems store an accent as a character of its own, and Linux allows any bytes in a name, those that steer
    a terminal among them.
    """
    valid = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _CONTROL.sub(lambda control: repr(control[0])[1:-1], unicodedata.normalize("NFC", valid))


def sort_classes(classes: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return classes and their images sorted by name, the same on every file system and in any folders."""
    return {name: sorted(classes[name], key=_file_order) for name in sorted(classes)}


def _file_order(name: str) -> tuple[str, str]:
    return normalize_name(PurePosixPath(name).name), normalize_name(name)


def skipped(names: Sequence[str], reason: str, noun: str = "file") -> list[str]:
    """Return one sentence with number, names and reason of what was skipped, or none if nothing was."""
    return [f"Skipped {pluralize(len(names), noun)}, {reason}: {abbreviate(names)}."] if names else []


def abbreviate(names: Sequence[str], shown: int = 5) -> str:
    """Return the first few names and how many more there are, as one text."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(normalize_name(name) for name in names[:shown]) + more
