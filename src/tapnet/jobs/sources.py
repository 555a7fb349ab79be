"""Images to predict, wherever they are, as chunks of a bounded size: folders, list files, Parquet files and buckets.

The order and the size of the chunks depend on the source alone, so that a job that was killed finds them again. Files
are read and written by path or by address (s3://, gs:// and whatever else fsspec knows).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tapnet.data.preprocessing import LARGEST_FILE, is_image_name
from tapnet.errors import NotFoundError, UserError
from tapnet.inference.folders import Skipped, find_images
from tapnet.inference.images import ImageFile, ImageInput, in_batches
from tapnet.paths import write_atomically
from tapnet.text import install_hint, one_line

CHUNK = 256  # images of one part file
LISTS, TABLE = (".txt", ".list", ".lst"), ".parquet"
PATH_NAMES = ("path", "file", "filename", "file_name", "file_path", "image_path", "uri", "url")
_BYTES = ("binary", "large_binary", "binary_view")  # types of columns
_TEXT = ("string", "large_string", "string_view")
_READ = 32  # rows of a Parquet file read at a time: images are large
_OUTAGES = ("NETWORK_CONNECTION", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "REQUEST_TIMEOUT", "INTERNAL_FAILURE", "curlCode")


@dataclass(frozen=True)
class Rows:
    """Some rows of a row group of a Parquet file, whose column holds the bytes of images."""

    table: str
    column: str
    row_group: int
    numbers: tuple[int, ...]  # in the row group, increasing


@dataclass(frozen=True)
class TableImage(ImageFile):
    """An image in a row of a Parquet file."""

    content: bytes | None
    reason: str = "no image in this row"

    def read_bytes(self) -> bytes:
        if self.content is None:
            raise OSError(self.reason)
        return self.content


@dataclass(frozen=True)
class StoredImage(ImageFile):
    """An image file under another name than its path: in a bucket, or relative to some folder."""

    location: str

    def read_bytes(self) -> bytes:
        try:
            content = read_file(self.location, LARGEST_FILE + 1)
        except OSError as error:
            if any(word in str(error) for word in _OUTAGES):
                raise StorageUnavailableError(f"{self.location} cannot be read now: {_reason(error)}") from None
            raise type(error)(_reason(error)) from None
        if len(content) > LARGEST_FILE:
            raise OSError(f"more than {LARGEST_FILE:,} bytes")
        return content


class StorageUnavailableError(UserError):
    """The store does not answer at the moment, which says nothing about the file that was asked for."""


@dataclass(frozen=True)
class Chunk:
    """Some images by name, and where to read them: files below `base`, or the `rows` of a Parquet file."""

    files: tuple[str, ...]  # as they are called in the output
    base: str = ""  # the folder of names that are relative
    rows: Rows | None = None

    def __len__(self) -> int:
        return len(self.files)

    def without(self, done: Set[str]) -> Chunk:
        """Return the chunk without the images of these names, as they are stored, and each of the others once."""
        places = {stored_name(file): place for place, file in reversed([*enumerate(self.files)])}
        kept = sorted(place for name, place in places.items() if name not in done)
        rows = self.rows and replace(self.rows, numbers=tuple(self.rows.numbers[place] for place in kept))
        return Chunk(tuple(self.files[place] for place in kept), self.base, rows)

    def images(self) -> Iterator[ImageInput]:
        """Yield the images in the order of `files`; nothing is read before it is used, or a few rows ahead."""
        if self.rows is not None:
            yield from _read_rows(self.rows, self.files)
            return
        for file in self.files:
            location = join(self.base, file)
            is_path = not is_address(file) and location == absolute(file)
            yield Path(file) if is_path else StoredImage(file, location)

    def not_local(self) -> str | None:
        """Return the name of an image in a bucket or in a row of a table, if there is one."""
        return next((file for file in self.files if self.rows or is_address(join(self.base, file))), None)

    @property
    def is_remote(self) -> bool:
        """Whether each image is fetched from a bucket by itself."""
        return self.rows is None and is_address(join(self.base, self.files[0]))


def read_chunks(
    sources: Iterable[str | Path], column: str | None = None, skipped: Skipped | None = None, size: int = CHUNK
) -> Iterator[Chunk]:
    """Yield the images of all sources in chunks, in the order of the sources and of the names in them.

    A source is a folder of images or of Parquet files, an image, a list file (one path or address per line), a Parquet
    file, or the address of any of these. `column` names the column of the images in Parquet files.
    """
    skipped = Skipped() if skipped is None else skipped
    for source in map(str, sources):
        names: Iterable[str] = ()
        tables, base = list[str](), ""
        if source.lower().endswith(LISTS):
            names, base = _listed(source), absolute(parent(source))
        elif is_address(source):
            files = list_files(source)
            top = (file for file in files if file == source or parent(file) == source.rstrip("/"))
            if not (tables := [file for file in top if file.lower().endswith(TABLE)]):
                names = [file for file in files if file == source or is_image_name(file)]
                for file in sorted({*files} - {*names}):
                    skipped.add(file, "not an image file extension")
        elif not (tables := _local_tables(source)):
            names, base = map(str, find_images([source], skipped)), str(Path.cwd())
        yield from (Chunk(tuple(batch), base) for batch in in_batches(names, size))
        for table in tables:
            yield from _table_chunks(table, column, size)


def _listed(source: str) -> list[str]:
    """Return the lines of a list file without those that are empty or begin with #."""
    try:
        text = read_file(source).decode("utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"There is no list of images {source}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{source} is not a text file in UTF-8: expected one path or address per line.") from None
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _local_tables(source: str) -> list[str]:
    """Return the Parquet files that a path is or, as a folder, holds directly."""
    if Path(source).is_dir():
        return sorted(str(path) for path in Path(source).glob(f"*{TABLE}") if path.is_file())
    return [source] if source.lower().endswith(TABLE) else []


def _table_chunks(table: str, column: str | None, size: int) -> Iterator[Chunk]:
    """Yield the rows of a Parquet file whose column holds bytes, or the paths in it.

    Without a name, the first column of bytes is taken (or of structs with bytes, as Hugging Face writes images), else a
    column of text with a usual name such as path. A row without a path is named by its number, which no file can have.
    """
    with _open_table(table) as file:
        schema = file.schema_arrow
        of_bytes = [field.name for field in schema if _holds_bytes(field.type)]
        of_text = [field.name for field in schema if str(field.type) in _TEXT]
        usual = [name for name in PATH_NAMES if name in of_text] + (of_text if len(of_text) == 1 else [])
        chosen = next(iter(of_bytes + usual), None) if column is None else column
        if chosen not in of_bytes + of_text:
            got = ", ".join(f"{field.name} ({field.type})" for field in schema)
            expected = f"paths or bytes in {column!r}" if column else "a column with paths or the bytes of images"
            raise UserError(f"Expected {expected} in {table}, got the columns {got}: name the right one.", "column")
        if chosen in of_text:
            base, batches = absolute(parent(table)), file.iter_batches(columns=[chosen])
            paths = (path for batch in batches for path in batch.column(0).to_pylist())
            names = (path or f"{table}#{row}" for row, path in enumerate(paths))
            yield from (Chunk(tuple(batch), base) for batch in in_batches(names, size))
            return
        groups = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    first = 0
    for group, count in enumerate(groups):
        for numbers in in_batches(range(count), size):
            names_of_rows = tuple(f"{table}#{first + number}" for number in numbers)
            yield Chunk(names_of_rows, rows=Rows(absolute(table), str(chosen), group, tuple(numbers)))
        first += count


def _holds_bytes(kind: Any) -> bool:
    return str(kind) in _BYTES or (str(kind).startswith("struct<") and kind.get_field_index("bytes") >= 0)


def _read_rows(rows: Rows, names: tuple[str, ...]) -> Iterator[TableImage]:
    """Yield the images of the rows under these names; what is damaged in the file becomes the reason of its rows."""
    given, first, wanted, reason = 0, 0, set(rows.numbers), "no image in this row"
    try:
        with _open_table(rows.table) as file:
            for batch in file.iter_batches(_READ, row_groups=[rows.row_group], columns=[rows.column]):
                for value in (value for number, value in enumerate(batch.column(0), first) if number in wanted):
                    content = value.as_py()
                    yield TableImage(names[given], content.get("bytes") if isinstance(content, dict) else content)
                    given += 1
                first += batch.num_rows
                if first > rows.numbers[-1]:
                    return
    except (import_pyarrow().ArrowException, OSError) as error:
        reason = f"the Parquet file cannot be read: {one_line(error)}"
    for name in names[given:]:
        yield TableImage(name, None, reason)


def _open_table(table: str) -> Any:
    """Return an open Parquet file; raise UserError if it is missing or none."""
    pyarrow = import_pyarrow()
    from pyarrow.parquet import ParquetFile

    filesystem, inside = open_storage(table)
    try:
        return ParquetFile(filesystem.open_input_file(inside))
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {table}.") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{table} is not a Parquet file, or damaged ({one_line(error)}).") from None


