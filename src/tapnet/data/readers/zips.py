"""Reads the members of a zip one after another, without a record of each in memory.

Python's `zipfile` keeps over half a kilobyte for every member: half a gigabyte for tieredImageNet.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
LARGE = 0xFFFFFFFF  # in place of a number that is in the 64-bit record
_ENTRY, _LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_END, _END64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")


class Member(NamedTuple):
    """One entry of the central directory."""

    name: str
    encrypted: bool
    method: int
    crc: int
    packed: int
    size: int
    offset: int


def members(path: Path) -> Iterator[Member]:
    """Yield every file of the archive, in the order of its directory."""
    with path.open("rb") as file:
        count, shift = _find_directory(file)
        for _ in range(count):
            fields = _ENTRY.unpack(_read_exactly(file, _ENTRY.size))
            if fields[0] != b"PK\x01\x02":
                raise zipfile.BadZipFile("its directory is damaged")
            flags, method, crc = fields[3], fields[4], fields[7]
            raw, extra = _read_exactly(file, fields[10]), _read_exactly(file, fields[11])
            _read_exactly(file, fields[12])
            packed, size, offset = _wide(fields[8], fields[9], fields[16], extra)
            name = raw.decode("utf-8" if flags & 0x800 else "cp437", errors="replace")
            if not name.endswith("/"):
                yield Member(name, bool(flags & 1), method, crc, packed, size, offset + shift)


def content(file: IO[bytes], member: Member) -> bytes:
    """Return the bytes of one member of the archive `file`, checked."""
    if member.encrypted:
        raise zipfile.BadZipFile("it is encrypted")
    file.seek(member.offset)
    fields = _LOCAL.unpack(_read_exactly(file, _LOCAL.size))
    file.seek(fields[9] + fields[10], 1)
    packed = _read_exactly(file, member.packed)
    if member.method == DEFLATED:
        packed = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, member.size + 1)
    elif member.method != STORED:
        raise zipfile.BadZipFile(f"it is packed by method {member.method}, where stored and deflated can be read")
    if len(packed) != member.size or zlib.crc32(packed) != member.crc:
        raise zipfile.BadZipFile("its checksum is wrong")
    return packed


def _find_directory(file: IO[bytes]) -> tuple[int, int]:
    """Move to the first entry; return how many there are, and the number of bytes in front of the archive."""
    length = file.seek(0, 2)
    file.seek(max(0, length - _END.size - 0xFFFF))
    tail_start, tail = file.tell(), file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < _END.size:
        raise zipfile.BadZipFile("its end is missing")
    end = _END.unpack_from(tail, place)
    count, size, offset, stop = end[4], end[5], end[6], tail_start + place
    if place >= _LOCATOR.size and tail[place - _LOCATOR.size :][:4] == b"PK\x06\x07":
        stop -= _LOCATOR.size + _END64.size
        file.seek(stop)
        wide = _END64.unpack(_read_exactly(file, _END64.size))
        count, size, offset = wide[7], wide[8], wide[9]
    file.seek(max(0, stop - size))
    return count, stop - size - offset


def _wide(packed: int, size: int, offset: int, extra: bytes) -> tuple[int, int, int]:
    """Return sizes and offset, from the 64-bit record of the extra field if they are too large for 32 bits."""
    numbers: list[int] = []
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1:
            numbers = list(struct.unpack_from(f"<{length // 8}Q", extra, 4))
        extra = extra[4 + length :]
    found = [numbers.pop(0) if each == LARGE and numbers else each for each in (size, packed, offset)]
    return found[1], found[0], found[2]


def _read_exactly(file: IO[bytes], count: int) -> bytes:
    found = file.read(count)
    if len(found) != count:
        raise zipfile.BadZipFile("it is cut off")
    return found
