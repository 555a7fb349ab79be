"""Pickles read without trust: numpy arrays and plain containers come out, anything else is refused before it runs."""

from __future__ import annotations

import codecs
import collections
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

HEADROOM = 500_000_000


class Refused(pickle.UnpicklingError):
    """The pickle wants something that no dataset needs."""


class _Dtype:
    """A number type named in a pickle. NumPy's own would believe a forged size."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code: str = text(code)
        self.order = ""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = text(state[1])
        self.order = order if order in ("<", ">") else ""

    def make(self) -> np.dtype[Any]:
        made = np.dtype(self.order + self.code)
        if made.kind not in "biufSU" or made.itemsize == 0:
            raise Refused(f"an array of {self.code!r}, where only numbers and text are taken")
        return made


class _Array:
    """An array named in a pickle; it becomes one when its bytes are there and are exactly as many as its shape says."""

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
    """The array over the bytes of the file; `order` and `axes` are as NumPy's own function for it takes them."""
    raw = data.encode("latin1") if isinstance(data, str) else data
    if not isinstance(raw, bytes | bytearray):
        raise Refused(f"an array made from {type(raw).__name__}")
    flat = np.frombuffer(raw, dtype.make()) if raw else np.empty(0, dtype.make())
    wanted = 1
    for side in shape:
        wanted *= side
    if min(shape, default=0) < 0 or wanted != len(flat):
        raise Refused(f"an array of shape {shape} in {len(raw):,} bytes, which cannot hold it")
    array = flat.reshape(shape, order="F" if order == "F" else "C")
    return array if axes is None else array.transpose(axes)


def _no_array(*_: object) -> None:
    raise Refused("an array without its bytes")


def _reconstruct(kind: object, shape: tuple[int, ...], _code: object) -> _Array:
    if kind is not _ARRAY_TYPE or tuple(shape) != (0,):
        raise Refused("an array that is not built from its own bytes")
    return _Array()


def _scalar(dtype: _Dtype, data: Any) -> Any:
    return _array(data, dtype, (1,))[0].item()


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise Refused(f"the encoding {encoding!r}")
    return codecs.latin_1_encode(text)[0]


def _bytes(*parts: Any) -> bytes:
    if not parts:
        return b""
    if isinstance(parts[0], int):
        raise Refused("bytes that are not in the file")
    return _encode(*parts) if isinstance(parts[0], str) else bytes(parts[0])


class _Admitted:
    """A callable that a pickle may name. It cannot be given state, so that no pickle alters what the next one meets."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise Refused("a change of the reader itself")


_ARRAY_TYPE = _Admitted(_no_array)
_Make = Callable[..., Any]
_PLAIN: dict[str, _Make] = {"set": set, "frozenset": frozenset, "bytes": _bytes, "bytearray": _bytes}
_NUMPY: dict[str, _Make] = {
    "multiarray._reconstruct": _reconstruct,
    "multiarray.scalar": _scalar,
    "numeric._frombuffer": _array,
}
_CALLABLES: dict[str, _Make] = {
    "numpy.dtype": _Dtype,
    "collections.OrderedDict": collections.OrderedDict,
    "_codecs.encode": _encode,
    **{f"numpy.{core}.{name}": make for core in ("core", "_core") for name, make in _NUMPY.items()},
    **{f"{module}.{name}": make for module in ("builtins", "__builtin__") for name, make in _PLAIN.items()},
}
ADMITTED = {"numpy.ndarray": _ARRAY_TYPE, **{name: _Admitted(make) for name, make in _CALLABLES.items()}}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ADMITTED:
            raise Refused(f"{module}.{name}")
        return ADMITTED[f"{module}.{name}"]


def load_pickle(stream: IO[bytes], name: str, size: int, say: Callable[[str], None]) -> Any:
    """What the pickle holds: containers, numbers, text (bytes, if it was written by Python 2), read-only arrays.

    All of it is in memory at once, which is announced, and refused where there is not as much.
    """
    needed, free = size + HEADROOM, available_memory()
    if needed > free:
        raise ValueError(
            f"{name} is a pickle of {size / 1e9:.1f} GB, which needs up to {needed / 1e9:.1f} GB of memory at once, "
            f"and {free / 1e9:.1f} GB are free: close other programs, or use another form of the dataset."
        )
    say(f"Reading {name}: a pickle has to be in memory whole, up to {needed / 1e9:.1f} GB.")
    try:
        return _plain(_Reader(stream, encoding="bytes").load())
    except Refused as error:
        raise ValueError(
            f"{name} is refused: it asks for {error}, and a pickled dataset needs only arrays and plain containers. "
            "Nothing of it was run; do not open it with other programs."
        ) from None
    except Exception as error:  # damaged opcodes raise almost anything
        raise ValueError(f"{name} is no whole pickle ({error or type(error).__name__}): fetch it again.") from None


def _plain(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Stand-ins replaced by what they stand for, at any depth; a dictionary's byte keys become text.

    `known` holds the containers already made: one that is shared a million times is not copied a million times.
    """
    known = {} if known is None else known
    if isinstance(value, _Array):
        return _plain(value.value, known) if isinstance(value.value, list) else value.value
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) not in known:
        if isinstance(value, dict):
            made: Any = {text(key): _plain(item, known) for key, item in value.items()}
        else:
            made = [_plain(item, known) for item in value]
        known[id(value)] = made
    return known[id(value)]


def text(value: Any) -> Any:
    """Text, if the value is that as Python 2 pickled it, else the value."""
    return value.decode("latin1") if isinstance(value, bytes) else value


def size_of(stream: IO[bytes]) -> int:
    """Bytes of a stream, which is left at its start."""
    size = stream.seek(0, 2)
    stream.seek(0)
    return size


def available_memory() -> float:
    """Bytes that could be had now, as the system and the control group say; infinite where neither says."""
    free = [float("inf")]
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free.append(1024.0 * int(lines["MemAvailable"].split()[0]))
        group = Path("/sys/fs/cgroup")
        limit, used = (group / "memory.max").read_text(), (group / "memory.current").read_text()
        free.append(float(limit) - float(used) if limit.strip() != "max" else float("inf"))
    except (OSError, KeyError, ValueError):
        pass
    return min(free)
