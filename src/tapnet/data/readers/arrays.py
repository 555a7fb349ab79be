"""Images as rows of arrays: the npz files of the TapNet authors, streamed row by row and converted to uint8."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tapnet.data.preprocessing import Raw
from tapnet.data.readers import SPLITS, Source, Splits, sort_classes
from tapnet.data.readers.files import FileTree, clear_damage_errors
from tapnet.errors import UserError

BEST_COMPRESSION = 1100  # to one; deflate cannot do better than 1032
CHUNK_BYTES = 16_000_000


def split_of(file: str) -> str | None:
    """Return the split in the name of a file, or None."""
    stem = PurePosixPath(file).name.lower()
    return next((split for split in SPLITS if re.search(rf"(^|[^a-z]){split}([^a-z]|$)", stem)), None)


def row_name(part: str, row: int) -> str:
    """Return the name under which one image of an array is packed; names sort as row numbers do."""
    return f"{part}/{row:07d}"


def row_source(
    form: str, labels: Mapping[str, Sequence[str | None]], rows: Callable[[str], Iterable[Raw]], split_names: Splits
) -> Source:
    """Return the source of images that are rows of several parts, files or arrays, with one part in memory at a time.

    `labels` has the class of every row of a part, `rows(part)` its images, `split_names` the classes declared by split.
    """
    classes: dict[str, list[str]] = {}
    for part, names in labels.items():
        for row, name in enumerate(names):
            if name is not None:
                classes.setdefault(name, []).append(row_name(part, row))

    def read(names: Collection[str]) -> Iterator[tuple[str, Raw]]:
        parts = {name.rpartition("/")[0] for name in names}
        for part in labels:
            if part in parts:
                images = ((row_name(part, row), raw) for row, raw in enumerate(rows(part)))
                yield from ((name, raw) for name, raw in images if name in names)

    splits = {split: [name for name in split_names.get(split, ()) if name in classes] for split in SPLITS}
    return Source(form, sort_classes(classes), read, splits)


def class_npz(tree: FileTree) -> Source | None:
    """Read npz files named after a split, in which every array is a class."""
    labels: dict[str, list[str | None]] = {}
    declared: dict[str, tuple[str, ...]] = {}
    for file in tree.names:
        split = split_of(file)
        if split is None or not file.endswith(".npz") or file.endswith("_images.npz"):
            continue
        with tree.open(file) as stream:
            shapes = npz_shapes(stream, file)
        labels |= {f"{file}/{name}": [name] * (shape[0] if shape else 0) for name, shape in shapes.items()}
        declared[split] = (*declared.get(split, ()), *shapes)

    def rows(part: str) -> Iterator[Raw]:
        file, _, name = part.partition(".npz/")
        with tree.open(f"{file}.npz") as stream:
            yield from npz_rows(stream, name, f"{file}.npz")

    return row_source("npz files, one array per class", labels, rows, declared) if labels else None


def npz_shapes(stream: IO[bytes], file: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array in an npz file; raise UserError if its bytes cannot hold that shape."""
    with clear_damage_errors(file), zipfile.ZipFile(stream) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        return {name: _open_array(archive, name, file)[1] for name in names}


def npz_rows(stream: IO[bytes], name: str, file: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the rows of one array as images, with no more than a few megabytes in memory."""
    with clear_damage_errors(file), zipfile.ZipFile(stream) as archive:
        data, shape, dtype = _open_array(archive, name, file)
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        step = max(1, CHUNK_BYTES // max(1, row_bytes))
        white: float | None = None
        for start in range(0, shape[0], step):
            count = min(step, shape[0] - start)
            rows = np.frombuffer(data.read(count * row_bytes), dtype).reshape(count, *shape[1:])
            white = white_level(rows) if white is None else white
            yield from as_images(rows, white, f"{name} of {file}")


def _open_array(archive: zipfile.ZipFile, name: str, file: str) -> tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]:
    """Return the stream of an array at its first row, its shape and its type; raise UserError if it is no images."""
    info, name = archive.getinfo(f"{name}.npy"), f"Array {name} of {file}"
    if info.flag_bits & 1:
        raise UserError(f"{name} is encrypted: make the file again without a password.")
    data = archive.open(info)
    try:
        read = npy.read_array_header_1_0 if npy.read_magic(data) == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(data)
    except ValueError as error:
        raise UserError(f"{name} cannot be read ({error}).") from None
    if dtype.kind not in "biuf":
        raise UserError(f"{name} holds {dtype}, and images are numbers: it is not read.")
    size = dtype.itemsize * math.prod(shape)
    if size + data.tell() != info.file_size or size > BEST_COMPRESSION * (info.compress_size + 1):
        held = f"its {info.compress_size:,} bytes cannot hold"
        raise UserError(f"{name} claims shape {shape}, which {held}: it is not read.")
    if fortran and len(shape) > 1:
        raise UserError(f"{name} is stored column by column: save it in C order.")
    return data, shape, dtype


def white_level(values: NDArray[Any]) -> float:
    """Return the value of white: 255, or 1 if the values are floats of at most 1."""
    return 1.0 if values.dtype.kind == "f" and values.size and float(values.max()) <= 1.0 else 255.0


def as_images(rows: NDArray[Any], white: float, where: str) -> NDArray[np.uint8]:
    """Return rows as uint8 (count, height, width, channels); a flattened row is a square of three channels or one."""
    if rows.dtype != np.uint8:
        if rows.size and not (rows.min() >= 0 and rows.max() <= white):
            raise UserError(f"Expected pixels from 0 to {white:g} in {where}, got {rows.min()} to {rows.max()}.")
        rows = np.rint(rows * (255.0 / white)).astype(np.uint8)
    if 0 in rows.shape[1:]:
        raise UserError(f"Images in {where} have no pixels: their shape is {rows.shape}.")
    if rows.ndim == 2:
        for channels in (3, 1):
            side = round((rows.shape[1] / channels) ** 0.5)
            if side * side * channels == rows.shape[1]:
                return rows.reshape(-1, side, side, channels)
        raise UserError(f"Rows of {where} have {rows.shape[1]} numbers, which are no square image.")
    if rows.ndim == 3:
        return rows[..., None]
    if rows.ndim != 4 or rows.shape[3] not in (1, 3):
        raise UserError(f"Expected the shape (count, height, width, 1 or 3) in {where}, got {rows.shape}.")
    return rows
