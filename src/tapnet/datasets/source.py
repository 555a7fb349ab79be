"""What was found at a path: the classes, the names of their images, and a way to read them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SPLITS = ("train", "val", "test")


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
    """Text with accents composed, which some file systems store in two characters and others in one."""
    return unicodedata.normalize("NFC", text)


def in_order(classes: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Classes and their images sorted by name: the same on every file system and in whichever folders they lie."""
    return {name: sorted(classes[name], key=_file_order) for name in sorted(classes)}


def _file_order(name: str) -> tuple[str, str]:
    return normal(PurePosixPath(name).name), normal(name)


def some(names: Sequence[Any], shown: int = 5) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(map(str, names[:shown])) + more
