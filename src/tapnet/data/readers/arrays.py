"""Images in the arrays of npz files, streamed row by row and converted to uint8."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tapnet.data.readers.file_tree import check_not_encrypted, clear_damage_errors
from tapnet.errors import UserError

BEST_COMPRESSION = 1100  # to one; deflate cannot do better than 1032
CHUNK_BYTES = 16_000_000


def npz_members(stream: IO[bytes], file: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array in an npz file; raise UserError if its bytes cannot hold that shape."""
    with clear_damage_errors(file), zipfile.ZipFile(stream) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        return {info.filename.removesuffix(".npy"): _header(archive, info, file)[0] for info in infos}


def npz_rows(stream: IO[bytes], member: str, file: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the rows of one array as images, with no more than a few megabytes in memory."""
    with clear_damage_errors(file), zipfile.ZipFile(stream) as archive:
        info = archive.getinfo(f"{member}.npy")
        shape, dtype = _header(archive, info, file)
        row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        with archive.open(info) as data:
            _read_header(data, file, member)
            step = max(1, CHUNK_BYTES // max(1, row_bytes))
            scale: float | None = None
            for start in range(0, shape[0], step):
                count = min(step, shape[0] - start)
                rows = np.frombuffer(data.read(count * row_bytes), dtype).reshape(count, *shape[1:])
                scale = white_level(rows) if scale is None else scale
                yield from as_images(rows, scale, f"{member} of {file}")


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    check_not_encrypted(info, file)
    member = info.filename.removesuffix(".npy")
    with archive.open(info) as data:
        shape, fortran, dtype = _read_header(data, file, member)
        size = dtype.itemsize
        for side in shape:
            size *= side
        if size + data.tell() != info.file_size or size > BEST_COMPRESSION * (info.compress_size + 1):
            raise UserError(
                f"Array {member} of {file} claims shape {shape}, which its {info.compress_size:,} bytes cannot hold: "
                "it is not read."
            )
    if fortran and len(shape) > 1:
        raise UserError(f"Array {member} of {file} is stored column by column: save it in C order.")
    return shape, dtype


def _read_header(data: IO[bytes], file: str, member: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(data)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(data)
    except ValueError as error:
        raise UserError(f"Array {member} of {file} cannot be read ({error}).") from None
    if dtype.kind not in "biuf":
        raise UserError(f"Array {member} of {file} holds {dtype}, and images are numbers: it is not read.")
    return shape, fortran, dtype


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
    if rows.ndim == 3:
        return rows[..., None]
    if rows.ndim == 2:
        return _unflattened(rows, where)
    if rows.ndim != 4 or rows.shape[3] not in (1, 3):
        raise UserError(f"Expected the shape (count, height, width, 1 or 3) in {where}, got {rows.shape}.")
    return rows


def _unflattened(rows: NDArray[np.uint8], where: str) -> NDArray[np.uint8]:
    for channels in (3, 1):
        side = round((rows.shape[1] / channels) ** 0.5)
        if side * side * channels == rows.shape[1]:
            return rows.reshape(-1, side, side, channels)
    raise UserError(f"Rows of {where} have {rows.shape[1]} numbers, which are no square image.")
