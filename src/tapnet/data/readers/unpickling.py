"""A reader of pickles that admits numpy arrays and plain containers, and nothing else.

Whatever a pickle names is replaced by a stand-in of ours before it is called: NumPy's own functions would believe
forged shapes and sizes.
"""

from __future__ import annotations

import codecs
import collections
import math
import pickle
import struct
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

LONG_TEXT = 1 << 24
LARGEST_KEY = 1 << 60  # the hashes of larger whole numbers are easily made equal, and then a dictionary takes hours


class Refused(pickle.UnpicklingError):
    """The pickle asks for something that no dataset needs."""


class _Dtype:
    """A number type named in a pickle. NumPy's own would believe a forged size."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code: str = text(code)
        self.order = ""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = text(state[1])
        self.order = order if order in ("<", ">") else ""

    def make(self) -> np.dtype[Any]:
        made = np.dtype(self.order + self.code) if len(self.code) < 16 else None
        if made is None or made.kind not in "biufSU" or made.itemsize == 0:
            raise Refused(f"an array of {self.code[:16]!r}, where only numbers and text are taken")
        return made


class Array:
    """An array named in a pickle, made when its bytes are read, if they are as many as its shape needs."""

    def __init__(self) -> None:
        self.value: NDArray[Any] | list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        if dtype.code in ("O", "O8", "O4") and isinstance(data, list):
            self.value = data
        else:
            self.value = _array(data, dtype, shape, "F" if fortran else "C")


def _array(
    data: Any, dtype: _Dtype, shape: tuple[int, ...], order: str = "C", axes: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Return the array over the bytes of the file; `order` and `axes` are those of NumPy's `_frombuffer`."""
    if not isinstance(data, bytes | bytearray):
        raise Refused(f"an array made from {type(data).__name__}")
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise Refused("an array whose shape is not a tuple of sizes")
    flat = np.frombuffer(data, dtype.make()) if data else np.empty(0, dtype.make())
    if math.prod(shape) != len(flat):
        raise Refused(f"an array of shape {shape} in {len(data):,} bytes, which cannot hold it")
    array = flat.reshape(shape, order="F" if order == "F" else "C")
    return array if axes is None else array.transpose(axes)


def _no_array(*_: object) -> None:
    raise Refused("an array without its bytes")


def _reconstruct(kind: object, shape: tuple[int, ...], _code: object) -> Array:
    if kind is not _ARRAY_TYPE or tuple(shape) != (0,):
        raise Refused("an array that is not built from its own bytes")
    return Array()


def _scalar(dtype: _Dtype, data: Any) -> Any:
    return _array(data, dtype, (1,))[0].item()


def _encode(content: str | _Latin1, encoding: str) -> bytes | bytearray:
    if encoding not in ("latin1", "latin-1"):
        raise Refused(f"the encoding {encoding!r}")
    return content if isinstance(content, _Latin1) else content.encode("latin1")


def _bytes(*parts: Any) -> bytes | bytearray:
    if not parts:
        return b""
    if isinstance(parts[0], str):
        return _encode(*parts)
    if not isinstance(parts[0], bytes | bytearray):  # a number, or an array of one, would be taken for a length
        raise Refused("bytes that are not in the file")
    return bytes(parts[0])


def _checked_key(key: Any) -> Any:
    """Return the key; raise Refused if it is a container of containers, whose hash may take exponential time."""
    for part in key if isinstance(key, tuple | frozenset) else (key,):
        if not isinstance(part, str | bytes | int | float | None):
            raise Refused("a key that is neither text nor a number")
        if isinstance(part, int) and abs(part) > LARGEST_KEY:
            raise Refused("a key of more than 60 bits")
    return key


def _set(items: Iterable[Any] = ()) -> set[Any]:
    return {_checked_key(item) for item in items}


def _ordered_dict(items: Iterable[tuple[Any, Any]] = ()) -> collections.OrderedDict[Any, Any]:
    return collections.OrderedDict((_checked_key(key), value) for key, value in items)


