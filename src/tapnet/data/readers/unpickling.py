"""A reader of pickles that takes arrays, numbers, text, lists and dictionaries, and runs nothing.

Whatever a pickle names is replaced by a stand-in of ours before it is called: NumPy's own functions would believe
forged shapes and sizes. Sets, other objects and other keys than text and numbers are in no dataset, and are refused.
"""

from __future__ import annotations

import codecs
import math
import pickle
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

LONG_TEXT = 1 << 24
LARGEST_KEY = 1 << 60  # the hashes of larger whole numbers are easily made equal, and then a dictionary takes hours


class RefusedError(pickle.UnpicklingError):
    """The pickle asks for something that no dataset needs."""


class BoundedStream:
    """The file of a pickle; a length that exceeds what is left of it is refused before anything is allocated."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, count: int) -> bytes:
        if count > self._left:
            raise EOFError("it is cut off")
        self._left -= count
        return self._stream.read(count)

    def readline(self) -> bytes:
        line = self._stream.readline(self._left)
        self._left -= len(line)
        return line


class _Dtype:
    """A number type named in a pickle. NumPy's own would believe a forged size."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code: str = as_text(code)
        self.order = ""

    def set_state(self, state: tuple[Any, ...]) -> None:
        order = as_text(state[1])
        self.order = order if order in ("<", ">") else ""

    def make(self, kinds: str = "biufSU") -> np.dtype[Any]:
        made = np.dtype(self.order + self.code) if len(self.code) < 16 else None
        if made is None or made.kind not in kinds or made.itemsize == 0:
            raise RefusedError(f"an array of {self.code[:16]!r}, where only numbers and text are taken")
        return made


class Array:
    """An array named in a pickle, made when its bytes are read, if they are as many as its shape needs."""

    def __init__(self) -> None:
        self.value: NDArray[Any] | list[Any] = []

    def set_state(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        holds_objects = dtype.code in ("O", "O8", "O4") and isinstance(data, list)
        self.value = data if holds_objects else _array(data, dtype, shape, "F" if fortran else "C")


def _array(
    data: Any, dtype: _Dtype, shape: tuple[int, ...], order: str = "C", axes: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Return the array over the bytes of the file; `order` and `axes` are those of NumPy's `_frombuffer`."""
    if not isinstance(data, bytes | bytearray):
        raise RefusedError(f"an array made from {type(data).__name__}")
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise RefusedError("an array whose shape is not a tuple of sizes")
    flat = np.frombuffer(data, dtype.make()) if data else np.empty(0, dtype.make())
    if math.prod(shape) != len(flat):
        raise RefusedError(f"an array of shape {shape} in {len(data):,} bytes, which cannot hold it")
    array = flat.reshape(shape, order="F" if order == "F" else "C")
    return array if axes is None else array.transpose(axes)


def _array_type(*_: object) -> None:
    raise RefusedError("an array without its bytes")


def _reconstruct(kind: object, shape: tuple[int, ...], _code: object) -> Array:
    if kind is not _array_type or tuple(shape) != (0,):
        raise RefusedError("an array that is not built from its own bytes")
    return Array()


def _empty(make: Callable[[], Any], *content: object) -> Any:
    """Return empty bytes or an empty dictionary; a number in place of bytes would be taken for a length."""
    if content:
        raise RefusedError(f"{make.__name__} made from something else")
    return make()


class _Latin1(bytearray):
    """A long text with one byte per character, as Python 3 writes arrays for Python 2."""


_ADMITTED: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": _array_type,
    "numpy.dtype": _Dtype,
    "collections.OrderedDict": partial(_empty, dict),
    "builtins.bytes": partial(_empty, bytes),
    "__builtin__.bytes": partial(_empty, bytes),
}
for _core in ("numpy.core", "numpy._core"):
    _ADMITTED |= {
        f"{_core}.multiarray._reconstruct": _reconstruct,
        f"{_core}.multiarray.scalar": lambda dtype, data: np.frombuffer(data, dtype.make("biuf"))[0].item(),
        f"{_core}.numeric._frombuffer": _array,
    }

_REFUSED = b"\x8f\x90\x91" + b"io\x81\x92"  # opcodes that make sets, and objects


def _refuse(_reader: RestrictedUnpickler) -> None:
    raise RefusedError("a set or an object")


def _with_checked_keys(opcode: bytes, keys: slice) -> Callable[[RestrictedUnpickler], None]:
    """Return Python's own method for an opcode that fills a dictionary, after a check of the keys on the stack."""
    load: Callable[..., None] = pickle._Unpickler.dispatch[opcode[0]]

    def load_checked(reader: RestrictedUnpickler) -> None:
        for key in reader.stack[keys]:
            if not isinstance(key, str | bytes | int) or (isinstance(key, int) and abs(key) > LARGEST_KEY):
                raise RefusedError("a key that is neither text nor a number of at most 60 bits")
        load(reader)

    return load_checked


class RestrictedUnpickler(pickle._Unpickler):
    """Python's own unpickler in Python: the faster one in C holds long strings twice while it reads them."""

    read: Callable[[int], bytes]
    append: Callable[[Any], None]
    stack: list[Any]

    def __init__(self, stream: IO[bytes], size: int) -> None:
        super().__init__(BoundedStream(stream, size), encoding="bytes")
        self._copies_left = size

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" == "_codecs.encode":
            return self._encode
        if stand_in := _ADMITTED.get(f"{module}.{name}"):
            return stand_in
        raise RefusedError(f"{module}.{name}")

    def _encode(self, content: str | _Latin1, encoding: str) -> bytes | bytearray:
        """Return text as the bytes that it stands for: so Python 3 writes bytes for Python 2."""
        if encoding not in ("latin1", "latin-1"):
            raise RefusedError(f"the encoding {encoding!r}")
        if isinstance(content, _Latin1):
            return content
        self._copies_left -= len(content)
        if self._copies_left < 0:
            raise RefusedError("more copies of its content than it has content")
        return content.encode("latin1")

    def _load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Array | _Dtype):  # else one pickle could change how the next is read
            raise RefusedError("a change of the reader itself")
        self.stack[-1].set_state(state)

    def _load_long_text(self) -> None:
        (left,) = struct.unpack("<I", self.read(4))
        if left < LONG_TEXT:
            self.append(str(self.read(left), "utf-8", "surrogatepass"))
            return
        decoder, text = codecs.getincrementaldecoder("utf-8")(), _Latin1()
        while left:
            piece = self.read(min(left, LONG_TEXT))
            left -= len(piece)
            text += decoder.decode(piece, final=not left).encode("latin1")
        self.append(text)

    def _load_bytes(self) -> None:
        (count,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(min(count, sys.maxsize)))

    dispatch: ClassVar[Any] = {
        **pickle._Unpickler.dispatch,
        pickle.BINUNICODE[0]: _load_long_text,
        pickle.BYTEARRAY8[0]: _load_bytes,
        pickle.BUILD[0]: _load_build,
        pickle.SETITEM[0]: _with_checked_keys(pickle.SETITEM, slice(-2, -1)),
        **{code[0]: _with_checked_keys(code, slice(0, None, 2)) for code in (pickle.SETITEMS, pickle.DICT)},
        **dict.fromkeys(_REFUSED, _refuse),
    }


def as_text(value: Any) -> Any:
    """Return text if the value is bytes, as Python 2 pickled text, else the value."""
    return value.decode("latin1") if isinstance(value, bytes) else value
