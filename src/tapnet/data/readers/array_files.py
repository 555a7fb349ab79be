"""Files that hold many images as arrays: what they have in common, whatever wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from tapnet.data.source import SPLITS, Raw, Read

Rows = Callable[[str], Iterable[Raw]]  # the images of a part, in order


def split_of(name: str) -> str | None:
    """Return the split in the name of a file, or None."""
    stem = PurePosixPath(name).name.lower()
    return next((split for split in SPLITS if re.search(rf"(^|[^a-z]){split}([^a-z]|$)", stem)), None)


def key(part: str, row: int) -> str:
    """Return the name under which one image of an array is packed; names sort as row numbers do."""
    return f"{part}/{row:07d}"


def reader(parts: Iterable[str], rows: Rows) -> Read:
    """Return a function that reads images part after part, so that only one part is in memory at a time."""
    order = tuple(parts)

    def read(names: Collection[str]) -> Iterator[tuple[str, Raw]]:
        wanted = {name.rpartition("/")[0] for name in names}
        for part in order:
            if part in wanted:
                found = ((key(part, row), raw) for row, raw in enumerate(rows(part)))
                yield from ((name, raw) for name, raw in found if name in names)

    return read


def declared_splits(splits: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the classes of every split as the file names declare them, each class once."""
    return {split: list(dict.fromkeys(splits.get(split, ()))) for split in SPLITS}
