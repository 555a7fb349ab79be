"""Pickles as data: read without running anything in them, and only if they fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil

from tapnet.data.readers.file_tree import FileTree
from tapnet.data.readers.unpickling import Array, BoundedStream, Refused, RestrictedUnpickler, text
from tapnet.errors import UserError

HEADROOM = 500_000_000


def load_pickle(stream: IO[bytes], name: str, size: int, log: Callable[[str], None]) -> Any:
    """Return what the pickle holds: containers, numbers, text (bytes, if Python 2 wrote it), read-only arrays.

    All of it is in memory at once, which is logged. Raise UserError if there is not enough memory, if the pickle is
    damaged, or if it asks for anything else.
    """
    needed, free = size + HEADROOM, available_memory()
    if needed > free:
        raise UserError(
            f"{name} is a pickle of {size / 1e9:.1f} GB, which needs up to {needed / 1e9:.1f} GB of memory at once, "
            f"and {free / 1e9:.1f} GB are free: close other programs, or use another form of the dataset."
        )
    log(f"Reading {name}: a pickle has to be in memory whole, up to {needed / 1e9:.1f} GB.")
    try:
        return _plain(RestrictedUnpickler(BoundedStream(stream, size)).load())
    except Refused as error:
        raise UserError(
            f"{name} is refused: it asks for {error}, and a pickled dataset needs only arrays and plain containers. "
            "Nothing of it was run; do not open it with other programs."
        ) from None
    except Exception as error:  # damaged opcodes raise almost anything
        raise UserError(f"{name} is not a complete pickle ({error or type(error).__name__}): fetch it again.") from None


def load_pickled_dict(
    tree: FileTree, file: str, keys: set[str], log: Callable[[str], None], mistaken_for: str = "another dataset"
) -> dict[str, Any]:
    """Return the dictionary in a pickle of a file tree; raise UserError unless it has these keys."""
    with tree.open(file) as stream:
        content = load_pickle(stream, file, size_of(stream), log)
    if not isinstance(content, dict) or not keys <= content.keys():
        found = sorted(content) if isinstance(content, dict) else type(content).__name__
        raise UserError(f"Expected {', '.join(sorted(keys))} in {file}, got {found}: is it {mistaken_for}?")
    return content


def _plain(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Return the value with stand-ins replaced by what they stand for, at any depth, and byte keys by text.

    `known` holds the containers already made: one that is shared a million times is not copied a million times.
    """
    known = {} if known is None else known
    if isinstance(value, Array):
        return _plain(value.value, known) if isinstance(value.value, list) else value.value
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) not in known:
        if isinstance(value, dict):
            made: Any = {text(key): _plain(item, known) for key, item in value.items()}
        else:
            made = [_plain(item, known) for item in value]
        known[id(value)] = made
    return known[id(value)]


def integers(values: Any, what: str, file: str) -> list[int]:
    """Return a list of numbers that a pickle holds under the name `what`; raise UserError if it is none."""
    if not isinstance(values, list | np.ndarray) or not all(isinstance(value, int | np.integer) for value in values):
        raise UserError(f"Expected a list of whole numbers as `{what}` in {file}: is it another dataset?")
    return [int(value) for value in values]


def texts(values: Any, what: str, file: str) -> list[str]:
    """Return a list of texts that a pickle holds under the name `what`; raise UserError if it is none."""
    found = [text(value) for value in values] if isinstance(values, list | np.ndarray) else [None]
    if not all(isinstance(value, str) for value in found):
        raise UserError(f"Expected a list of names as `{what}` in {file}: is it another dataset?")
    return [str(value) for value in found]


def size_of(stream: IO[bytes]) -> int:
    """Return the number of bytes of a stream, which is left at its start."""
    size = stream.seek(0, 2)
    stream.seek(0)
    return size


def available_memory() -> float:
    """Return how many bytes of memory are available now to this process and its control group."""
    free = float(psutil.virtual_memory().available)
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        return min(free, float(limit) - float(used))
    except (OSError, ValueError):  # no control group, or one without a limit
        return free
