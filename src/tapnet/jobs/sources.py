"""Images to predict, wherever they are, as chunks of a bounded size: folders, list files, Parquet files and buckets.

The order and the size of the chunks depend on the source alone, so that a job that was killed finds them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tapnet.data.preprocessing import is_image_name
from tapnet.errors import NotFoundError, UserError
from tapnet.inference.folders import Skipped, find_images
from tapnet.inference.images import ImageFile, ImageInput, in_batches
from tapnet.jobs import storage
from tapnet.jobs.storage import StoredImage, is_address
from tapnet.text import one_line

CHUNK = 256  # images of one part file
LISTS, TABLE = (".txt", ".list", ".lst"), ".parquet"
PATH_NAMES = ("path", "file", "filename", "file_name", "file_path", "image_path", "uri", "url")
_READ = 32  # rows of a Parquet file read at a time: images are large


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
class Chunk:
    """Some images by name, and where to read them: files below `base`, or the `rows` of a Parquet file."""

    files: tuple[str, ...]  # as they are called in the output
    base: str = ""  # the folder of names that are relative
    rows: Rows | None = None

    def __len__(self) -> int:
        return len(self.files)

    def without(self, done: Set[str]) -> Chunk:
        """Return the chunk without the images of these names, as they are stored, and each of the others once."""
        places = {storage.stored_name(file): place for place, file in reversed([*enumerate(self.files)])}
        kept = sorted(place for name, place in places.items() if name not in done)
        rows = self.rows and replace(self.rows, numbers=tuple(self.rows.numbers[place] for place in kept))
        return Chunk(tuple(self.files[place] for place in kept), self.base, rows)

    def images(self) -> Iterator[ImageInput]:
        """Yield the images in the order of `files`; nothing is read before it is used, or a few rows ahead."""
        if self.rows is not None:
            yield from _read_rows(self.rows, self.files)
            return
        for file in self.files:
            location = storage.join(self.base, file)
            is_path = not is_address(file) and location == storage.absolute(file)
            yield Path(file) if is_path else StoredImage(file, location)

    def not_local(self) -> str | None:
        """Return the name of an image in a bucket or in a row of a table, if there is one."""
        if self.rows is not None:
            return self.files[0]
        return next((file for file in self.files if is_address(storage.join(self.base, file))), None)

    @property
    def is_remote(self) -> bool:
        """Whether each image is fetched from a bucket by itself."""
        return self.rows is None and is_address(storage.join(self.base, self.files[0]))


def read_chunks(
    sources: Iterable[str | Path], column: str | None = None, skipped: Skipped | None = None, size: int = CHUNK
) -> Iterator[Chunk]:
    """Yield the images of all sources in chunks, in the order of the sources and of the names in them.

    A source is a folder of images or of Parquet files, an image, a list file (one path or address per line), a Parquet
    file, or the address of any of these. `column` names the column of the images in Parquet files. Raise UserError if a
    source does not exist or holds nothing of the kind.
    """
    skipped = Skipped() if skipped is None else skipped
    for source in map(str, sources):
        if source.lower().endswith(LISTS):
            yield from _file_chunks(_listed(source), storage.absolute(storage.parent(source)), size)
        elif is_address(source):
            files = [source] if storage.is_file(source) else storage.list_files(source)
            top = (file for file in files if file == source or storage.parent(file) == source.rstrip("/"))
            if tables := [file for file in top if file.lower().endswith(TABLE)]:
                for table in tables:
                    yield from _table_chunks(table, column, size)
            else:
                yield from _file_chunks(_images(files, source, skipped), "", size)
        elif tables := _local_tables(source):
            for table in tables:
                yield from _table_chunks(table, column, size)
        else:
            yield from _file_chunks(map(str, find_images([source], skipped)), str(Path.cwd()), size)


def _file_chunks(names: Iterable[str], base: str, size: int) -> Iterator[Chunk]:
    return (Chunk(tuple(batch), base) for batch in in_batches(names, size))


def _listed(source: str) -> Iterator[str]:
    """Yield the lines of a list file; empty ones and those that begin with # are left out."""
    try:
        text = storage.read_file(source).decode("utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"There is no list of images {source}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{source} is not a text file in UTF-8: expected one path or address per line.") from None
    lines = (line.strip() for line in text.splitlines())
    return (line for line in lines if line and not line.startswith("#"))


def _images(files: Iterable[str], source: str, skipped: Skipped) -> Iterator[str]:
    """Yield the files that are images by their names, and the one that is named itself."""
    for file in files:
        if file == source or is_image_name(file):
            yield file
        else:
            skipped.add(file, "no image by its ending")


def _local_tables(source: str) -> list[str]:
    """Return the Parquet files that a path is or, as a folder, holds directly."""
    if Path(source).is_dir():
        return sorted(str(path) for path in Path(source).glob(f"*{TABLE}") if path.is_file())
    return [source] if source.lower().endswith(TABLE) else []


def _table_chunks(table: str, column: str | None, size: int) -> Iterator[Chunk]:
    """Yield the rows of a Parquet file whose column holds bytes, or the paths in it."""
    with _open_table(table) as file:
        column, holds_paths = _image_column(table, file.schema_arrow, column)
        groups = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    if holds_paths:
        yield from _file_chunks(_paths(table, column), storage.absolute(storage.parent(table)), size)
        return
    first = 0
    for group, count in enumerate(groups):
        for numbers in in_batches(range(count), size):
            names = tuple(f"{table}#{first + number}" for number in numbers)
            yield Chunk(names, rows=Rows(storage.absolute(table), column, group, tuple(numbers)))
        first += count


def _image_column(table: str, schema: Any, column: str | None) -> tuple[str, bool]:
    """Return the column of the images, and whether it holds paths; raise UserError if there is no such column.

    Without a name, the first column of bytes is taken (or of structs with bytes, as Hugging Face writes images), else a
    column of text with a usual name such as path.
    """
    from pyarrow import types

    def holds_bytes(kind: Any) -> Any:
        if types.is_struct(kind):
            return any(kind.field(place).name == "bytes" for place in range(kind.num_fields))
        return types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)

    def holds_text(kind: Any) -> Any:
        return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)

    bytes_columns = [field.name for field in schema if holds_bytes(field.type)]
    text_columns = [field.name for field in schema if holds_text(field.type)]
    usual = [name for name in PATH_NAMES if name in text_columns]
    choices = [*bytes_columns, *usual, *(text_columns if len(text_columns) == 1 else [])]
    chosen = next(iter(choices), None) if column is None else column
    if chosen is None or chosen not in (*bytes_columns, *text_columns):
        got = ", ".join(f"{field.name} ({field.type})" for field in schema)
        expected = "a column with paths or the bytes of images" if column is None else f"paths or bytes in {column!r}"
        raise UserError(f"Expected {expected} in {table}, got the columns {got}: name the right one.", "column")
    return chosen, chosen in text_columns


