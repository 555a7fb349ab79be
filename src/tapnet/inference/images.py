"""Images as people have them, made into what a network takes. Nothing here needs PyTorch.

An image is a path, the bytes of a file, a file elsewhere (`ImageFile`), a PIL image or an array; what cannot be read
becomes `Unreadable` with its reason.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tapnet.data.preprocessing import (
    LARGEST_FILE,
    LoadedImage,
    Pixels,
    Preprocessing,
    Unreadable,
    with_image,
)
from tapnet.errors import UserError

T = TypeVar("T")

THUMBNAIL = 96  # pixels
GROUP, _AT_A_TIME = 64, 8  # images that are read before the first is used, and that a thread takes
WORKERS = max(2, min(os.cpu_count() or 1, GROUP // _AT_A_TIME))  # threads that decode


@dataclass(frozen=True)
class ImageFile(ABC):
    """An image file that is not on this machine's disk: in a bucket, or in a row of a table."""

    name: str

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def read_bytes(self) -> bytes:
        """Return the content of the file; raise OSError if it cannot be had."""


ImageInput = str | Path | ImageFile | bytes | Image.Image | NDArray[Any]
ImagesByClass = Mapping[str, Sequence[ImageInput]]
OnUnreadable = Callable[[ImageInput, str], None]
OnRead = Callable[[], None]


@dataclass(frozen=True)
class Example:
    """One image, read: the network's input, the sha-256 of its file or pixels, and a small JPEG if one was wanted."""

    pixels: Pixels = field(repr=False)
    sha256: str
    thumbnail: bytes = field(default=b"", repr=False)


def read_image(
    image: ImageInput, preprocessing: Preprocessing, thumbnail: bool = False, most_pixels: int | None = None
) -> Example | Unreadable:
    """Return the image as the network takes it, or the reason why not; `TooLarge` if beyond `most_pixels`."""
    raw, digest = _raw(image)

    def read(loaded: LoadedImage) -> Example:
        return Example(preprocessing.apply(loaded), digest, _thumbnail(loaded) if thumbnail else b"")

    return with_image(raw, read, preprocessing.sufficient_side, most_pixels)


def read_images(
    images: Iterable[ImageInput],
    preprocessing: Preprocessing,
    thumbnails: bool = False,
    workers: int = WORKERS,
    most_pixels: int | None = None,
    ahead: bool = False,
) -> Iterator[tuple[ImageInput, Example | Unreadable]]:
    """Yield each image with what `read_image` returns, in order; `workers` threads read a group of images at a time.

    Few images, and all if `workers` is 0, are read by the caller. With `ahead` the next group is read while the caller
    uses this one, which pays for files elsewhere; on this machine the threads would take its cores from the network.
    """

    def read(batch: list[ImageInput]) -> list[tuple[ImageInput, Example | Unreadable]]:
        return [(image, read_image(image, preprocessing, thumbnails, most_pixels)) for image in batch]

    groups = in_batches(images, GROUP)
    first = next(groups, [])
    with _quiet():
        if not workers or len(first) < _AT_A_TIME:
            for group in chain([first], groups):
                yield from read(group)
            return
        pool, waiting = ThreadPoolExecutor(workers), deque[Iterator[list[tuple[ImageInput, Example | Unreadable]]]]()
        try:
            for group in chain([first], groups):
                waiting.append(pool.map(read, in_batches(group, _AT_A_TIME)))  # begins at once
                if len(waiting) > ahead:
                    yield from chain.from_iterable(waiting.popleft())
            yield from chain.from_iterable(chain.from_iterable(waiting))
        finally:
            pool.shutdown(cancel_futures=True)


def readable(
    read: Iterable[tuple[ImageInput, Example | Unreadable]], on_unreadable: OnUnreadable | None
) -> Iterator[tuple[ImageInput, Example]]:
    """Yield the images that could be read; give the others to `on_unreadable`, or raise UserError."""
    for image, example in read:
        if isinstance(example, Example):
            yield image, example
        elif on_unreadable is None:
            raise unreadable_error(image, example.reason)
        else:
            on_unreadable(image, example.reason)


def read_labeled(
    images: ImagesByClass,
    preprocessing: Preprocessing,
    on_unreadable: OnUnreadable | None = None,
    on_read: OnRead | None = None,
    thumbnails: bool = False,
) -> Iterator[tuple[str, ImageInput, Example]]:
    """Yield the images that could be read, each with its class, as `readable` does; call `on_read` after each image."""
    names = (name for name, of_class in images.items() for _ in of_class)
    read = read_images(chain.from_iterable(images.values()), preprocessing, thumbnails)
    for name, pair in zip(names, read, strict=True):
        for image, example in readable([pair], on_unreadable):
            yield name, image, example
        if on_read:
            on_read()


