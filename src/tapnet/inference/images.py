"""Pictures as people have them, made into what a network takes. Nothing here needs PyTorch.

A picture is a path, a PIL image or an array; what cannot be read comes out as `Unreadable` with its reason.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tapnet.data.decoding import LoadedImage, quiet_decoders, with_image
from tapnet.data.preprocessing import Pixels, Preprocessing
from tapnet.data.source import Unreadable

Picture = str | Path | Image.Image | NDArray[Any]
T = TypeVar("T")

THUMBNAIL = 96
_WORKERS, _AHEAD = 2, 64  # pictures decoded at a time, and waiting to be used


@dataclass(frozen=True)
class Example:
    """One picture, read: the network's input, what to show of it, and the sha-256 of its file or pixels."""

    pixels: Pixels = field(repr=False)
    thumbnail: bytes = field(repr=False)  # a small JPEG
    sha256: str


def read_picture(picture: Picture, preprocessing: Preprocessing) -> Example | Unreadable:
    """The example in a picture, or why there is none."""
    raw = _raw(picture)
    if isinstance(raw, Unreadable):
        return raw
    digest = hashlib.sha256(raw if isinstance(raw, bytes) else _identity(raw)).hexdigest()
    return with_image(
        raw,
        lambda image: Example(preprocessing.apply(image).pixels, _thumbnail(image), digest),
        max(preprocessing.shape),
    )


def read_pictures(
    pictures: Iterable[Picture], preprocessing: Preprocessing
) -> Iterator[tuple[Picture, Example | Unreadable]]:
    """Each picture with its example, in order, read ahead by threads and never more than a few at a time."""
    with quiet_decoders(), ThreadPoolExecutor(_WORKERS) as pool:
        waiting: deque[tuple[Picture, Future[Example | Unreadable]]] = deque()
        try:
            for picture in pictures:
                waiting.append((picture, pool.submit(read_picture, picture, preprocessing)))
                if len(waiting) > _AHEAD:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def is_coloured(picture: Picture) -> bool | Unreadable:
    """Whether a picture has colour to speak of, or why it cannot be read."""
    raw = _raw(picture)
    return with_image(raw, _looks_coloured)


def _looks_coloured(image: LoadedImage) -> bool:
    """Whether in more than a twentieth of it the channels differ clearly."""
    small = np.asarray(image.thumbnail(64), dtype=np.int16)
    spread = small.max(axis=-1) - small.min(axis=-1)
    return bool((spread > 30).mean() > 0.05)


def _raw(picture: Picture) -> bytes | Pixels | Image.Image | Unreadable:
    if isinstance(picture, str | Path):
        try:
            return Path(picture).read_bytes()
        except OSError as error:
            return Unreadable(error.strerror or str(error))
    if isinstance(picture, Image.Image):
        return picture
    return _eight_bits(np.asarray(picture))


def _eight_bits(array: NDArray[Any]) -> Pixels | Unreadable:
    """An array picture as uint8; floats are taken to be in [0, 1]."""
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))) or 0 in array.shape:
        return Unreadable(f"an array picture is (height, width) or (height, width, 1, 3 or 4), got {array.shape}")
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        return Unreadable(f"an array picture is uint8, or float in [0, 1], got {array.dtype}")
    if not (array.min() >= 0 and array.max() <= 1):
        return Unreadable(f"a float picture is in [0, 1], got {array.min():.3g} to {array.max():.3g}")
    return np.asarray(np.rint(array * 255), dtype=np.uint8)


def _identity(raw: Pixels | Image.Image) -> bytes:
    array = np.ascontiguousarray(raw)
    return repr((array.shape, array.dtype.str)).encode() + array.tobytes()


def _thumbnail(image: LoadedImage) -> bytes:
    stream = io.BytesIO()
    image.thumbnail(THUMBNAIL).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def shown_picture(path: Path, side: int = 600) -> Image.Image:
    """A readable picture file, upright, opaque and at most so large."""
    shown = with_image(path.read_bytes(), lambda image: image.thumbnail(side))
    if isinstance(shown, Unreadable):
        raise ValueError(f"{path} cannot be read: {shown.reason}.")
    return shown
