"""Folders, zips and tars as trees of files, listed once and read in the cheapest order. Nothing is extracted.

Archives inside (the ILSVRC tars, one per class; Omniglot's two zips) are read as folders of their names.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from functools import cache, cached_property, partial
from pathlib import Path
from typing import IO, NamedTuple

from tapnet.data.preprocessing import LARGEST_FILE, Raw, Unreadable
from tapnet.errors import NotFoundError, UserError

INNER = re.compile(r"(^|/)(n\d{8}\.tar|images_(background|evaluation)\.zip)$")
HIDDEN = re.compile(r"(^|/)(\.|__MACOSX(/|$))")
DAMAGES = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, NotImplementedError, UnicodeDecodeError),
)


@contextmanager
def clear_damage_errors(path: Path | str) -> Iterator[None]:
    """Raise UserError for a damaged archive, whatever error its reader raises."""
    try:
        yield
    except DAMAGES as error:
        raise UserError(f"{path} is damaged or cut off ({error}): fetch or make it again.") from None


class Entry(NamedTuple):
    """A file of a tree; one of an archive can be opened until the next one is listed."""

    name: str  # its path below the tree, with `/`
    archive: Path | None  # that holds it, if it is not a file of its own
    size: int | None  # None: as the file system says
    open: Callable[[], IO[bytes]]

    def read(self) -> Raw:
        """Return the content, or the reason why it cannot be read."""
        try:
            with self.open() as stream:
                size = os.fstat(stream.fileno()).st_size if self.size is None else self.size
                if size > LARGEST_FILE:
                    return Unreadable(f"{size:,} bytes, more than {LARGEST_FILE:,}")
                return stream.read(size)  # a zip's `read()` unpacks up to a gigabyte before it looks at the size
        except DAMAGES as error:
            return Unreadable(f"damaged in the archive: {error}")
        except (RuntimeError, OSError, ValueError) as error:  # encrypted; not there; a table may name a zero byte
            return Unreadable(getattr(error, "strerror", None) or str(error))


class FileTree:
    """The files below a path, a folder or an archive; hidden ones are left out."""

    def __init__(self, path: Path, focus: str | None = None) -> None:
        self.path = path
        self.focus = focus  # the file that the user named, if the dataset has others beside it
        self.known: Collection[str] = ()  # the classes of the dataset that is expected in it, if they are published
        self.log: Callable[[str], None] = lambda _: None
        self._stamp = cache(_stamp)

    @cached_property
    def names(self) -> list[str]:
        """Every file, sorted; raise UserError for a name that leads out of the tree."""
        return sorted(self._archives)

    @cached_property
    def _archives(self) -> dict[str, Path | None]:
        return {entry.name: entry.archive for entry in _walk(self.path)}

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Raw]]:
        """Yield the content of each of these files once, in the cheapest order, or the reason why not."""
        missing = set(names)
        for entry in _walk(self.path):
            if entry.name in missing:
                missing.remove(entry.name)
                yield entry.name, entry.read()
        for name in sorted(missing):  # a table may name a hidden file, or one that is not there
            yield name, self._file(name).read() if self.path.is_dir() else Unreadable("not in the archive")

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Yield one large file as a seekable stream."""
        with clear_damage_errors(self.path), closing(_walk(self.path)) as entries:
            own = self.path.is_dir() and self._archives.get(name) is None
            entry = self._file(name) if own else next(entry for entry in entries if entry.name == name)
            try:
                stream = entry.open()
            except (RuntimeError, OSError) as error:
                reason = getattr(error, "strerror", None) or error
                raise UserError(f"{name} in {self.path} cannot be read ({reason}).") from None
            with stream:
                yield stream

    def read_text(self, name: str) -> str:
        """Return a list in one file as text; raise UserError if it is too large for a list."""
        with self.open(name) as stream:
            content = stream.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise UserError(f"{name} in {self.path} has more than {LARGEST_FILE:,} bytes: it is not read.")
        return content.decode("utf-8-sig", errors="replace")

    def version(self, name: str) -> int:
        """Return a number that changes when the file on the disk does that holds this file, or this row of an array."""
        while name and name not in self._archives and not os.path.isfile(self.path / name):  # noqa: PTH113
            name = name.rpartition("/")[0]  # an image of an array is named by its file and row
        return self._stamp(self._archives.get(name) or self.path / name)

    def _file(self, name: str) -> Entry:
        return Entry(name, None, None, partial(_open_regular, self.path / name))


