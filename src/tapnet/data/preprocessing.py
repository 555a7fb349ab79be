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

from tapnet.data.source import Raw, Unreadable

FILTERS = {each.name.lower(): each for each in Image.Resampling}
FITS = ("squash", "crop")
MOST_PIXELS = 40_000_000  # of one image: with a copy of it, 320 MB while it is decoded
LARGE_PIXELS = 4_000_000
LARGE_SIDE = 1600
SUFFIXES = frozenset(
    ".bmp .gif .jfif .jp2 .jpe .jpeg .jpg .pbm .pgm .png .pnm .ppm .tga .tif .tiff .webp".split()  # noqa: SIM905
)
ORIENTATION = 0x0112  # of EXIF
ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = tuple(ORIENTATIONS[number] for number in (5, 6, 7, 8))
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
    try:
        return fitted(raw, geometry) if isinstance(raw, np.ndarray) else _decoded(raw, geometry)
    except Exception as error:  # decoders raise almost anything on damaged bytes
        return Unreadable(_reason(error))


def decode_by(raw: bytes | NDArray[np.uint8] | Image.Image, use: Callable[[Image.Image], T]) -> T | Unreadable:
    """What `use` makes of the image, upright, opaque and at most LARGE_SIDE on a side, or why there is no image."""
    try:
        with _opened(raw) as image:
            if image.width * image.height > MOST_PIXELS:
                image.draft(image.mode, (LARGE_SIDE, LARGE_SIDE))  # JPEG can be unpacked smaller
            pixels = image.width * image.height
            if pixels > MOST_PIXELS:
                raise Image.DecompressionBombError
            with _one_large_at_a_time if pixels > LARGE_PIXELS else nullcontext():
                upright = _upright(image)
        return use(upright)
    except Exception as error:  # decoders raise almost anything on damaged bytes
        return Unreadable(_reason(error))


def _opened(raw: bytes | NDArray[np.uint8] | Image.Image) -> AbstractContextManager[Image.Image]:
    if isinstance(raw, bytes):
        return Image.open(io.BytesIO(raw))
    return nullcontext(raw if isinstance(raw, Image.Image) else Image.fromarray(raw.squeeze()))


def _upright(image: Image.Image) -> Image.Image:
    """Made small first; without metadata, so that nobody turns it again."""
    plain, turn = _eight_bits(image), _turn(image)
    if max(plain.size) > LARGE_SIDE:
        plain = ImageOps.contain(plain, (LARGE_SIDE, LARGE_SIDE))
    plain = plain if turn is None else plain.transpose(turn)
    plain = _on_white(plain)
    return Image.fromarray(np.asarray(plain.convert("RGB") if plain.mode == "RGBA" else plain))


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


def _decoded(raw: bytes, geometry: Geometry) -> Decoded:
    with Image.open(io.BytesIO(raw)) as image:
        if image.width * image.height > MOST_PIXELS:
            image.draft(image.mode, (2 * geometry.width, 2 * geometry.height))  # JPEG can be unpacked smaller
        pixels = image.width * image.height
        if pixels > MOST_PIXELS:
            raise Image.DecompressionBombError
        if pixels <= LARGE_PIXELS:
            return fitted(image, geometry)
        with _one_large_at_a_time:
            return fitted(image, geometry)


def fitted(picture: Image.Image | NDArray[np.uint8], geometry: Geometry) -> Decoded:
    """Every large step makes at most one copy of the full image; the rest is done after it has shrunk."""
    image = _eight_bits(picture) if isinstance(picture, Image.Image) else Image.fromarray(picture.squeeze())
    turn = _turn(picture) if isinstance(picture, Image.Image) else None
    size = (geometry.height, geometry.width) if turn in SIDEWAYS else (geometry.width, geometry.height)
    resized = image.size != size
    if resized and geometry.fit == "crop":
        image = ImageOps.fit(image, size, FILTERS[geometry.filter])
    elif resized:
        image = image.resize(size, FILTERS[geometry.filter])
    image = image if turn is None else image.transpose(turn)
    image = _on_white(image).convert("L" if geometry.channels == 1 else "RGB")
    pixels = np.asarray(image, dtype=np.uint8).reshape(geometry.shape)
    return Decoded(255 - pixels if geometry.invert else pixels, resized)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """What puts a photograph upright, as its camera noted."""
    try:
        return ORIENTATIONS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged metadata around a good image: it stays as it lies
        return None


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey, colour, or colour with transparency."""
    image.load()
    if image.mode.startswith("I"):
        return _from_sixteen_bits(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels, which have no agreed white: save it with 8 or 16 bits")
    if image.has_transparency_data:
        return image if image.mode == "RGBA" else image.convert("RGBA")
    if image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """What was transparent is white, as on paper, whatever colour it hides."""
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image) if image.mode == "RGBA" else image


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """65535 is white. Pillow's own conversion would cut everything above 255 to white."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("more than 16 bits a pixel: save it with 8 or 16 bits")
    pixels = np.empty(values.shape, dtype=np.uint8)
    for start in range(0, len(values), 256):
        pixels[start : start + 256] = np.rint(values[start : start + 256] / np.float32(257))
    return Image.fromarray(pixels)
