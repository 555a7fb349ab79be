"""Files by path or by address: on this machine, or in a bucket (s3://, gs:// and whatever else fsspec knows)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tapnet.data.preprocessing import LARGEST_FILE
from tapnet.errors import NotFoundError, UserError
from tapnet.inference.images import ImageFile
from tapnet.paths import write_atomically

_ADDRESS = re.compile(r"^(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<bucket>[^/]*)")
_OUTAGES = ("NETWORK_CONNECTION", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "REQUEST_TIMEOUT", "INTERNAL_FAILURE", "curlCode")


class StorageUnavailableError(UserError):
    """The store does not answer at the moment, which says nothing about the file that was asked for."""


def is_address(path: str) -> bool:
    """Return whether this is an address such as s3://bucket/folder, not a path."""
    return _ADDRESS.match(path) is not None


def absolute(path: str) -> str:
    """Return a path that every working folder understands, or the address as it is."""
    return path if is_address(path) else os.path.abspath(path)  # noqa: PTH100 (resolve() would follow links)


def join(folder: str, name: str) -> str:
    """Return a name in a folder, or the name itself if it is an address or an absolute path."""
    if is_address(name) or not folder:
        return name
    return f"{folder.rstrip('/')}/{name}" if is_address(folder) else str(Path(folder) / name)


def parent(path: str) -> str:
    """Return the folder of a file."""
    return path.rpartition("/")[0] if is_address(path) else str(Path(path).parent)


def stored_name(name: str) -> str:
    """Return a file name as Parquet can hold it: Linux allows bytes in a name that are no text."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def import_pyarrow() -> Any:
    """Return pyarrow; raise UserError if it is not installed."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise UserError("Parquet files and buckets need pyarrow: pip install 'tapnet[parquet]'.") from None
    return pyarrow


def open_storage(path: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a path or address, and the path inside it.

    Raise UserError if pyarrow, or what the address needs, is not installed.
    """
    address = _ADDRESS.match(path)
    if address is None:
        return _filesystem(""), absolute(path)
    if address["scheme"] in ("http", "https", "ftp"):
        raise UserError(f"Expected a path or the address of a bucket, got {path}: to read it, download it first.")
    if not address["bucket"]:
        raise UserError(f"{path} names no bucket: expected an address such as {address['scheme']}://bucket/folder.")
    return _filesystem(address[0]), path[len(address["scheme"]) + 3 :].rstrip("/")


@cache
def _filesystem(root: str) -> Any:
    arrow = import_pyarrow()
    from pyarrow import fs

    if not root:
        return fs.LocalFileSystem()
    try:
        return fs.FileSystem.from_uri(root)[0]
    except OSError as error:  # the region of a bucket is asked for
        raise StorageUnavailableError(f"{root} cannot be opened: {_plain(error)}") from None
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
        scheme = root.partition("://")[0]
    try:
        import fsspec

        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme)))
    except (ImportError, ValueError) as error:
        raise UserError(f"Addresses of the kind {scheme}:// need another package: {error}.") from None


@dataclass(frozen=True)
class StoredImage(ImageFile):
    """An image file under another name than its path: in a bucket, or relative to some folder."""

    location: str

    def read_bytes(self) -> bytes:
        try:
            content = read_file(self.location, LARGEST_FILE + 1)
        except OSError as error:
            if any(word in str(error) for word in _OUTAGES):
                raise StorageUnavailableError(f"{self.location} cannot be read now: {_plain(error)}") from None
            raise type(error)(_plain(error)) from None
        if len(content) > LARGEST_FILE:
            raise OSError(f"more than {LARGEST_FILE:,} bytes")
        return content


def read_file(path: str, most: int | None = None) -> bytes:
    """Return the content of a file, or its first `most` bytes; raise OSError if it cannot be read."""
    if not is_address(path):
        with Path(path).open("rb") as file:
            return file.read(most)
    filesystem, inside = open_storage(path)
    with filesystem.open_input_stream(inside) as stream:
        return bytes(stream.read(most))


def write_file(path: str, content: bytes) -> None:
    """Write a file that is there whole or not at all, whenever the process is killed."""
    if not is_address(path):
        write_atomically(Path(path), content)
        return
    filesystem, inside = open_storage(path)
    with filesystem.open_output_stream(inside) as stream:  # an object appears when its upload is complete
        stream.write(content)


def list_files(folder: str, recursive: bool = True) -> list[str]:
    """Return the files in a folder, sorted by name; raise UserError if there is no such folder."""
    from pyarrow import fs

    filesystem, inside = open_storage(folder)
    try:
        infos = filesystem.get_file_info(fs.FileSelector(inside, recursive=recursive))
    except FileNotFoundError:
        raise NotFoundError(f"There is no file or folder {folder}.") from None
    except OSError as error:
        raise StorageUnavailableError(f"{folder} cannot be listed: {_plain(error)}") from None
    prefix = folder.partition("://")[0] + "://" if is_address(folder) else ""
    return sorted(prefix + info.path for info in infos if info.type == fs.FileType.File)


def is_file(path: str) -> bool:
    """Return whether this is a file, not a folder; raise UserError if it is neither or cannot be asked for."""
    from pyarrow import fs

    filesystem, inside = open_storage(path)
    try:
        kind = filesystem.get_file_info(inside).type
    except OSError as error:
        raise StorageUnavailableError(f"{path} cannot be opened: {_plain(error)}") from None
    if kind == fs.FileType.NotFound:
        raise NotFoundError(f"There is no file or folder {path}.")
    return bool(kind == fs.FileType.File)


def _plain(error: OSError) -> str:
    """Return what a store says, on one line."""
    return " ".join((error.strerror or str(error)).split())