def _paths(table: str, column: str) -> Iterator[str]:
    """Yield the paths in a column; a row without one is named by its number, which no file can have."""
    with _open_table(table) as file:
        values = (path for batch in file.iter_batches(columns=[column]) for path in batch.column(0).to_pylist())
        yield from (path or f"{table}#{row}" for row, path in enumerate(values))


def _read_rows(rows: Rows, names: tuple[str, ...]) -> Iterator[TableImage]:
    """Yield the images of the rows under these names; what is damaged in the file becomes the reason of its rows."""
    given, reason = 0, "no image in this row"
    try:
        for content in _contents(rows):
            yield TableImage(names[given], content)
            given += 1
    except (storage.import_pyarrow().ArrowException, OSError) as error:
        reason = f"the Parquet file cannot be read: {one_line(error)}"
    for name in names[given:]:
        yield TableImage(name, None, reason)


def _contents(rows: Rows) -> Iterator[bytes | None]:
    wanted, first = set(rows.numbers), 0
    with _open_table(rows.table) as file:
        for batch in file.iter_batches(_READ, row_groups=[rows.row_group], columns=[rows.column]):
            for number, value in enumerate(batch.column(0), first):
                if number in wanted:
                    content = value.as_py()
                    yield content.get("bytes") if isinstance(content, dict) else content
            first += batch.num_rows
            if first > rows.numbers[-1]:
                return


def _open_table(table: str) -> Any:
    """Return an open Parquet file; raise UserError if it is missing or none."""
    arrow = storage.import_pyarrow()
    from pyarrow.parquet import ParquetFile

    filesystem, inside = storage.open_storage(table)
    try:
        return ParquetFile(filesystem.open_input_file(inside))
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {table}.") from None
    except (arrow.ArrowException, OSError) as error:
        raise UserError(f"{table} is not a Parquet file, or damaged ({one_line(error)}).") from None
