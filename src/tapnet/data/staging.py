"""The hidden folder in which a dataset is packed: locked, resumable, and renamed only when it is whole."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tapnet.data.packed import IMAGES

PLAN, STATE = "plan.txt", "state.bin"
TODO, DONE, RESIZED = 0, 1, 2
SAVE_BYTES = 64_000_000


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Holds the name for one preparation; the lock goes with the process, however it ends."""
    if root.exists() and not root.is_dir():
        raise NotADirectoryError(
            f"Prepared datasets are kept in a folder, and {root} is a file: choose another --root."
        )
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BlockingIOError(
                f"Another preparation of {name} in {root} is under way: wait until it ends."
            ) from None
        yield


@contextmanager
def room(root: Path, needed: int) -> Iterator[None]:
    """Says in one sentence that the disk is full; `needed` is what the whole dataset takes."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(root).free
        raise OSError(
            f"The disk is full: the dataset takes {needed / 1e9:.2f} GB in {root}, where {free / 1e9:.2f} GB are free. "
            "Make room or choose another folder with --root, then run the same command again."
        ) from None


class Staging:
    """Rows of an array on their way to disk. A row counts as done only after its pixels have reached the disk.

    Pixels are written, not mapped: on a full disk a write fails with an error, a map kills the process.
    """

    def __init__(self, folder: Path, plan: str, shape: tuple[int, ...]) -> None:
        self.folder, self._row_bytes = folder, int(np.prod(shape[1:], dtype=np.int64))
        if not (folder / STATE).is_file() or (folder / PLAN).read_text("utf-8") != plan:
            self._start(plan, shape)
        self._offset = (folder / IMAGES).stat().st_size - shape[0] * self._row_bytes
        self._images = os.open(folder / IMAGES, os.O_RDWR)
        self._pending: dict[int, int] = {}
        self.state: NDArray[np.uint8] = np.fromfile(folder / STATE, dtype=np.uint8)

    def _start(self, plan: str, shape: tuple[int, ...]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        size = shape[0] * self._row_bytes
        if shutil.disk_usage(self.folder).free < size:
            raise OSError(errno.ENOSPC, "too little room")
        with (self.folder / IMAGES).open("wb") as file:
            npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            file.flush()
            if hasattr(os, "posix_fallocate"):  # not on every system
                os.posix_fallocate(file.fileno(), file.tell(), size)
            file.truncate(file.tell() + size)
        (self.folder / PLAN).write_text(plan, "utf-8")
        np.zeros(shape[0], dtype=np.uint8).tofile(self.folder / STATE)

    def write(self, row: int, pixels: NDArray[np.uint8], mark: int) -> None:
        """One image to its row; `mark` is DONE or RESIZED."""
        os.pwrite(self._images, pixels.tobytes(), self._offset + row * self._row_bytes)
        self._pending[row] = mark
        if len(self._pending) * self._row_bytes > SAVE_BYTES:
            self.save()

    def save(self) -> None:
        """Everything written so far survives whatever happens next."""
        os.fsync(self._images)
        for row, mark in self._pending.items():
            self.state[row] = mark
        self._pending.clear()
        self.state.tofile(self.folder / STATE)

    def add(self, name: str, lines: Iterable[str]) -> None:
        """A text file beside the images, on the disk when this returns."""
        with (self.folder / name).open("w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        os.close(self._images)

    def publish(self, folder: Path) -> None:
        """The whole dataset under its own name; one that was there before is gone only after this one is ready."""
        for leftover in (PLAN, STATE):
            (self.folder / leftover).unlink()
        old = self.folder.with_suffix(".old")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        self.folder.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
