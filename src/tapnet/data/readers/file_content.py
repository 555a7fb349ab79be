"""The content of files and of members of archives, bounded: more than an image can have is not read."""

from __future__ import annotations

import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tapnet.data.source import Raw, Unreadable
from tapnet.errors import UserError

LARGEST_FILE = 100_000_000  # bytes of one encoded image; far beyond any photograph, and small enough to hold
DAMAGES = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    UnicodeDecodeError,
)


@contextmanager
def clear_damage_errors(path: Path | str) -> Iterator[None]:
    """Raise UserError for a damaged archive, whatever error its reader raises."""
    try:
        yield
    except DAMAGES as error:
        raise UserError(f"{path} is damaged or cut off ({error}): fetch or make it again.") from None


def check_not_encrypted(info: zipfile.ZipInfo, archive: Path | str) -> None:
    """Raise UserError for a member that needs a password."""
    if info.flag_bits & 1:
        raise UserError(f"{info.filename} in {archive} is encrypted: make the archive again without a password.")


def file_bytes(path: Path) -> Raw:
    """Return the content of a file, or the reason why not."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return Unreadable("not a regular file")
        return _too_large(status.st_size) or path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a table may name a file with a zero byte
        return Unreadable(getattr(error, "strerror", None) or str(error))


def zip_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Raw:
    """Return the content of a member of a zip, or the reason why not."""
    if too_large := _too_large(max(info.file_size, info.compress_size)):
        return too_large
    if unbounded := unbounded_packing(info):
        return unbounded
    try:
        with archive.open(info) as stream:
            return stream.read(info.file_size)  # `read()` unpacks up to a gigabyte before it looks at the size
    except (*DAMAGES, RuntimeError, OSError) as error:  # RuntimeError: it is encrypted
        return Unreadable(f"damaged in the archive: {error}")


def unbounded_packing(info: zipfile.ZipInfo) -> Unreadable | None:
    """Return the reason to leave out a member that `zipfile` would unpack without a limit."""
    if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return None
    return Unreadable(f"packed by method {info.compress_type}, where stored and deflated can be read")


def tar_bytes(stream: IO[bytes]) -> Raw:
    """Return the content of a member of a tar, or the reason why not."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return _too_large(size) or stream.read()


def bounded_bytes(stream: IO[bytes]) -> bytes | Unreadable:
    """Return the content of a stream, or the reason why not; never much more is unpacked than is returned."""
    content = stream.read(LARGEST_FILE + 1)
    return _too_large(len(content)) or content


def _too_large(size: int) -> Unreadable | None:
    return Unreadable(f"{size:,} bytes, more than {LARGEST_FILE:,}") if size > LARGEST_FILE else None
