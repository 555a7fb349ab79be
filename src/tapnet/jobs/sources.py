"""Images to predict, wherever they are, as chunks of a bounded size: folders, list files, Parquet files and buckets.

The order and the size of the chunks depend on the source alone, so that a job that was killed finds them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from tapnet.data.preprocessing import is_image_name
from tapnet.errors import NotFoundError, UserError
from tapnet.inference.folders import Skipped, find_images
from tapnet.inference.images import ImageInput, in_batches
from tapnet.jobs import storage
from tapnet.jobs.storage import StoredImage, is_address
from tapnet.jobs.tables import Rows, describe_table, read_rows

CHUNK = 256  # images of one part file
LISTS, TABLE = (".txt", ".list", ".lst"), ".parquet"


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
        if len(kept) == len(self.files):
            return self
        rows = None if self.rows is None else self.rows.at(kept)
        return Chunk(tuple(self.files[place] for place in kept), self.base, rows)

    def images(self) -> Iterator[ImageInput]:
        """Yield the images in the order of `files`; nothing is read before it is used, or a few rows ahead."""
        if self.rows is not None:
            yield from read_rows(self.rows, self.files)
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


def local_path(image: ImageInput) -> Path:
    """Return the path of an image of `Chunk.images` that is a file of this machine."""
    return Path(image.location if isinstance(image, StoredImage) else str(image))


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
            continue
        files = _in_bucket(source) if is_address(source) else []
        if tables := _tables(source, files):
            for table in tables:
                yield from _table_chunks(table, column, size)
        elif is_address(source):
            yield from _file_chunks(_images(files, source, skipped), "", size)
        else:
            yield from _file_chunks(map(str, find_images([source], skipped)), str(Path.cwd()), size)


def _in_bucket(source: str) -> list[str]:
    """Return the files below an address, or the one that it names."""
    return [source] if storage.is_file(source) else storage.list_files(source)


def _tables(source: str, files: list[str]) -> list[str]:
    """Return the Parquet files that the source is or, as a folder, holds directly; `files` are those of a bucket."""
    if is_address(source):
        tables = [file for file in files if file == source or storage.parent(file) == source.rstrip("/")]
    elif Path(source).is_dir():
        tables = sorted(str(path) for path in Path(source).glob(f"*{TABLE}") if path.is_file())
    else:
        tables = [source]
    return [table for table in tables if table.lower().endswith(TABLE)]


def _file_chunks(names: Iterable[str], base: str, size: int) -> Iterator[Chunk]:
    return (Chunk(tuple(batch), base) for batch in in_batches(names, size))


def _table_chunks(table: str, column: str | None, size: int) -> Iterator[Chunk]:
    described = describe_table(table, column)
    if described.holds_paths:
        yield from _file_chunks(described.paths(), storage.absolute(storage.parent(table)), size)
        return
    first = 0
    for group, count in enumerate(described.row_groups):
        for begin in range(0, count, size):
            numbers = range(begin, min(begin + size, count))
            names = tuple(f"{table}#{first + number}" for number in numbers)
            yield Chunk(names, rows=Rows(storage.absolute(table), described.column, group, tuple(numbers)))
        first += count


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
