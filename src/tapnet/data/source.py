"""What was found at a path: the classes, the names of their images, and a way to read them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPLITS = ("train", "val", "test")
Splits = Mapping[str, tuple[str, ...]]  # split: its classes


class Unreadable(NamedTuple):
    """Stands for an image that cannot be read, with the reason."""

    reason: str


Raw = bytes | NDArray[np.uint8] | Unreadable
Read = Callable[[Collection[str]], Iterator[tuple[str, Raw]]]


@dataclass
class Source:
    """Images before packing. `read(names)` gives each image once, in whatever order is cheapest for its medium."""

    form: str  # what the path was recognised as
    classes: dict[str, list[str]]  # the names of each class's images, in the order in which they will be packed
    read: Read
    splits: dict[str, list[str]] = field(default_factory=dict)  # the classes of each split, where the form says so
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.classes.values()))


def normal(text: str) -> str:
    """A name as it is kept and printed: on one line, in valid Unicode, with accents composed.

    Some file systems store an accent as a character of its own, and Linux allows any bytes in a name.
    """
    valid = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return unicodedata.normalize("NFC", valid).replace("\n", "\\n").replace("\r", "\\r")


def in_order(classes: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Classes and their images sorted by name: the same on every file system and in whichever folders they lie."""
    return {name: sorted(classes[name], key=_file_order) for name in sorted(classes)}


def _file_order(name: str) -> tuple[str, str]:
    return normal(PurePosixPath(name).name), normal(name)


def some(names: Sequence[str], shown: int = 5) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(normal(name) for name in names[:shown]) + more
