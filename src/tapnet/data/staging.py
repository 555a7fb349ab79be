"""The hidden folder in which a dataset is packed: locked, resumable, and renamed only when it is complete."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.lib import format as npy
from numpy.typing import NDArray

from tapnet.data.packed import IMAGES
from tapnet.errors import UserError

PLAN, STATE, VERSIONS = "plan.txt", "state.bin", "versions.bin"
TODO, DONE, RESIZED = 0, 1, 2
SAVE_BYTES = 64_000_000


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Hold the name for one preparation; raise BlockingIOError if another one holds it.

    A process that is killed releases the lock.
    """
    if root.exists() and not root.is_dir():
        raise UserError(
            f"Expected a folder for prepared datasets, and {root} is a file: choose another.", parameter="root"
        )
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / f".{name}.lock", timeout=0):
            yield
    except Timeout:
        raise BlockingIOError(f"Another process is preparing {name} in {root}: wait until it ends.") from None


@contextmanager
def clear_full_disk_errors(root: Path, needed: int) -> Iterator[None]:
    """Raise OSError with what to do if the disk is full; `needed` is the size of the whole dataset in bytes."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(root).free
        raise OSError(
            f"The disk is full: the dataset takes {needed / 1e9:.2f} GB in {root}, where {free / 1e9:.2f} GB are free. "
            "Free some space or choose another folder for prepared datasets, then run the same command again."
        ) from None


class Staging:
    """Rows of an array on their way to disk. A row counts as done only after its pixels have reached the disk.

    `versions` has a number per row that changes when its file does: rows whose number differs from that of the
    interrupted preparation are packed again. Pixels are written, not memory-mapped: on a full disk a write raises an
    error, but a memory map kills the process.
    """

    def __init__(self, folder: Path, plan: str, shape: tuple[int, ...], versions: NDArray[np.uint64]) -> None:
        self.folder, self._row_bytes = folder, int(np.prod(shape[1:], dtype=np.int64))
        if not self._can_resume(plan, shape):
            self._start(plan, shape)
        self.state: NDArray[np.uint8] = np.fromfile(folder / STATE, dtype=np.uint8)
        self.state[np.fromfile(folder / VERSIONS, dtype=np.uint64) != versions] = TODO
        self._write_state()
        _replace(folder / VERSIONS, versions)
        self._offset = (folder / IMAGES).stat().st_size - shape[0] * self._row_bytes
        self._images = os.open(folder / IMAGES, os.O_RDWR | getattr(os, "O_BINARY", 0))
        self._pending: dict[int, int] = {}

    def _can_resume(self, plan: str, shape: tuple[int, ...]) -> bool:
        """Return whether the folder holds a preparation by the same plan, with all its files undamaged."""
        try:
            sizes = [(self.folder / name).stat().st_size for name in (STATE, VERSIONS)]
            images = np.load(self.folder / IMAGES, mmap_mode="r", allow_pickle=False)
            same_plan = (self.folder / PLAN).read_text("utf-8") == plan
        except (OSError, ValueError, EOFError):
            return False
        same_kind = images.shape == shape and images.dtype == np.uint8
        return same_plan and same_kind and sizes == [shape[0], 8 * shape[0]]

    def _start(self, plan: str, shape: tuple[int, ...]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        size = shape[0] * self._row_bytes
        if shutil.disk_usage(self.folder).free < size:
            raise OSError(errno.ENOSPC, "not enough space")
        with (self.folder / IMAGES).open("wb") as file:
            npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            file.flush()
            if hasattr(os, "posix_fallocate"):  # not on every system
                os.posix_fallocate(file.fileno(), file.tell(), size)
            file.truncate(file.tell() + size)
        (self.folder / PLAN).write_text(plan, "utf-8")
        np.zeros(shape[0], dtype=np.uint8).tofile(self.folder / STATE)
        np.zeros(shape[0], dtype=np.uint64).tofile(self.folder / VERSIONS)

    def write(self, row: int, pixels: NDArray[np.uint8], mark: int) -> None:
        """Write one image to its row; `mark` is DONE or RESIZED."""
        os.lseek(self._images, self._offset + row * self._row_bytes, os.SEEK_SET)
        if os.write(self._images, pixels.tobytes()) != self._row_bytes:
            raise OSError(errno.ENOSPC, "not enough space")
        self._pending[row] = mark
        if len(self._pending) * self._row_bytes > SAVE_BYTES:
            self.save()

    def save(self) -> None:
        """Flush everything written so far to the disk."""
        os.fsync(self._images)
        for row, mark in self._pending.items():
            self.state[row] = mark
        self._pending.clear()
        self._write_state()

    def _write_state(self) -> None:
        _replace(self.folder / STATE, self.state)

    def add(self, name: str, lines: Iterable[str]) -> None:
        """Write a text file beside the images; it is on the disk when this returns."""
        with (self.folder / name).open("w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        os.close(self._images)

    def publish(self, folder: Path) -> None:
        """Rename the complete dataset; an earlier one of that name is deleted only afterwards."""
        for leftover in (PLAN, STATE, VERSIONS):
            (self.folder / leftover).unlink()
        old = self.folder.with_suffix(".old")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        self.folder.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


def _replace(path: Path, values: NDArray[np.generic]) -> None:
    """Write the values under a temporary name, then rename: a process that is killed leaves the old file or the new."""
    temporary = path.with_suffix(".new")
    values.tofile(temporary)
    temporary.replace(path)