def is_address(path: str) -> bool:
    """Return whether this is an address such as s3://bucket/folder, not a path."""
    return re.match(r"[a-z][a-z0-9+.-]+://", path) is not None


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
        raise UserError(f"Parquet files and buckets need pyarrow: {install_hint('parquet')}.") from None
    return pyarrow


def open_storage(path: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a path or address, and the path inside it."""
    if not is_address(path):
        return _filesystem(""), absolute(path)
    scheme, _, inside = path.partition("://")
    if scheme in ("http", "https", "ftp"):
        raise UserError(f"Expected a path or the address of a bucket, got {path}: to read it, download it first.")
    if not (bucket := inside.partition("/")[0]):
        raise UserError(f"{path} names no bucket: expected an address such as {scheme}://bucket/folder.")
    return _filesystem(f"{scheme}://{bucket}"), inside.rstrip("/")


@cache
def _filesystem(root: str) -> Any:
    pyarrow = import_pyarrow()
    from pyarrow import fs

    if not root:
        return fs.LocalFileSystem()
    try:
        return fs.FileSystem.from_uri(root)[0]
    except OSError as error:  # the region of a bucket is asked for
        raise StorageUnavailableError(f"{root} cannot be opened: {_reason(error)}") from None
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        scheme = root.partition("://")[0]
    try:
        import fsspec

        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme)))
    except (ImportError, ValueError) as error:
        raise UserError(f"Addresses of the kind {scheme}:// need another package: {error}.") from None


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


def list_files(address: str, recursive: bool = True) -> list[str]:
    """Return the files in a folder of a bucket, sorted by name, or the one that the address names."""
    filesystem, inside = open_storage(address)
    from pyarrow import fs

    try:
        infos = filesystem.get_file_info(fs.FileSelector(inside, recursive=recursive))
    except (FileNotFoundError, NotADirectoryError):
        infos = [filesystem.get_file_info(inside)]
    except OSError as error:
        raise StorageUnavailableError(f"{address} cannot be listed: {_reason(error)}") from None
    if any(info.type == fs.FileType.NotFound for info in infos):
        raise NotFoundError(f"There is no file or folder {address}.")
    scheme = address.partition("://")[0]
    return sorted(f"{scheme}://{info.path}" for info in infos if info.type == fs.FileType.File)


def _reason(error: OSError) -> str:
    """Return what a store says, on one line."""
    return " ".join((error.strerror or str(error)).split())