def open_file_tree(path: Path) -> FileTree:
    """Return the tree at a path: a directory, a zip or a tar, by its content and not by its name."""
    if not path.exists():
        raise NotFoundError(f"There is nothing at {path}: give the folder or archive that holds the images.")
    if path.is_dir() or (path.is_file() and _is_archive(path)):
        return FileTree(path)
    raise UserError(f"{path} is not a folder, zip or tar, or is truncated: give one of these.")


def _is_archive(path: Path) -> bool:
    with path.open("rb") as file:  # for tarfile a cut-off gzip is not a tar, so its first bytes decide
        compressed = file.read(6).startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ"))
    return compressed or zipfile.is_zipfile(path) or tarfile.is_tarfile(path)


def _walk(path: Path) -> Generator[Entry]:
    with clear_damage_errors(path):
        if path.is_dir():
            yield from _walk_folder(path)
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for info in archive.infolist():
                    name = _checked_name(info.filename, path)
                    if not info.is_dir() and not HIDDEN.search(name):
                        size = max(info.file_size, info.compress_size)
                        yield Entry(name, path, size, partial(_open_member, archive, info))
        else:
            with tarfile.open(path) as tar:
                yield from _walk_tar(tar, path)


def _walk_folder(path: Path) -> Generator[Entry]:
    """Yield the files below a folder; links are followed, each directory once."""
    seen: set[str] = set()
    for folder, folders, files in os.walk(path, followlinks=True, onerror=_raise):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not HIDDEN.match(name))
        prefix = "" if Path(folder) == path else f"{Path(folder).relative_to(path).as_posix()}/"
        for file in files:
            place = Path(folder, file)
            inner = file.rpartition(".")[0]
            if HIDDEN.match(file):
                continue
            if not INNER.search(file):
                yield Entry(prefix + file, None, None, partial(_open_regular, place))
            elif inner not in folders:  # else it was extracted, and every image would be there twice
                yield from (entry._replace(name=f"{prefix}{inner}/{entry.name}") for entry in _walk(place))


def _walk_tar(archive: tarfile.TarFile, path: Path, prefix: str = "") -> Generator[Entry]:
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # else every header stays in memory, a kilobyte per file
        name = prefix + _checked_name(member.name, path)
        if not member.isfile() or HIDDEN.search(name):
            continue
        stream = archive.extractfile(member)
        assert stream is not None
        if INNER.search(name) and not prefix:
            with tarfile.open(fileobj=stream, mode="r:") as inner:
                yield from _walk_tar(inner, path, f"{name.removesuffix('.tar')}/")
        else:
            yield Entry(name, path, member.size, partial(_same, stream))


def _checked_name(name: str, archive: Path) -> str:
    clean = name.replace("\\", "/").removeprefix("./")
    if clean.startswith("/") or re.match(r"[A-Za-z]:", clean) or ".." in clean.split("/"):
        raise UserError(f"{archive} holds the unsafe path {name!r}, which leads out of it: it is not read.")
    return clean


def _open_regular(path: Path) -> IO[bytes]:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
        raise OSError("not a regular file")
    return path.open("rb")


def _open_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # unpacked by zipfile without a limit
        raise OSError(f"packed by method {info.compress_type}, where stored and deflated can be read")
    return archive.open(info)


def _same(stream: IO[bytes]) -> IO[bytes]:
    return stream


def _stamp(path: Path) -> int:
    """Return a number that changes with the file; the time of a change is harder to set back than that of a write."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return 0
    content = repr((str(path), state.st_size, state.st_mtime_ns, state.st_ctime_ns)).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _raise(error: OSError) -> None:
    """Raise: a folder that cannot be listed would otherwise be silently missing."""
    raise error