class _Admitted:
    """A callable that a pickle may name. It refuses state, so that no pickle affects how the next one is read."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise Refused("a change of the reader itself")


_ARRAY_TYPE = _Admitted(_no_array)
_Make = Callable[..., Any]
_PLAIN: dict[str, _Make] = {"set": _set, "frozenset": _set, "bytes": _bytes, "bytearray": _bytes}
_NUMPY: dict[str, _Make] = {
    "multiarray._reconstruct": _reconstruct,
    "multiarray.scalar": _scalar,
    "numeric._frombuffer": _array,
}
_CALLABLES: dict[str, _Make] = {
    "numpy.dtype": _Dtype,
    "collections.OrderedDict": _ordered_dict,
    "_codecs.encode": _encode,
    **{f"numpy.{core}.{name}": make for core in ("core", "_core") for name, make in _NUMPY.items()},
    **{f"{module}.{name}": make for module in ("builtins", "__builtin__") for name, make in _PLAIN.items()},
}
ADMITTED = {"numpy.ndarray": _ARRAY_TYPE, **{name: _Admitted(make) for name, make in _CALLABLES.items()}}


class _Latin1(bytearray):
    """A long text with one byte per character, as Python 3 writes arrays for Python 2."""


class BoundedStream:
    """The file of a pickle; a length that exceeds what is left of it is refused before anything is allocated."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left, self._copies_left = stream, size, size

    def count_copy(self, size: int) -> None:
        """Raise Refused if the copies of what is in the file take more than the file: each part is needed once."""
        self._copies_left -= size
        if self._copies_left < 0:
            raise Refused("more copies of its content than it has content")

    def read(self, count: int) -> bytes:
        if count > self._left:
            raise EOFError("it is cut off")
        self._left -= count
        return self._stream.read(count)

    def readline(self) -> bytes:
        line = self._stream.readline(self._left)
        self._left -= len(line)
        return line


_KEYS = {  # opcodes that hash values: which values of the stack (since its last mark) these are
    pickle.SETITEM: slice(-2, -1),
    pickle.SETITEMS: slice(0, None, 2),
    pickle.DICT: slice(0, None, 2),
    pickle.ADDITEMS: slice(None),
    pickle.FROZENSET: slice(None),
}


def _with_checked_keys(opcode: bytes, keys: slice) -> _Make:
    """Return Python's own method for the opcode, preceded by a check of the values that it hashes."""
    load: _Make = pickle._Unpickler.dispatch[opcode[0]]

    def checked(reader: RestrictedUnpickler) -> None:
        for key in reader.stack[keys]:
            _checked_key(key)
        load(reader)

    return checked


class RestrictedUnpickler(pickle._Unpickler):
    """Python's own unpickler in Python: the faster one in C holds long strings twice while it reads them."""

    read: Callable[[int], bytes]
    append: Callable[[Any], None]
    stack: list[Any]

    def __init__(self, stream: BoundedStream) -> None:
        super().__init__(stream, encoding="bytes")
        self._stream = stream

    def _load_reduce(self) -> None:
        super().load_reduce()  # type: ignore[misc]  # not in the types of the library
        self._count_copy()

    def _instantiate(self, kind: Any, arguments: Any) -> None:
        super()._instantiate(kind, arguments)  # type: ignore[misc]
        self._count_copy()

    def _count_copy(self) -> None:
        if isinstance(self.stack[-1], bytes | bytearray | str | set | dict):
            self._stream.count_copy(len(self.stack[-1]))

    def _load_long_text(self) -> None:
        (left,) = struct.unpack("<I", self.read(4))
        if left < LONG_TEXT:
            self.append(str(self.read(left), "utf-8", "surrogatepass"))
            return
        decoder, found = codecs.getincrementaldecoder("utf-8")(), _Latin1()
        while left:
            piece = self.read(min(left, LONG_TEXT))
            left -= len(piece)
            found += decoder.decode(piece, final=not left).encode("latin1")
        self.append(found)

    def _load_bytes(self) -> None:
        (count,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(min(count, sys.maxsize)))

    dispatch: ClassVar[Any] = {
        **pickle._Unpickler.dispatch,
        pickle.BINUNICODE[0]: _load_long_text,
        pickle.BYTEARRAY8[0]: _load_bytes,
        pickle.REDUCE[0]: _load_reduce,
        **{opcode[0]: _with_checked_keys(opcode, keys) for opcode, keys in _KEYS.items()},
    }

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ADMITTED:
            raise Refused(f"{module}.{name}")
        return ADMITTED[f"{module}.{name}"]


def text(value: Any) -> Any:
    """Return text if the value is bytes, as Python 2 pickled text, else the value."""
    return value.decode("latin1") if isinstance(value, bytes) else value
