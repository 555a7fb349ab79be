"""From the bytes of an image file, or an array, to uint8 pixels of the wanted shape."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from tapnet.datasets.source import Raw, Unreadable

FILTERS = {each.name.lower(): each for each in Image.Resampling}
FITS = ("squash", "crop")
MOST_PIXELS = 50_000_000  # of one image: at most 400 MB while it is decoded
LARGE_PIXELS = 4_000_000
SUFFIXES = frozenset(
    ".bmp .gif .jfif .jp2 .jpe .jpeg .jpg .pbm .pgm .png .pnm .ppm .tga .tif .tiff .webp".split()  # noqa: SIM905
)
_one_large_at_a_time = threading.Lock()

T = TypeVar("T")


@dataclass(frozen=True)
class Geometry:
    """What every image is made into. `squash` changes the proportions, `crop` keeps them and cuts the longer side."""

    height: int
    width: int
    channels: int
    filter: str = "lanczos"
    fit: str = "squash"
    invert: bool = False

    def __post_init__(self) -> None:
        if self.filter not in FILTERS:
            raise ValueError(f"Resize filters are {', '.join(FILTERS)}, got {self.filter!r}.")
        if self.fit not in FITS:
            raise ValueError(f"An image can be fitted by {' or '.join(FITS)}, got {self.fit!r}.")
        if self.channels not in (1, 3):
            raise ValueError(f"Images have 1 channel (grey) or 3 (colour), got {self.channels}.")
        if not (1 <= self.height <= 4096 and 1 <= self.width <= 4096):
            raise ValueError(f"Image sides are 1 to 4096 pixels, got {self.height}×{self.width}.")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels


@dataclass(frozen=True)
class Decoded:
    """Pixels of the wanted shape, and whether the image had another size before."""

    pixels: NDArray[np.uint8]
    resized: bool


def decode(raw: Raw, geometry: Geometry) -> Decoded | Unreadable:
    """The image in the wanted shape, or why there is none; never an exception for a damaged image."""
    if isinstance(raw, Unreadable):
        return raw
    return decode_by(raw, lambda image: fitted(image, geometry))


def decode_by(raw: bytes | NDArray[np.uint8] | Image.Image, use: Callable[[Image.Image], T]) -> T | Unreadable:
    """What `use` makes of the image, upright and opaque, or why there is no image.

    `use` runs where only one large image is in memory at a time.
    """
    try:
        with _opened(raw) as image:
            pixels = image.width * image.height
            if pixels > MOST_PIXELS:
                raise Image.DecompressionBombError
            with _one_large_at_a_time if pixels > LARGE_PIXELS else nullcontext():
                return use(_opaque(_upright(image)))
    except Exception as error:  # decoders raise almost anything on damaged bytes
        return Unreadable(_reason(error))


def _opened(raw: bytes | NDArray[np.uint8] | Image.Image) -> AbstractContextManager[Image.Image]:
    if isinstance(raw, bytes):
        return Image.open(io.BytesIO(raw))
    return nullcontext(raw if isinstance(raw, Image.Image) else Image.fromarray(raw.squeeze()))


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """While it lasts, damaged metadata is passed over in silence and Pillow's own size warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image that can be read"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {MOST_PIXELS:,} pixels, which may be a decompression bomb"
    return str(error) or type(error).__name__


def fitted(image: Image.Image, geometry: Geometry) -> Decoded:
    """An upright, opaque image in the wanted shape."""
    image = image.convert("L" if geometry.channels == 1 else "RGB")
    size = (geometry.width, geometry.height)
    resized = image.size != size
    if resized and geometry.fit == "crop":
        image = ImageOps.fit(image, size, FILTERS[geometry.filter])
    elif resized:
        image = image.resize(size, FILTERS[geometry.filter])
    pixels = np.asarray(image, dtype=np.uint8).reshape(geometry.shape)
    return Decoded(255 - pixels if geometry.invert else pixels, resized)


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged metadata around a good image: it stays as it lies
        return image


def _opaque(image: Image.Image) -> Image.Image:
    """8-bit grey or colour without transparency; what was transparent is white, as on paper."""
    if image.mode.startswith("I"):
        return _from_sixteen_bits(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels, which have no agreed white: save it with 8 or 16 bits")
    if image.has_transparency_data:
        colour = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", colour.size, "white"), colour).convert("RGB")
    return image.convert("L") if image.mode in ("1", "L") else image.convert("RGB")


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """65535 is white. Pillow's own conversion would cut everything above 255 to white."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("more than 16 bits a pixel: save it with 8 or 16 bits")
    return Image.fromarray(np.rint(values / np.float32(257)).astype(np.uint8))
