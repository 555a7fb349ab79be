"""Files that hold many images as arrays: what they have in common, whatever wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from tapnet.data.source import SPLITS, Raw, Read

Rows = Callable[[str], Iterable[Raw]]  # the images of a part, in order


def split_of(name: str) -> str | None:
    """The split that a file's name speaks of."""
    stem = PurePosixPath(name).name.lower()
    return next((split for split in SPLITS if re.search(rf"(^|[^a-z]){split}([^a-z]|$)", stem)), None)


def key(part: str, row: int) -> str:
    """The name under which one image of an array is packed; it sorts as its number."""
    return f"{part}/{row:07d}"


def reader(parts: Iterable[str], rows: Rows) -> Read:
    """Reads the wanted images part after part, so that one part is in memory at a time."""
    order = tuple(parts)

    def read(names: Collection[str]) -> Iterator[tuple[str, Raw]]:
        wanted = {name.rpartition("/")[0] for name in names}
        for part in order:
            if part in wanted:
                found = ((key(part, row), raw) for row, raw in enumerate(rows(part)))
                yield from ((name, raw) for name, raw in found if name in names)

    return read


def declared_splits(splits: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The classes of each split as the file names declared, each class once."""
    return {split: list(dict.fromkeys(splits.get(split, ()))) for split in SPLITS}
