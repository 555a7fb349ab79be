"""Prepare a dataset: recognize what is at a path, decode every image once, and write the packed dataset.

It is written in a hidden folder, which is locked, can be resumed, and is renamed only when it is complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.lib import format as npy
from numpy.typing import NDArray

from tapnet import __version__
from tapnet.data.catalog import DATASETS
from tapnet.data.dataset import Dataset
from tapnet.data.packed import IMAGES, MANIFEST, ROWS, VERIFIED, Manifest, Packed, is_packed, open_packed, sha256_of
from tapnet.data.preprocessing import LoadedImage, Pixels, Preprocessing, Raw, Unreadable, with_image
from tapnet.data.readers import Source
from tapnet.errors import UserError
from tapnet.paths import write_atomically
from tapnet.text import abbreviate, normalize_name

PLAN, STATE = "plan.txt", "state.bin"
TODO, DONE, RESIZED = 0, 1, 2
ROW_STATE = np.dtype([("mark", "u1"), ("version", "<u8")])  # version: a number that changes when the row's file does
SAVE_BYTES = 64_000_000
BATCH, PIECE = 64, 16  # images in memory at once; images per task of a thread
BATCH_BYTES = 16_000_000
WORKERS = 4


@dataclass(frozen=True)
class PackOptions:
    """How a dataset is packed; None means the dataset's own default."""

    name: str | None = None
    size: int | None = None
    channels: int | None = None
    filter: str | None = None
    fit: str = "squash"
    ink: str | None = None
    seed: int = 0
    skip_bad: bool = False
    overwrite: bool = False


