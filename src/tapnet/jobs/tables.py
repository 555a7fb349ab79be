"""Parquet files of images: the bytes of image files in a column, or their paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tapnet.errors import NotFoundError, UserError
from tapnet.inference.images import ImageFile
from tapnet.jobs import storage
from tapnet.text import one_line

PATH_NAMES = ("path", "file", "filename", "file_name", "file_path", "image_path", "uri", "url")
_READ = 32  # rows read at a time: images are large


@dataclass(frozen=True)
class Rows:
    """Some rows of a row group of a Parquet file, whose column holds the bytes of images."""

    table: str
    column: str
    row_group: int
    numbers: tuple[int, ...]  # in the row group, increasing

    def at(self, places: Sequence[int]) -> Rows:
        """Return the rows at these places only."""
        return Rows(self.table, self.column, self.row_group, tuple(self.numbers[place] for place in places))


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
class TableDescription:
    """A Parquet file, its column of images, and how many rows each of its row groups has."""

    table: str
    column: str
    holds_paths: bool
    row_groups: tuple[int, ...]

    def paths(self) -> Iterator[str]:
        """Yield the paths in the column; a row without one is named by its number, which no file can have."""
        with _open(self.table) as file:
            row = 0
            for batch in file.iter_batches(columns=[self.column]):
                for path in batch.column(0).to_pylist():
                    yield path or f"{self.table}#{row}"
                    row += 1


def describe_table(table: str, column: str | None = None) -> TableDescription:
    """Return where the images of a Parquet file are; raise UserError if it has no such column.

    Without a name, the first column of bytes is taken (or of structs with bytes, as Hugging Face writes images), else a
    column of text with a usual name such as path.
    """
    with _open(table) as file:
        schema = file.schema_arrow
        groups = tuple(file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups))
    bytes_columns = [field.name for field in schema if _holds_bytes(field.type)]
    text_columns = [field.name for field in schema if _holds_text(field.type)]
    if column is None:
        usual = [name for name in PATH_NAMES if name in text_columns]
        column = next(iter([*bytes_columns, *usual, *(text_columns if len(text_columns) == 1 else [])]), None)
    if column is None or column not in (*bytes_columns, *text_columns):
        got = ", ".join(f"{field.name} ({field.type})" for field in schema)
        expected = "a column with paths or the bytes of images" if column is None else f"paths or bytes in {column!r}"
        raise UserError(f"Expected {expected} in {table}, got the columns {got}: name the right one.", "column")
    return TableDescription(table, column, column in text_columns, groups)


def read_rows(rows: Rows, names: Sequence[str]) -> Iterator[TableImage]:
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
    with _open(rows.table) as file:
        for batch in file.iter_batches(_READ, row_groups=[rows.row_group], columns=[rows.column]):
            for number, value in enumerate(batch.column(0), first):
                if number in wanted:
                    content = value.as_py()
                    yield content.get("bytes") if isinstance(content, dict) else content
            first += batch.num_rows
            if first > rows.numbers[-1]:
                return


def _open(table: str) -> Any:
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


def _holds_bytes(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return any(kind.field(place).name == "bytes" for place in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _holds_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
