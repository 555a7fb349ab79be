"""The public forms in which datasets circulate: each takes a tree and gives a Source, or None if it is another form.

A form never decides the split where the dataset has class lists of its own; it only says what the files say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tapnet.data.readers.file_tree import FileTree
from tapnet.data.source import Source, Splits

Say = Callable[[str], None]


@dataclass(frozen=True)
class Form:
    """One way in which a dataset is handed out: in words, and how it is read."""

    words: str
    read: Callable[[FileTree, Splits, Say], Source | None]