def check_several(images: Iterable[ImageInput], of_class: str = "") -> None:
    """Raise UserError if this is a single image in place of several."""
    if not isinstance(images, Iterable) or isinstance(images, str | bytes):
        where = f" of class {of_class!r}" if of_class else ""
        raise UserError(f"Expected a list of images{where}, got {images!r:.80}: put it in a list.")


def check_images_by_class(images: ImagesByClass) -> None:
    """Raise UserError unless this maps the names of classes to several images each."""
    if not isinstance(images, Mapping):
        example = '{"cat": [...], "dog": [...]}'
        raise UserError(f"Expected images by class, such as {example}, got an object of type {type(images).__name__}.")
    for name, of_class in images.items():
        if not isinstance(name, str):
            raise UserError(f"Expected the name of a class, got {name!r}: names are strings.")
        check_several(of_class, name)


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items, the last one perhaps shorter."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def name_of(image: ImageInput) -> str:
    """Return what an image is called in a message: its path, or what kind of input it is."""
    return str(image) if isinstance(image, str | Path | ImageFile) else "The image"


def unreadable_error(image: ImageInput, reason: str) -> UserError:
    """Return the error that says why an image cannot be read."""
    return UserError(f"{name_of(image)} cannot be read: {reason}.")


def with_input(image: ImageInput, use: Callable[[LoadedImage], T]) -> T | Unreadable:
    """Return what `use` makes of an image, or why it cannot be read."""
    return with_image(_raw(image)[0], use)


def image_sha256(image: ImageInput) -> str:
    """Return the digest by which a task recognizes an image; raise UserError if it cannot be read."""
    raw, digest = _raw(image)
    if isinstance(raw, Unreadable):
        raise unreadable_error(image, raw.reason)
    return digest


def _raw(image: ImageInput) -> tuple[bytes | Pixels | Image.Image | Unreadable, str]:
    """Return what is to be decoded, and the digest of its bytes or pixels."""
    raw: bytes | Pixels | Image.Image | Unreadable
    if isinstance(image, str | Path | ImageFile):
        try:
            raw = image.read_bytes() if isinstance(image, ImageFile) else _file_content(Path(image))
        except OSError as error:
            raw = Unreadable(error.strerror or str(error))
    else:
        raw = image if isinstance(image, bytes | Image.Image) else _eight_bits(np.asarray(image))
    if isinstance(raw, Unreadable):
        return raw, ""
    if isinstance(raw, bytes):
        return raw, hashlib.sha256(raw).hexdigest()
    pixels = np.ascontiguousarray(raw)
    return raw, hashlib.sha256(repr((pixels.shape, pixels.dtype.str)).encode() + pixels.tobytes()).hexdigest()


def _file_content(path: Path) -> bytes | Unreadable:
    too_large = Unreadable(f"more than {LARGEST_FILE:,} bytes")
    if path.stat().st_size > LARGEST_FILE:
        return too_large
    if path.is_file():
        return path.read_bytes()
    with path.open("rb") as file:  # a pipe or a device, which may never end
        content = file.read(LARGEST_FILE + 1)
    return too_large if len(content) > LARGEST_FILE else content


def _eight_bits(array: NDArray[Any]) -> Pixels | Unreadable:
    """Return an array as uint8; floats are taken to be in [0, 1]."""
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))) or 0 in array.shape:
        return Unreadable(f"expected an array (height, width) or (height, width, 1, 3 or 4), got {array.shape}")
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        return Unreadable(f"expected an array of uint8, or of floats in [0, 1], got {array.dtype}")
    if not (array.min() >= 0 and array.max() <= 1):
        return Unreadable(f"expected floats in [0, 1], got {array.min():.3g} to {array.max():.3g}")
    return np.asarray(np.rint(array * 255), dtype=np.uint8)


def _thumbnail(image: LoadedImage) -> bytes:
    stream, small = io.BytesIO(), image.thumbnail(THUMBNAIL)
    small.info.clear()  # a comment of the file would be saved, too
    small.save(stream, "JPEG", quality=85)
    return stream.getvalue()


_readers, _quiet_lock, _quiet_stack = 0, threading.Lock(), ExitStack()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the decoders; entered once however many threads read, because Python's warning filters are global."""
    global _readers
    with _quiet_lock:
        _readers += 1
        if _readers == 1:
            _quiet_stack.enter_context(warnings.catch_warnings(action="ignore"))
    try:
        yield
    finally:
        with _quiet_lock:
            _readers -= 1
            if _readers == 0:
                _quiet_stack.close()
