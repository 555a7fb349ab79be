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
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import IO

from tapnet.data.source import LARGEST_FILE, Raw, Unreadable
from tapnet.errors import NotFoundError, UserError

INNER = re.compile(r"(^|/)(n\d{8}\.tar|images_(background|evaluation)\.zip)$")
HIDDEN = re.compile(r"(^|/)(\.|__MACOSX(/|$))")
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


class FileTree(ABC):
    """Files under one path, named by their relative path with `/`; hidden files are left out."""

    def __init__(self, path: Path, focus: str | None = None) -> None:
        self.path = path
        self.focus = focus  # the file that the user named, if the dataset has others beside it
        self.empty: list[str] = []  # empty folders, known once `names` is; archives have none

    @cached_property
    def names(self) -> list[str]:
        """Every file, sorted; raise UserError for a name that leads out of the tree."""
        return sorted(set(self._list()))

    @abstractmethod
    def _list(self) -> Iterator[str]: ...

    @abstractmethod
    def read(self, names: Collection[str]) -> Iterator[tuple[str, Raw]]:
        """Yield the bytes of each of these files once, in the cheapest order."""

    def version(self, name: str) -> int:  # noqa: ARG002
        """Return a number that changes when the file that holds `name` does; of an archive the same for all names."""
        return self._version_of_all

    @cached_property
    def _version_of_all(self) -> int:
        return _version([self.path])

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Return one large file as a seekable stream."""

    def read_text(self, name: str) -> str:
        """Return a list in one file as text; raise UserError if it is too large for a list."""
        with self.open(name) as stream:
            content = bounded_bytes(stream)
        if isinstance(content, Unreadable):
            raise UserError(f"{name} in {self.path} has {content.reason}: it is not read.")
        return content.decode("utf-8-sig", errors="replace")


class Folder(FileTree):
    """A directory; links are followed, each directory once."""

    def _list(self) -> Iterator[str]:
        for name in self._files():
            if INNER.search(name):
                prefix = self._prefix(name)
                yield from (prefix + inner for inner in open_file_tree(self.path / name).names)
            else:
                yield name

    def _files(self) -> Iterator[str]:
        seen: set[str] = set()
        for folder, folders, files in os.walk(self.path, followlinks=True, onerror=_raise):
            if (real := os.path.realpath(folder)) in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not HIDDEN.search(name))
            inside = Path(folder).relative_to(self.path)
            if not folders and all(map(HIDDEN.search, files)):
                self.empty.append(inside.as_posix())
            for name in files:
                # an archive beside the folder that was extracted from it would give every image twice
                if not HIDDEN.search(name) and not (INNER.search(name) and name.rpartition(".")[0] in folders):
                    yield (inside / name).as_posix()

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Raw]]:
        archived: dict[str, set[str]] = {}
        for name in names:
            archive = self._archive(name.rpartition("/")[0])
            if archive is None:
                yield name, file_bytes(self.path / name)
            else:
                archived.setdefault(archive, set()).add(name.removeprefix(self._prefix(archive)))
        for archive, members in archived.items():
            prefix = self._prefix(archive)
            yield from ((prefix + name, raw) for name, raw in open_file_tree(self.path / archive).read(members))

    def version(self, name: str) -> int:
        path = self.path / (self._archive(name.rpartition("/")[0]) or name)
        while path != self.path and not path.is_file():  # an image of an array is named by its file and row
            path = path.parent
        return self._version_of_all if path == self.path else _version([path])

    @cached_property
    def _version_of_all(self) -> int:
        return _version(path for path in map(self.path.joinpath, self.names) if path.is_file())

    @staticmethod
    def _prefix(archive: str) -> str:
        return archive.rpartition(".")[0] + "/"

    @cache  # noqa: B019  # a tree lives as long as one preparation
    def _archive(self, folder: str) -> str | None:
        """Return the archive that this folder of the listing is inside of, or None."""
        if not folder or (self.path / folder).is_dir():
            return None
        found = (name for name in (f"{folder}.tar", f"{folder}.zip") if INNER.search(name))
        return next((name for name in found if (self.path / name).is_file()), self._archive(folder.rpartition("/")[0]))

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        if not (self.path / name).is_file():
            raise UserError(f"{self.path / name} is not a regular file: it is not read.")
        with (self.path / name).open("rb") as stream:
            yield stream


class Zip(FileTree):
    """A zip archive."""

    def _list(self) -> Iterator[str]:
        with self._opened() as (_, members):
            yield from (name for name in members if not HIDDEN.search(name))

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Raw]]:
        with self._opened() as (archive, members):
            yield from ((name, zip_bytes(archive, info)) for name, info in members.items() if name in names)

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        with self._opened() as (archive, members):
            check_not_encrypted(members[name], self.path)
            if unbounded := unbounded_packing(members[name]):
                raise UserError(f"{name} in {self.path} is {unbounded.reason}: make the archive again.")
            with archive.open(members[name]) as stream:
                yield stream

    @contextmanager
    def _opened(self) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
        """Yield the archive and its files by name."""
        with clear_damage_errors(self.path), zipfile.ZipFile(self.path) as archive:
            files = (info for info in archive.infolist() if not info.filename.endswith("/"))
            yield archive, {_checked_name(info.filename, self.path): info for info in files}


class Tar(FileTree):
    """A tar archive, plain or compressed, read from front to back."""

    def _list(self) -> Iterator[str]:
        return (name for name, _ in self._members())

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Raw]]:
        with clear_damage_errors(self.path):
            yield from ((name, tar_bytes(stream)) for name, stream in self._members() if name in names)

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        with clear_damage_errors(self.path), closing(self._members()) as members:
            yield next(stream for found, stream in members if found == name)

    def _members(self) -> Generator[tuple[str, IO[bytes]]]:
        with clear_damage_errors(self.path), tarfile.open(self.path) as archive:
            for name, stream in _walk(archive, self.path):
                if not INNER.search(name):
                    yield name, stream
                    continue
                with tarfile.open(fileobj=stream, mode="r:") as inner:
                    prefix = name.removesuffix(".tar")
                    yield from ((f"{prefix}/{part}", found) for part, found in _walk(inner, self.path))


def open_file_tree(path: Path) -> FileTree:
    """Return the tree at a path: a directory, a zip or a tar, by its content and not by its name."""
    if not path.exists():
        raise NotFoundError(f"There is nothing at {path}: give the folder or archive that holds the images.")
    if path.is_dir():
        return Folder(path)
    if path.is_file() and zipfile.is_zipfile(path):
        return Zip(path)
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(6)
        # for tarfile a cut-off gzip is not a tar, so the first bytes decide for compressed ones
        if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")) or tarfile.is_tarfile(path):
            return Tar(path)
    raise UserError(f"{path} is not a folder, zip or tar, or is truncated: give one of these.")


def _checked_name(name: str, archive: Path) -> str:
    clean = name.replace("\\", "/").removeprefix("./")
    if clean.startswith("/") or re.match(r"[A-Za-z]:", clean) or ".." in clean.split("/"):
        raise UserError(f"{archive} holds the unsafe path {name!r}, which leads out of it: it is not read.")
    return clean


def _walk(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # else every header stays in memory, a kilobyte per file
        name = _checked_name(member.name, path)
        stream = archive.extractfile(member) if member.isfile() else None
        if stream is not None and not HIDDEN.search(name):
            yield name, stream


def _version(paths: Iterable[Path]) -> int:
    """Return a number that changes with the files; the time of a change is harder to set back than that of a write."""
    states = ((path, path.stat()) for path in paths)
    found = [(str(path), state.st_size, state.st_mtime_ns, state.st_ctime_ns) for path, state in states]
    return int.from_bytes(hashlib.blake2b(repr(found).encode(), digest_size=8).digest(), "little")


def _raise(error: OSError) -> None:
    """Raise: a folder that cannot be listed would otherwise be silently missing."""
    raise error
