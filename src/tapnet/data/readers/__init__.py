"""The formats in which datasets are published. Each reader returns the Source in a file tree, or None if it is another.

A reader reports the splits that the files declare; the class lists of a dataset, where it has some, take precedence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import Source, Splits

Log = Callable[[str], None]


@dataclass(frozen=True)
class Format:
    """A format in which a dataset is published: its description, and the function that reads it."""

    description: str
    read: Callable[[FileTree, Splits, Log], Source | None]