def prepare(
    dataset: Dataset,
    path: Path,
    root: Path,
    options: PackOptions,
    log: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Packed:
    """Pack the dataset at `path` and return it; `progress` gets the number of images done and that of all."""
    name = name_for(dataset, root, options)
    if options.ink is not None and dataset.ink is None:
        raise UserError(f"{dataset.name} is not a set of drawings: leave out the option.", parameter="ink")
    height, width, channels = dataset.row_shape
    preprocessing = Preprocessing(
        height if options.size is None else options.size,
        width if options.size is None else options.size,
        options.channels or channels,
        options.filter or dataset.filter,
        options.fit,
        options.ink or dataset.ink,
    )
    source = dataset.recognize(path, log)  # before anything is written
    if root.exists() and not root.is_dir():
        raise UserError(f"Expected a folder for prepared datasets, and {root} is a file: choose another.", "root")
    root.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(root / f".{name}.lock").acquire(timeout=0)  # a process that is killed releases it
    except Timeout:
        raise BlockingIOError(f"Another process is preparing {name} in {root}: wait until it ends.") from None
    shape = (len(source.names), *preprocessing.shape)
    with lock, _clear_full_disk_errors(root, int(np.prod(shape, dtype=np.int64))):
        versions = np.fromiter(map(source.version, source.names), dtype=np.uint64, count=shape[0])
        staging = Staging(root / f".{name}.partial", _plan(source, path, preprocessing), shape, versions)
        with closing(staging):
            unreadable = _pack(source, staging, preprocessing, log, progress)
        if unreadable and not options.skip_bad:
            listed = abbreviate([f"{source.names[row]} ({reason})" for row, reason in unreadable.items()], 10)
            raise UserError(
                f"{len(unreadable):,} of {shape[0]:,} images cannot be read: {listed}. What was packed so far is kept: "
                "fix them and run the same command again, or skip them.",
                parameter="skip_bad",
            )
        manifest = Manifest(
            name=name,
            dataset=dataset.name,
            source=source.format,
            preprocessing=preprocessing,
            resized=int((staging.rows["mark"] == RESIZED).sum()),
            classes={label: len(names) for label, names in source.classes.items()},
            splits=dataset.split_classes(source, options.seed),
            left_out={str(row): reason for row, reason in unreadable.items()},
            notes=tuple(source.notes),
            sha256=sha256_of(staging.folder / IMAGES),
            tapnet=__version__,
        )
        write_atomically(staging.folder / ROWS, "".join(f"{normalize_name(key)}\n" for key in source.names).encode())
        write_atomically(staging.folder / MANIFEST, manifest.to_json().encode())
        staging.publish(root / name)
    packed = open_packed(root / name)
    packed.record_verified()
    return packed


def name_for(dataset: Dataset, root: Path, options: PackOptions) -> str:
    """Return the name of the packed dataset; raise UserError if it is not valid or taken, or would delete files."""
    name = dataset.name if options.name is None else options.name
    folder = root / name
    if not re.fullmatch(r"[^\W_][\w.-]*", name):
        raise UserError(f"Expected a name of letters, digits, dots and dashes, got {name!r}.")
    if name in DATASETS and name != dataset.name:
        raise UserError(f"The name {name} belongs to another dataset: give your {dataset.name} a name of its own.")
    if is_packed(folder) and not options.overwrite:
        raise UserError(f"{name} is prepared already in {folder}: use it, or overwrite it.", parameter="overwrite")
    present = {path.name for path in (folder.iterdir() if folder.is_dir() else [folder]) if path.exists()}
    others = [file for file in sorted(present - {IMAGES, MANIFEST, ROWS, VERIFIED}) if not file.startswith(".")]
    if others:
        raise UserError(
            f"{folder} holds what is not a prepared dataset and would be deleted ({abbreviate(others, 3)}): "
            "give another name, or another folder for prepared datasets."
        )
    return name


def _plan(source: Source, path: Path, preprocessing: Preprocessing) -> str:
    """Return a text that is equal for two preparations if one can resume the other, changed files aside."""
    digest = hashlib.sha256(repr((source.format, preprocessing)).encode())
    for name, keys in source.classes.items():
        digest.update(repr((name, keys)).encode())
    return f"{path.resolve()} {digest.hexdigest()}"


def _pack(
    source: Source,
    staging: Staging,
    preprocessing: Preprocessing,
    log: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> dict[int, str]:
    """Decode every image that is not done yet; return the rows that could not be decoded, with the reasons."""
    todo = {name: row for row, name in enumerate(source.names) if staging.rows["mark"][row] == TODO}
    total = len(staging.rows)
    done = total - len(todo)
    reasons: dict[int, str] = {}

    def decode(loaded: LoadedImage) -> tuple[Pixels, int]:
        as_it_was = loaded.image.size == loaded.stored_size(preprocessing.width, preprocessing.height)
        return preprocessing.apply(loaded), DONE if as_it_was else RESIZED

    def decode_piece(piece: list[tuple[str, Raw]]) -> list[tuple[Pixels, int] | Unreadable]:
        return [with_image(raw, decode, preprocessing.sufficient_side) for _, raw in piece]

    if done:
        log(f"Resuming an earlier preparation: {done:,} of {total:,} images are done.")
    try:
        with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(WORKERS) as pool:
            for batch in _batches(source.read(todo)):
                pieces = [batch[start : start + PIECE] for start in range(0, BATCH, PIECE)]
                images = chain.from_iterable(pool.map(decode_piece, pieces))
                for (name, _), image in zip(batch, images, strict=True):
                    if isinstance(image, Unreadable):
                        reasons[todo[name]] = image.reason
                    else:
                        staging.write(todo[name], *image)
                done += len(batch)
                progress(done, total)
    finally:
        staging.save()
    lost = np.flatnonzero(staging.rows["mark"] == TODO).tolist()
    return {row: reasons.get(row, "disappeared while the others were packed") for row in lost}


def _batches(images: Iterable[tuple[str, Raw]]) -> Iterator[list[tuple[str, Raw]]]:
    """Yield batches of up to BATCH images, fewer if they are large."""
    batch: list[tuple[str, Raw]] = []
    size = 0
    for name, raw in images:
        batch.append((name, raw))
        size += len(raw) if isinstance(raw, bytes) else getattr(raw, "nbytes", 0)
        if len(batch) == BATCH or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Staging:
    """Rows of an array on their way to disk. A row counts as done only after its pixels have reached the disk.

    Rows whose version differs from that of the interrupted preparation are packed again. Pixels are written, not
    memory-mapped: on a full disk a write raises an error, but a memory map kills the process.
    """

    def __init__(self, folder: Path, plan: str, shape: tuple[int, ...], versions: NDArray[np.uint64]) -> None:
        self.folder, self._row_bytes = folder, int(np.prod(shape[1:], dtype=np.int64))
        if not self._can_resume(plan, len(versions)):
            self._start(plan, shape)
        self.rows = np.fromfile(folder / STATE, dtype=ROW_STATE)
        self.rows["mark"][self.rows["version"] != versions] = TODO
        self.rows["version"] = versions
        write_atomically(self.folder / STATE, self.rows.tobytes())
        self._offset = (folder / IMAGES).stat().st_size - shape[0] * self._row_bytes
        self._images = os.open(folder / IMAGES, os.O_RDWR | getattr(os, "O_BINARY", 0))
        self._pending: dict[int, int] = {}

    def _can_resume(self, plan: str, count: int) -> bool:
        """Return whether the folder holds a preparation by the same plan, with all its files whole."""
        try:
            np.load(self.folder / IMAGES, mmap_mode="r", allow_pickle=False)
            same_plan = (self.folder / PLAN).read_text("utf-8") == plan
            return same_plan and (self.folder / STATE).stat().st_size == count * ROW_STATE.itemsize
        except (OSError, ValueError, EOFError):
            return False

    def _start(self, plan: str, shape: tuple[int, ...]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        size = shape[0] * self._row_bytes
        if shutil.disk_usage(self.folder).free < size:
            raise OSError(errno.ENOSPC, "not enough space")
        with (self.folder / IMAGES).open("wb") as file:
            npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            file.truncate(file.tell() + size)
        (self.folder / PLAN).write_text(plan, "utf-8")
        np.zeros(shape[0], dtype=ROW_STATE).tofile(self.folder / STATE)

    def write(self, row: int, pixels: Pixels, mark: int) -> None:
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
            self.rows["mark"][row] = mark
        self._pending.clear()
        write_atomically(self.folder / STATE, self.rows.tobytes())

    def close(self) -> None:
        os.close(self._images)

    def publish(self, folder: Path) -> None:
        """Rename the complete dataset; an earlier one of that name is deleted only afterwards."""
        for leftover in (PLAN, STATE):
            (self.folder / leftover).unlink()
        old = self.folder.with_suffix(".old")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        self.folder.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _clear_full_disk_errors(root: Path, needed: int) -> Iterator[None]:
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
